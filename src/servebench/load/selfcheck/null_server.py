"""A server that only records times: the self-check compares the client's times with them.

    python -m servebench.load.selfcheck.null_server TRUTH_FILE

Listens on 127.0.0.1 and prints its port; when its standard input closes, it writes the truth file and ends.
A request's path is `/INDEX/ITL_US/EVENTS`: the answer is EVENTS chunks of EVENT_BYTES, ITL_US apart, the first at once. It does
not matter if the server is late: the truth of a chunk is the moment just before it is handed to the kernel.
TRUTH_FILE is a sequence of i64, for each request: index, number of chunks, when the request reached the kernel (CLOCK_REALTIME
nanoseconds, stamped by the kernel where it can), then when each chunk was handed over.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
import sys
import time
from array import array
from collections import deque
from pathlib import Path

from servebench.load.client.connection import ANCILLARY_BYTES, SO_TIMESTAMPNS, TIMESPEC, raise_descriptor_limit
from servebench.protocol.framing import LAST_CHUNK, encode_chunk
from servebench.util.signals import leave_stopping_to_the_parent
from servebench.util.units import NS_PER_S, NS_PER_US

DATA = b"data: " + b"x" * 232 + b"\n\n"
EVENT = encode_chunk(DATA)
EVENT_BYTES = len(EVENT)
HEADER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BACKLOG = 4096
IDLE_S = 0.05
BURST = 256
"""Chunks sent before the sockets are polled again."""


class _NullStream:
    """One connection and its current answer."""

    __slots__ = ("due_ns", "itl_ns", "left", "sock", "truth")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.truth = array("q")
        self.itl_ns = self.due_ns = self.left = 0


class NullServer:
    """One thread, one epoll loop. All streams of a stage have the same gap, so a queue gives the next one that is due."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.streams: dict[int, _NullStream] = {}
        self.queue: deque[_NullStream] = deque()
        self.done: list[array[int]] = []
        self.poller = select.epoll()

    def serve(self, until: int) -> None:
        """Serve until the descriptor `until` reaches its end."""
        self.poller.register(self.listener, select.EPOLLIN)
        self.poller.register(until, select.EPOLLIN | select.EPOLLHUP)
        while True:
            wait_s = IDLE_S
            if self.queue:
                wait_s = min(IDLE_S, max(0.0, (self.queue[0].due_ns - time.time_ns()) / NS_PER_S))
            for descriptor, _ in self.poller.poll(wait_s):
                if descriptor == until:
                    return
                if descriptor == self.listener.fileno():
                    self._accept()
                else:
                    self._read_request(self.streams[descriptor])
            self._send_due()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self.listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if SO_TIMESTAMPNS is not None:
                    with contextlib.suppress(OSError):
                        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                self.streams[sock.fileno()] = _NullStream(sock)
                self.poller.register(sock.fileno(), select.EPOLLIN)

    def _read_request(self, stream: _NullStream) -> None:
        data, arrived_ns = b"", 0
        with contextlib.suppress(OSError):
            data, ancillary, _, _ = stream.sock.recvmsg(65_536, ANCILLARY_BYTES)
            if ancillary:
                seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
                arrived_ns = seconds * NS_PER_S + nanoseconds
        if not data:
            descriptor = stream.sock.fileno()
            self.poller.unregister(descriptor)
            del self.streams[descriptor]
            stream.sock.close()
            stream.left = 0
            return
        _, index, itl_us, events = data.split(b" ", 2)[1].split(b"/")
        stream.itl_ns, stream.left = int(itl_us) * NS_PER_US, int(events)
        stream.truth = array("q", (int(index), stream.left, arrived_ns or time.time_ns()))
        stream.due_ns = time.time_ns()
        self._send(stream, HEADER + EVENT)

    def _send_due(self) -> None:
        queue = self.queue
        for _ in range(BURST):
            if not queue or queue[0].due_ns > time.time_ns():
                return
            stream = queue.popleft()
            if stream.left:
                self._send(stream, EVENT)

    def _send(self, stream: _NullStream, data: bytes) -> None:
        stream.left -= 1
        if not stream.left:
            data += LAST_CHUNK
        stream.truth.append(time.time_ns())
        try:
            stream.sock.send(data)
        except OSError:
            # the client fell behind or closed: this answer has no truth
            stream.left = 0
            return
        if stream.left:
            stream.due_ns += stream.itl_ns
            self.queue.append(stream)
        else:
            self.done.append(stream.truth)

    def close(self) -> None:
        """Close every socket."""
        for stream in self.streams.values():
            stream.sock.close()
        self.listener.close()
        self.poller.close()


def main() -> int:
    """Serve until standard input closes, then write the truth file."""
    leave_stopping_to_the_parent()
    raise_descriptor_limit()
    server = NullServer()
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        server.serve(sys.stdin.fileno())
    finally:
        server.close()
    with Path(sys.argv[1]).open("wb") as file:
        for truth in server.done:
            truth.tofile(file)
    return os.EX_OK


if __name__ == "__main__":
    raise SystemExit(main())
