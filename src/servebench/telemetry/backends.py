"""Find the servers of this machine behind an attached server, such as the engines behind a router."""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import psutil

from servebench.util.processes import listeners, process_tree

EAGER_S = 5.0
"""So long each look is a real one, because a router may connect with the first requests only."""
INTERVAL_S = 5.0
"""The time between looks from then on: one takes 10 to 30 ms of CPU time."""
HOPS_MAX = 4
"""A router before a router before an engine, and one to spare."""


@dataclass
class Backends:
    """The processes that an attached server's process sends its work to, as far as they run on this machine."""

    front: int
    own: int = field(default_factory=os.getpid)
    _ports: dict[int, int] = field(default_factory=dict)
    found: set[int] = field(default_factory=set)
    _began_s: float | None = None
    _looked_s: float = 0.0

    def look(self, now_s: float) -> frozenset[int]:
        """Return the pids found so far: listeners on this machine that the server, or one of them, has a connection to."""
        if self._began_s is None:
            self._began_s = now_s
        elif now_s - self._began_s > EAGER_S and now_s - self._looked_s < INTERVAL_S:
            return frozenset(self.found)
        self._looked_s = now_s
        for _ in range(HOPS_MAX):
            known = {self.front, *self.found}
            ports = connected_ports(known)
            if not ports <= self._ports.keys():
                # ports of other machines have no listener here: 0, so that they are asked for once
                self._ports |= dict.fromkeys(ports, 0) | {port: pid for port, pid in listeners() if pid}
            self.found |= {pid for port in ports if (pid := self._ports[port])} - {self.own, self.front}
            if self.found <= known:
                break
        return frozenset(self.found)


def connected_ports(pids: Iterable[int]) -> set[int]:
    """Return the remote ports of connections that these processes, or their children, opened to this machine's own address."""
    ports: set[int] = set()
    for pid in pids:
        sockets: list[Any] = []
        for process in process_tree(pid):
            with contextlib.suppress(psutil.Error, OSError):
                sockets += process.net_connections("tcp")
        listening = {one.laddr.port for one in sockets if one.status == psutil.CONN_LISTEN}
        ports |= {
            one.raddr.port
            for one in sockets
            if one.status == psutil.CONN_ESTABLISHED
            and one.raddr
            and one.raddr.ip == one.laddr.ip
            and one.laddr.port not in listening
        }
    return ports
