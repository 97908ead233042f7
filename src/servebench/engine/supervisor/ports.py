"""Find free ports and the processes that hold used ones."""

import contextlib
import errno
import socket
from collections.abc import Collection

from servebench.util.errors import EngineError, FailureKind, reason_of

CONNECT_TIMEOUT_S = 0.25


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


def accepts_connections(host: str, port: int) -> bool:
    """Return whether a server accepts connections on this address."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S) as connection:
        # TCP connects a free port to itself if it happens to be chosen as the source port
        return bool(connection.getsockname() != connection.getpeername())
    return False


def is_held_by(pids: Collection[int], port: int) -> bool | None:
    """Return whether one of these processes listens on the port; None if that cannot be seen."""
    from servebench.util.processes import listeners

    owners = [pid for at, pid in listeners() if at == port]
    if any(pid in pids for pid in owners):
        return True
    return None if not owners or None in owners else False


def describe_owner(port: int) -> str:
    """Return the process that listens on a port, for a message: ` by pid 12 (python3)`; empty if it cannot be seen."""
    import psutil

    from servebench.util.processes import listeners

    pid = next((pid for at, pid in listeners() if at == port and pid is not None), None)
    if pid is None:
        return ""
    with contextlib.suppress(psutil.Error):
        return f" by pid {pid} ({psutil.Process(pid).name()})"
    return f" by pid {pid}"
