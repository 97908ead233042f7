"""Find free ports and the processes that hold used ones."""

import contextlib
import errno
import os
import socket
from collections.abc import Collection
from pathlib import Path

from servebench.util.errors import EngineError, FailureKind, reason_of

LISTEN = "0A"
"""TCP_LISTEN in /proc/net/tcp (include/net/tcp_states.h)."""


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        if port:
            # as servers do: connections in TIME_WAIT must not block the port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def free_port(host: str) -> int:
    """Return a port of this host that is free now. Raises EngineError if the host is not an address of this machine."""
    try:
        with _bind(host, 0) as bound:
            port: int = bound.getsockname()[1]
            return port
    except OSError as error:
        raise EngineError(_unusable_host(host, error)) from error


def port_problem(host: str, port: int) -> EngineError | None:
    """Return why a server cannot listen on this address now, with the owner of a used port; None if it can."""
    try:
        _bind(host, port).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return EngineError(
                f"engine.port={port}: {host}:{port} is already in use{describe_owner(port)}; "
                "choose another engine.port, or 0 for any free one",
                kind=FailureKind.PORT_IN_USE,
            )
        if error.errno == errno.EACCES:
            return EngineError(
                f"engine.port={port}: this user may not listen on {host}:{port}; choose a port above 1023"
            )
        return EngineError(_unusable_host(host, error))
    return None


def _unusable_host(host: str, error: OSError) -> str:
    return f"engine.host={host}: cannot listen there: {reason_of(error)}; use an address of this machine, such as 127.0.0.1"


def accepts_connections(host: str, port: int, timeout_s: float = 0.25) -> bool:
    """Return whether a server accepts connections on this address."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=timeout_s) as connection:
        # TCP connects a free port to itself if it happens to be chosen as the source port
        return bool(connection.getsockname() != connection.getpeername())
    return False


def listening_sockets(port: int) -> set[str] | None:
    """Return the sockets that listen on a port, as /proc names them; None without /proc."""
    sockets: set[str] | None = None
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            lines = Path(table).read_text().splitlines()[1:]
            sockets = sockets or set()
            for fields in map(str.split, lines):
                if fields[3] == LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    return sockets


def _has_socket_open(pid: int | str, sockets: Collection[str]) -> bool | None:
    """Return whether a process has one of these sockets open; None if this user may not see that."""
    folder = f"/proc/{pid}/fd"
    try:
        # os is much faster than pathlib for thousands of descriptors
        for name in os.listdir(folder):  # noqa: PTH208
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"{folder}/{name}") in sockets:  # noqa: PTH115
                    return True
    except PermissionError:
        return None
    except (FileNotFoundError, ProcessLookupError):
        return False
    return False


def is_held_by(pids: Collection[int], port: int) -> bool | None:
    """Return whether one of these processes listens on the port; None if that cannot be seen."""
    sockets = listening_sockets(port)
    if not sockets:
        return None
    results = [_has_socket_open(pid, sockets) for pid in pids]
    return True if True in results else (None if None in results else False)


def describe_owner(port: int) -> str:
    """Return the process that listens on a port, for a message: ` by pid 12 (python3)`; empty if it cannot be seen."""
    sockets = listening_sockets(port)
    if not sockets:
        return ""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    pid = next((pid for pid in pids if _has_socket_open(pid, sockets)), None)
    if pid is None:
        return ""
    import psutil

    with contextlib.suppress(psutil.Error):
        return f" by pid {pid} ({psutil.Process(pid).name()})"
    return f" by pid {pid}"
