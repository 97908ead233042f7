"""The connection pool on real sockets: open, reuse, refuse, replace what is stale."""

from __future__ import annotations

import select
import socket
import time

import pytest

from servebench.contracts.exchange import Target
from servebench.load.client.connection import WireFailure
from servebench.load.client.connection_pool import STALE_MIN, UNUSED_S, ConnectionPool
from support.waiting import wait_until

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CLOSING = ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
CLOSED = WireFailure("closed", "gone")


class Loopback:
    """A listening socket, and a pool of connections to it."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.poller = select.epoll()
        target = Target(host="127.0.0.1", port=self.listener.getsockname()[1])
        self.pool = ConnectionPool(target, self.poller, connect_timeout_s=10.0)
        # the first connection is the probe for a reachable address
        self.accepted = [self.listener.accept()[0]]

    def settle(self, condition):
        """Handle events of the pool until the condition holds."""

        def step():
            for fd, _ in self.poller.poll(0.05):
                self.pool.handle_event(fd)
            return condition()

        wait_until(step)

    def carry(self, index=0):
        """Return a connection that carries a request."""
        if not self.pool.idle:
            assert self.pool.open(0.0) is None
            self.settle(lambda: self.pool.idle)
        connection = self.pool.take(index)
        if connection.fresh:
            self.accepted.append(self.listener.accept()[0])
        return connection

    def close(self):
        self.pool.close()
        self.poller.close()
        for opened in (self.listener, *self.accepted):
            opened.close()


@pytest.fixture
def loopback():
    it = Loopback()
    yield it
    it.close()


def test_a_connection_is_reused_after_a_complete_answer(loopback):
    connection = loopback.carry(7)
    assert (connection.index, loopback.pool.carriers[connection.sock.fileno()]) == (7, connection)
    assert connection.framing.feed(ANSWER)
    loopback.pool.give_back(connection)
    assert (connection.index, connection.fresh) == (-1, False)
    assert not any(loopback.pool.carriers)
    assert loopback.pool.take(8) is connection
    assert loopback.pool.opened == 1


def test_a_connection_that_the_server_will_close_is_not_reused(loopback):
    connection = loopback.carry()
    assert connection.framing.feed(CLOSING)
    loopback.pool.give_back(connection)
    assert connection.sock.fileno() == -1
    assert not loopback.pool.idle


def test_an_idle_connection_that_the_server_closes_leaves_the_pool(loopback):
    connection = loopback.carry()
    connection.framing.feed(ANSWER)
    loopback.pool.give_back(connection)
    loopback.accepted[-1].close()
    loopback.settle(lambda: not loopback.pool.idle)


def test_only_an_unanswered_request_on_a_connection_that_waited_can_be_sent_again(loopback):
    fresh = loopback.carry()
    assert not loopback.pool.discard_stale(fresh, CLOSED, fresh.ready_s + UNUSED_S / 2)
    fresh.framing.feed(ANSWER)
    loopback.pool.give_back(fresh)
    used = loopback.carry()
    assert not loopback.pool.discard_stale(used, WireFailure("tls", "bad record"), used.ready_s)
    used.held.append(b"stamp")
    assert not loopback.pool.discard_stale(used, CLOSED, used.ready_s)
    used.held.clear()
    assert loopback.pool.discard_stale(used, CLOSED, used.ready_s)
    assert used.sock.fileno() == -1
    assert not any(loopback.pool.carriers)


def test_a_request_on_a_connection_that_waited_unused_can_be_sent_again(loopback):
    """Servers close what sends nothing for a few seconds; that says nothing of how they treat used connections."""
    before_s = time.monotonic()
    unused = loopback.carry()
    # the time that connecting took does not count: a server that accepts late and closes would be asked for ever
    assert before_s <= unused.ready_s <= time.monotonic()
    assert loopback.pool.discard_stale(unused, CLOSED, unused.ready_s + UNUSED_S)
    assert unused.sock.fileno() == -1


def test_reuse_ends_when_the_server_closes_most_connections_after_use(loopback):
    for _ in range(STALE_MIN):
        connection = loopback.carry()
        connection.framing.feed(ANSWER)
        loopback.pool.give_back(connection)
        stale = loopback.carry()
        assert loopback.pool.discard_stale(stale, CLOSED, stale.ready_s)
    connection = loopback.carry()
    connection.framing.feed(ANSWER)
    loopback.pool.give_back(connection)
    assert not loopback.pool.idle


def test_spare_connections_are_opened_up_to_the_room(loopback):
    assert loopback.pool.keep_spare(4, 3, 0.0) is None
    assert len(loopback.pool.connecting) == 3
    assert loopback.pool.keep_spare(4, 3, 0.0) is None
    assert loopback.pool.opened == 3


def test_connections_that_are_not_made_in_time_are_given_up(loopback):
    assert loopback.pool.open(0.0) is None
    assert loopback.pool.expire(9.9) == []
    (failure,) = loopback.pool.expire(10.0)
    assert failure.outcome == "refused"
    assert (loopback.pool.connecting, loopback.pool.refused) == ({}, 1)
    assert loopback.pool.expire(99.0) == []


def test_a_refused_connection_is_counted(loopback):
    loopback.listener.close()
    if (failure := loopback.pool.open(0.0)) is None:
        (fd,) = loopback.pool.connecting
        wait_until(lambda: loopback.poller.poll(0.05))
        failure = loopback.pool.handle_event(fd)
    assert failure.outcome == "refused"
    assert (loopback.pool.connecting, loopback.pool.refused) == ({}, 1)
