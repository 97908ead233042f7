"""Ports: a free one, and who has one that is not."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import psutil


def free_port(host: str) -> int:
    """A port of this host that nobody listens on now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now: nobody does, though closed connections may linger."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def accepts(host: str, port: int, timeout_s: float = 0.25) -> bool:
    """Whether somebody accepts connections there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=timeout_s):
        return True
    return False


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    return inodes


def listeners(port: int) -> set[int] | None:
    """The pids that hold a listening socket of this port, as far as /proc tells; None where it tells nothing."""
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    pids: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) in inodes:
                        pids.add(int(process.name))
    return pids or None


def owner(port: int) -> str:
    """Who listens on a port, for a message: ` (pid 12, python3)`, or nothing where that cannot be seen."""
    pids = listeners(port)
    if not pids:
        return ""
    pid = min(pids)
    with contextlib.suppress(psutil.Error):
        return f" by pid {pid} ({psutil.Process(pid).name()})"
    return f" by pid {pid}"
