"""Ports: a free one, who has one that is not, and whether a process of ours does."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Collection
from pathlib import Path

import psutil

from servebench.util.errors import EngineError

LISTEN = "0A"
"""TCP_LISTEN in /proc/net/tcp (include/net/tcp_states.h)."""


def _probe(host: str, port: int) -> socket.socket:
    """A socket bound there. Raises OSError (socket.gaierror among them)."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    probe = socket.socket(family, kind, protocol)
    try:
        if port:
            # as servers do: closed connections may linger
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
    except OSError:
        probe.close()
        raise
    return probe


def free_port(host: str) -> int:
    """A port of this host that nobody has now. Raises EngineError when the host is no address of this machine."""
    try:
        with _probe(host, 0) as probe:
            port: int = probe.getsockname()[1]
            return port
    except OSError as error:
        raise EngineError(_no_host(host, error)) from error


def port_fault(host: str, port: int) -> EngineError | None:
    """Why a server could not listen there now, naming who does if that is why; None when it could."""
    try:
        _probe(host, port).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return EngineError(
                f"port {host}:{port} (engine.port) is in use{owner(port)}; choose another engine.port, or 0 for any free one",
                kind="port_in_use",
            )
        if error.errno == errno.EACCES:
            return EngineError(f"port {host}:{port} (engine.port) is not allowed to this user; choose one above 1023")
        return EngineError(_no_host(host, error))
    return None


def _no_host(host: str, error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    return f"engine.host={host}: cannot listen there: {reason}; give an address of this machine, like 127.0.0.1"


def accepts(host: str, port: int, timeout_s: float = 0.25) -> bool:
    """Whether somebody accepts connections there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=timeout_s) as probe:
        # a connection from a port to itself is what TCP makes of a connect to a free port that was chosen as its source
        return bool(probe.getsockname() != probe.getpeername())
    return False


def listening_sockets(port: int) -> set[str] | None:
    """The sockets that listen on a port, by /proc; None where it does not tell."""
    found: set[str] | None = None
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            lines = Path(table).read_text().splitlines()[1:]
            found = found or set()
            for fields in map(str.split, lines):
                if fields[3] == LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    found.add(f"socket:[{fields[9]}]")
    return found


def _holds(pid: int | str, sockets: Collection[str]) -> bool | None:
    """Whether a process has one of these sockets open; None when we may not see."""
    folder = f"/proc/{pid}/fd"
    try:
        # os, not pathlib: thousands of descriptors are looked at
        for name in os.listdir(folder):  # noqa: PTH208
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"{folder}/{name}") in sockets:  # noqa: PTH115
                    return True
    except PermissionError:
        return None
    except (FileNotFoundError, ProcessLookupError):
        return False
    return False


def held_by(pids: Collection[int], port: int) -> bool | None:
    """Whether one of these processes listens on the port; None where that cannot be seen."""
    sockets = listening_sockets(port)
    if not sockets:
        return None
    answers = [_holds(pid, sockets) for pid in pids]
    return True if True in answers else (None if None in answers else False)


def owner(port: int) -> str:
    """Who listens on a port, for a message: ` by pid 12 (python3)`, or nothing where that cannot be seen."""
    sockets = listening_sockets(port)
    if not sockets:
        return ""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    pid = next((pid for pid in pids if _holds(pid, sockets)), None)
    if pid is None:
        return ""
    with contextlib.suppress(psutil.Error):
        return f" by pid {pid} ({psutil.Process(pid).name()})"
    return f" by pid {pid}"
