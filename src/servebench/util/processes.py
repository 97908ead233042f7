"""The CPUs that this process may use, and the processes of this machine and their ports, as far as this user may see them."""

import contextlib
import os

import psutil


def usable_cpus() -> frozenset[int]:
    """Return the CPUs that this process, and so the load and a local engine, may run on."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


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
