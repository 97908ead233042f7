"""The processes of this machine and their ports, as far as this user may see them."""

import contextlib

import psutil


def process_tree(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants; empty if it is gone or may not be seen."""
    with contextlib.suppress(psutil.Error, OSError):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def listeners() -> list[tuple[int, int | None]]:
    """Return the port and the pid of each listener that can be seen; the pid is None for one that this user may not see."""
    with contextlib.suppress(psutil.Error, OSError, RuntimeError):
        found = psutil.net_connections("tcp")
        return [(one.laddr.port, one.pid) for one in found if one.status == psutil.CONN_LISTEN and one.laddr]
    return []
