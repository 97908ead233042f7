"""A recording from its first request to Ctrl-C: the proxy in this process, and the process that writes the trace."""

from __future__ import annotations

import asyncio
import gc
import resource
import secrets
import shlex
import socket
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import orjson

from servebench.protocol.kinds.table import KINDS
from servebench.record.relay import ClientSide, Passed, Service
from servebench.record.trace import frame, kind_at
from servebench.util.children import python_environment
from servebench.util.errors import ConfigError, PreflightError, StoreError, reason_of
from servebench.util.signals import STOPPING
from servebench.util.tls import tls_context
from servebench.util.units import CHARACTERS_PER_TOKEN

BACKLOG = 4096
SALT_BYTES = 32


def record(
    address: str, file: Path, *, host: str, port: int, salt: str | None, block: int, say: Callable[[str], None]
) -> None:
    """Record the traffic of a service in a new file until a stop signal; `block` is in tokens of four bytes.

    Raises ConfigError, PreflightError, StoreError.
    """
    if file.suffix != ".jsonl":
        raise ConfigError(f"--to {file}: its name must end in .jsonl, by which workload=trace knows it")
    try:
        url = httpx.URL(address).copy_with(query=None, fragment=None)
        if url.scheme not in ("http", "https") or not url.host or url.userinfo:
            raise httpx.InvalidURL("")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except httpx.InvalidURL:
        raise ConfigError("URL must have the form http://HOST:PORT or https://HOST, without a user") from None
    except OSError as error:
        raise PreflightError(f"cannot listen on {host}:{port}: {reason_of(error)}; choose another --port") from error
    try:
        file.open("xb").close()
    except OSError as error:
        listener.close()
        raise ConfigError(f"--to {file} cannot be made: {reason_of(error)}; name a new file") from error
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.freeze()
    size = round(block * CHARACTERS_PER_TOKEN)
    hashing = {"salt": salt or secrets.token_hex(SALT_BYTES), "block_bytes": size}
    counts = _run(_serve(url, file, listener, hashing, say))
    more = "".join(f", {counts[name]} {name}" for name in ("cancelled", "failed") if counts.get(name))
    requests, sessions, prompt, output = (counts.get(name, 0) for name in ("requests", "sessions", "input", "output"))
    say(f"{file}: {requests} requests of {sessions} sessions, {prompt} tokens in, {output} out{more}")
    if requests:
        words = f"workload=trace workload.path={file} load=replay load.requests={requests}{_model_word(file)}"
        say(f"replay it: servebench endpoint={url} {words}")
    else:
        say(f"only requests to {', '.join(one.path for one in KINDS.values())} are recorded; others are passed on")


def _model_word(file: Path) -> str:
    """Return the word that names the model that answered; empty where there are several, or none is known."""
    with file.open("rb") as lines:
        rows = map(orjson.loads, lines)
        names = {row["model"] for row in rows if row.get("model") and row.get("status") == HTTPStatus.OK}
    (name,) = names if len(names) == 1 else ("",)
    return f" model.name={shlex.quote(name)}" if name and name.isprintable() else ""


def _run(what: Coroutine[Any, Any, dict[str, int]]) -> dict[str, int]:
    """Run it in uvloop's event loop where that is installed: it passes a token on in about half the time."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(what)
    return uvloop.run(what)


async def _serve(
    url: httpx.URL, file: Path, listener: socket.socket, hashing: dict[str, Any], say: Callable[[str], None]
) -> dict[str, int]:
    """Pass on and record until a stop signal; return what was written, as counts."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in STOPPING:
        loop.add_signal_handler(number, stopped.set)
    command = [sys.executable, "-P", "-m", "servebench.record.trace", str(file.absolute())]
    writer = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=python_environment())
    assert writer.stdin is not None
    pipe = writer.stdin
    pipe.write(frame({**hashing, "began_ns": time.time_ns()}))

    def hand_over(passed: Passed, cancelled: bool) -> None:
        if stopped.is_set() or writer.returncode is not None:
            return
        stamps = [stamp_ns for stamp_ns, _ in passed.reads]
        ended_ns = time.time_ns() if cancelled or not stamps else stamps[-1]
        times = {"started_ns": passed.started_ns, "ended_ns": ended_ns, "stamps": stamps}
        parts = [b"".join(passed.body), *(data for _, data in passed.reads)]
        pipe.write(frame({"path": passed.path, "cancelled": cancelled, **times}, parts))

    secure = url.scheme == "https"
    service = Service(
        url.host, url.port or (443 if secure else 80), url.netloc, tls_context() if secure else None, hand_over,
        lambda path: kind_at(path) is not None,
    )  # fmt: skip
    server = await loop.create_server(lambda: ClientSide(service), sock=listener)
    host, port = listener.getsockname()[:2]
    own = url.copy_with(scheme="http", host=host, port=port)
    say(f"recording {url} in {file}: use {own} instead; Ctrl-C ends it")
    waiting = loop.create_task(stopped.wait())
    ended = loop.create_task(writer.wait())
    await asyncio.wait((waiting, ended), return_when=asyncio.FIRST_COMPLETED)
    if ended.done():
        # who uses the service must not suffer from it
        say(f"recording has failed, exit code {ended.result()}: requests are passed on, but not recorded")
    await waiting
    server.close()
    pipe.close()
    assert writer.stdout is not None
    counts: dict[str, int] | None = orjson.loads(await writer.stdout.read() or b"null")
    await ended
    if counts is None:
        raise StoreError(f"{file} is not complete: the process that writes it failed")
    return counts
