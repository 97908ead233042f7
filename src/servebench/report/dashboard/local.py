"""Starts the dashboard, Streamlit on this machine's own address, and refuses requests that are not the user's: those of
other users, who lack the token, and of other sites, through the user's browser.

As in Jupyter the first request has the token in its address and gets a cookie; it is sent on to the same address without the
token, so that neither the history nor a `Referer` has it. Streamlit, which is built on Starlette, checks nothing of this.
"""

from __future__ import annotations

import hmac
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NoReturn
from urllib.parse import parse_qsl, urlencode, urlsplit

from servebench.util.children import python_environment
from servebench.util.errors import PreflightError

ADDRESS = "127.0.0.1"
PORT = 8501
LOCAL = frozenset((ADDRESS, "localhost", "::1"))


def is_local(host: str | None, origin: str | None) -> bool:
    """Return whether a request with these headers is for this machine, and from a page of the same origin."""
    if _name(f"//{host}") not in LOCAL:
        return False
    if origin is None:
        return True
    own = urlsplit(origin)
    return own.netloc.lower() == (host or "").lower() and own.scheme in ("http", "https")


def _name(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        return None if "@" in parts.netloc or parts.port == 0 else parts.hostname
    except ValueError:
        return None


@dataclass(frozen=True)
class Door:
    """Who comes in: with `token`, from a page of this machine. `port` keeps the cookies of two dashboards apart."""

    token: str
    port: int

    @property
    def cookie(self) -> tuple[str, str]:
        """The name and value of the cookie of those who have shown the token."""
        return f"servebench-{self.port}", hmac.digest(self.token.encode(), b"cookie", "sha256").hex()

    def asks(self, headers: Sequence[tuple[bytes, bytes]], query: bytes) -> Literal["in", "token", "refused"]:
        """Return what to do with a request: let it in, replace its token by the cookie, or refuse it."""
        found = {name.lower(): value.decode("latin-1") for name, value in headers}
        single = all(sum(name.lower() == one for name, _ in headers) <= 1 for one in (b"host", b"origin"))
        if not (single and is_local(found.get(b"host"), found.get(b"origin"))):
            return "refused"
        if any(_equal(value, self.token) for name, value in _parameters(query) if name == "token"):
            return "token"
        name, value = self.cookie
        cookies = (part.strip().partition("=") for part in found.get(b"cookie", "").split(";"))
        known = [_equal(given, value) for key, _, given in cookies if key == name]
        return "in" if any(known) else "refused"


def _parameters(query: bytes) -> list[tuple[str, str]]:
    return parse_qsl(query.decode("latin-1"), keep_blank_values=True)


def _equal(given: str, secret: str) -> bool:
    """Return whether a secret was given, in a time that does not depend on how much of it is right."""
    return hmac.compare_digest(given.encode(errors="replace"), secret.encode())


def guard(door: Door) -> None:
    """Make every server of this process refuse requests that may not come in."""
    from starlette.applications import Starlette

    answer = Starlette.__call__

    async def checked(self: Any, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        known = "in" if scope["type"] == "lifespan" else door.asks(scope["headers"], scope["query_string"])
        if known == "in":
            await answer(self, scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif known == "token":
            rest = urlencode([pair for pair in _parameters(scope["query_string"]) if pair[0] != "token"])
            name, value = door.cookie
            cookie = f"{name}={value}; Path=/; HttpOnly; SameSite=Lax"
            # a relative address: a path of two slashes would name another host
            await _send(send, 303, {"location": f"?{rest}" if rest else "./", "set-cookie": cookie})
        else:
            await _send(send, 403, {}, b"open the address with the token that 'servebench dashboard' printed\n")

    Starlette.__call__ = checked  # type: ignore[method-assign]


async def _send(
    send: Callable[[Any], Awaitable[None]], status: int, headers: dict[str, str], body: bytes = b""
) -> None:
    every = {"content-type": "text/plain", "referrer-policy": "no-referrer", "cache-control": "no-store", **headers}
    pairs = [(name.encode(), value.encode()) for name, value in every.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def dashboard_command(outputs: Path, port: int) -> list[str]:
    """Return the command that serves the dashboard. Raises PreflightError where Streamlit is not installed."""
    if find_spec("streamlit") is None:
        raise PreflightError("the dashboard needs Streamlit: pip install 'servebench-suite[dashboard]'")
    options = {
        "server.address": ADDRESS,
        "server.port": str(port),
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
        "logger.hideWelcomeMessage": "true",
        "runner.magicEnabled": "false",
        "theme.base": "light",
        "theme.primaryColor": "#0a58a3",
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    module = "servebench.report.dashboard.serve"
    return [sys.executable, "-P", "-m", module, str(outputs.absolute()), str(port), *words]


def serve_dashboard(outputs: Path, port: int) -> NoReturn:
    """Replace this process by the server, so that a signal stops all of it. Raises PreflightError."""
    command, environment = dashboard_command(outputs, port), python_environment(None, "STREAMLIT_")
    # Streamlit reads .streamlit/ of the folder it starts in
    os.chdir(Path(__file__).parent)
    os.execve(command[0], command, environment)  # noqa: S606  no shell is wanted
