"""The connections of a phase: opened ahead, reused, replaced when the server closed them."""

import select
import socket
import time
from collections import deque

from servebench.contracts.exchange import Target
from servebench.load.client.connection import Address, ClientConnection, TlsConnection, WireFailure
from servebench.util.tls import tls_context

PROBE_TIMEOUT_S = 2.0

STALE_MIN = 3
"""After this many connections that the server closed while idle, the pool may stop reusing connections."""

UNUSED_S = 1.0
"""A connection that waits so long for its first request may have been closed meanwhile: by llama.cpp after five seconds."""


def _reachable_address(addresses: list[Address]) -> Address:
    """Return the first address that accepts a connection: `localhost` is ::1 and 127.0.0.1, and a server may use one."""
    for family, where in addresses:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(PROBE_TIMEOUT_S)
            try:
                probe.connect(where)
            except OSError:
                continue
            return family, where
    return addresses[0]


class ConnectionPool:
    """Every open connection of a phase: connecting, idle, or carrying a request. All are registered with the poller."""

    def __init__(self, target: Target, poller: select.epoll, *, connect_timeout_s: float) -> None:
        """Open nothing yet; the name is resolved once, before the clock starts. Raises WireFailure for an unknown name."""
        try:
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise WireFailure("refused", f"cannot resolve {target.host}: {error.strerror or error}".lower()) from error
        self.connecting: dict[int, ClientConnection] = {}
        self.idle: dict[int, ClientConnection] = {}
        self.carriers: list[ClientConnection | None] = []
        """Connections that carry a request, by descriptor: the hot path finds them by index. None for other descriptors."""
        self.opened = self.refused = 0
        self._address = _reachable_address([(family, where) for family, _, _, _, where in found])
        self._context = tls_context(target.verify_tls) if target.tls else None
        self._server_name = target.server_name or target.host
        self._poller = poller
        self._connect_timeout_s = connect_timeout_s
        self._deadlines: deque[tuple[float, ClientConnection]] = deque()
        self._answered = self._closed_while_idle = 0

    def watch(self, fd: int, interest: int) -> None:
        """Register a descriptor with the poller and give it a place in `carriers`."""
        self.carriers += [None] * (fd + 1 - len(self.carriers))
        self._poller.register(fd, interest)

    def open(self, now: float) -> WireFailure | None:
        """Start to open a connection. Returns the failure if that is impossible."""
        try:
            if self._context is None:
                connection = ClientConnection(self._address)
            else:
                connection = TlsConnection(self._address, self._context, self._server_name)
        except WireFailure as failure:
            self.refused += 1
            return failure
        self.opened += 1
        fd = connection.sock.fileno()
        self.connecting[fd] = connection
        self._deadlines.append((now + self._connect_timeout_s, connection))
        self.watch(fd, connection.interest | select.EPOLLOUT)
        return None

    def handle_event(self, fd: int) -> WireFailure | None:
        """Handle a poll event of a connection that carries no request. Returns the failure if connecting failed."""
        if (connection := self.connecting.get(fd)) is not None:
            return self._connect_further(fd, connection)
        if (connection := self.idle.get(fd)) is not None and not connection.survives_idle_event():
            # the server closed it or violates the protocol
            del self.idle[fd]
            self._closed_while_idle += not connection.fresh
            self._close(connection)
        return None

    def _connect_further(self, fd: int, connection: ClientConnection) -> WireFailure | None:
        try:
            done = connection.finish_connecting()
        except WireFailure as failure:
            return self._give_up(fd, connection, failure)
        self._poller.modify(fd, connection.interest)
        if done:
            connection.ready_s = time.monotonic()
            self.idle[fd] = self.connecting.pop(fd)
        return None

    def _give_up(self, fd: int, connection: ClientConnection, failure: WireFailure) -> WireFailure:
        del self.connecting[fd]
        self._close(connection)
        self.refused += 1
        return failure

    def expire(self, now: float) -> list[WireFailure]:
        """Give up connections that were not made in time. Returns one failure for each."""
        failures = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, connection = self._deadlines.popleft()
            fd = connection.sock.fileno()
            if self.connecting.get(fd) is connection:
                failure = WireFailure("refused", f"no connection within {self._connect_timeout_s:g} s")
                failures.append(self._give_up(fd, connection, failure))
        return failures

    def keep_spare(self, spare: int, room: int, now: float) -> WireFailure | None:
        """Open connections until `spare` wait for a request, at most `room` in all without one. Returns a failure."""
        waiting = len(self.idle) + len(self.connecting)
        for _ in range(min(spare, room) - waiting):
            if (failure := self.open(now)) is not None:
                return failure
        return None

    def take(self, index: int) -> ClientConnection:
        """Return an idle connection to carry this request. Raises KeyError when there is none."""
        fd, connection = self.idle.popitem()
        connection.index = index
        self.carriers[fd] = connection
        return connection

    def give_back(self, connection: ClientConnection) -> None:
        """Take back a connection whose answer is complete: it becomes idle, or is closed if it cannot be used again."""
        fd = connection.sock.fileno()
        self.carriers[fd] = None
        connection.index = -1
        connection.fresh = False
        self._answered += 1
        if connection.framing.close or connection.outgoing or self._server_closes_after_use():
            self._close(connection)
        else:
            self.idle[fd] = connection

    def _server_closes_after_use(self) -> bool:
        """Whether the server promises keep-alive and closes after each stream all the same, as llama.cpp's does."""
        return self._closed_while_idle >= STALE_MIN and 2 * self._closed_while_idle > self._answered

    def discard(self, connection: ClientConnection) -> None:
        """Close a connection whose request ended early."""
        self.carriers[connection.sock.fileno()] = None
        connection.index = -1
        self._close(connection)

    def discard_stale(self, connection: ClientConnection, failure: WireFailure, sent_s: float) -> bool:
        """Close the connection if the server closed it while it was idle, and return whether that was so. The request on it, sent
        at `sent_s`, can be sent again: the server never took it, and the failure is not the server's fault."""
        unanswered = not (connection.received or connection.held)
        young = connection.fresh and sent_s - connection.ready_s < UNUSED_S
        if young or not unanswered or failure.outcome not in ("closed", "reset"):
            return False
        self._closed_while_idle += not connection.fresh
        self.discard(connection)
        return True

    def _close(self, connection: ClientConnection) -> None:
        self._poller.unregister(connection.sock.fileno())
        connection.close()

    def close(self) -> None:
        """Close every socket."""
        carrying = [connection for connection in self.carriers if connection is not None]
        for connection in [*self.connecting.values(), *self.idle.values(), *carrying]:
            connection.close()
