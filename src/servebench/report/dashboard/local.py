"""Refuses requests that other sites make through the user's browser: by a name of their own for this machine, or across origins.

Streamlit checks neither for pages, and listens to any name. Version 1.5x is built on Tornado, later ones on Starlette.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

LOCAL = frozenset(("127.0.0.1", "localhost", "::1"))


def is_local(host: str | None, origin: str | None, hosts: frozenset[str] = frozenset()) -> bool:
    """Return whether a request with these headers is for this machine, or one of `hosts`, and from a page of the same origin."""
    name = _name(f"//{host}")
    if name is None or name not in LOCAL | hosts:
        return False
    if origin is None:
        return True
    own = urlsplit(origin).netloc.lower() == (host or "").lower() or _name(origin) in hosts
    return own and urlsplit(origin).scheme in ("http", "https")


def _name(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        return None if "@" in parts.netloc or parts.port == 0 else parts.hostname
    except ValueError:
        return None


def require_local(hosts: frozenset[str] = frozenset()) -> None:
    """Make every server of this process refuse requests that are not local; `hosts` are more names to accept."""
    if find_spec("starlette"):
        _guard_starlette(hosts)
    if find_spec("tornado"):
        _guard_tornado(hosts)


def _guard_starlette(hosts: frozenset[str]) -> None:
    from starlette.applications import Starlette

    answer = Starlette.__call__

    async def checked(self: Any, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope.get("headers", ())]
        found = {name: value for name, value in headers if name in (b"host", b"origin")}
        single = sum(name in found for name, _ in headers) == len(found)
        if scope["type"] == "lifespan" or (single and is_local(found.get(b"host"), found.get(b"origin"), hosts)):
            await answer(self, scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"the dashboard is only for this machine"})

    Starlette.__call__ = checked  # type: ignore[method-assign]


def _guard_tornado(hosts: frozenset[str]) -> None:
    from tornado.web import Application, ErrorHandler

    find = Application.find_handler

    def checked(self: Any, request: Any, **options: Any) -> Any:
        if is_local(request.headers.get("Host"), request.headers.get("Origin"), hosts):
            return find(self, request, **options)
        return self.get_handler_delegate(request, ErrorHandler, {"status_code": 403})

    Application.find_handler = checked
