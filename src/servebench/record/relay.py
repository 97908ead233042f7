"""Passes HTTP/1 on between clients and one service, and hands over a copy of each exchange that is to be recorded.

Each connection of a client has one of its own to the service; what one end closes is closed at the other. Requests are read with
h11, because their heads change (RFC 9110 part 7.6). The body of a response goes out in its own framing before anything reads it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import h11

from servebench.protocol.framing import HEADER_BYTES_MAX, LAST_CHUNK, Framing, FramingError, encode_chunk

CONNECT_TIMEOUT_S = 30.0
BAD_GATEWAY = b"""HTTP/1.1 502 Bad Gateway\r
Content-Type: application/json\r
Content-Length: 92\r
Connection: close\r
\r
{"error": {"message": "servebench record cannot reach the service", "type": "bad_gateway"}}
"""
HOP_BY_HOP = b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer upgrade".split()
"""Headers of one connection, with those that `Connection` names; Transfer-Encoding is passed on, because the framing is."""
REPLACED = (b"host", b"accept-encoding")
"""Headers of requests: the service has another name, and an answer that is compressed cannot be counted."""


@dataclass(slots=True)
class Passed:
    """A request and its answer, head included; without `recorded` no copy of them. Stamps are CLOCK_REALTIME nanoseconds."""

    method: bytes
    path: str
    recorded: bool
    started_ns: int
    body: list[bytes] = field(default_factory=list)
    reads: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass(frozen=True)
class Service:
    """The service, what hears of exchanges that have ended or that the client cancelled, and which paths are recorded."""

    host: str
    port: int
    authority: bytes
    tls: ssl.SSLContext | None
    hand_over: Callable[[Passed, bool], None]
    records: Callable[[str], bool]


class PairedSide(asyncio.Protocol):
    """One of two connections that belong together; if one cannot take more, nothing is read from the other."""

    transport: asyncio.Transport
    peer: PairedSide | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport. A token must not wait for the acknowledgement of the one before (Nagle's algorithm)."""
        self.transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def pause_writing(self) -> None:
        """Stop reading from the peer."""
        if self.peer is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read from the peer again."""
        if self.peer is not None:
            self.peer.transport.resume_reading()


class ClientSide(PairedSide):
    """The connection of a client. `running` are the requests whose answers have not ended."""

    def __init__(self, service: Service) -> None:
        self._service, self._http, self._chunked = service, _reader(), False
        self._connecting: asyncio.Task[None] | None = None
        self._arrived_ns = 0
        self.running: deque[Passed] = deque()

    def data_received(self, data: bytes) -> None:
        """Pass on requests or parts of one. The first opens the connection to the service: some have few, and an idle client
        needs none."""
        self._arrived_ns = time.time_ns()
        if self.peer is not None:
            self._pass(data)
        elif self._connecting is None:
            self.transport.pause_reading()
            self._connecting = asyncio.get_running_loop().create_task(self._connect(self._service, data))

    async def _connect(self, to: Service, data: bytes) -> None:
        with suppress(OSError):
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = asyncio.get_running_loop().create_connection
                _, self.peer = await connection(lambda: ServerSide(self), to.host, to.port, ssl=to.tls)
        if self.peer is not None:
            self._pass(data)
        else:
            # not closed: that would reset the connection, and the answer with it
            self.transport.write(BAD_GATEWAY)
            self.transport.write_eof()
        self.transport.resume_reading()

    def _pass(self, data: bytes) -> None:
        out: list[bytes] = []
        self._http.receive_data(data)
        try:
            while (event := self._http.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Request):
                    out.append(self._begin(event))
                elif isinstance(event, h11.Data):
                    out.append(encode_chunk(event.data) if self._chunked else event.data)
                    if self.running and self.running[-1].recorded:
                        self.running[-1].body.append(bytes(event.data))
                elif event is h11.PAUSED:
                    pipelined, self._http = self._http.trailing_data[0], _reader()
                    if pipelined:
                        self._http.receive_data(pipelined)
                elif self._chunked:
                    out.append(LAST_CHUNK)
        except h11.RemoteProtocolError:
            self.transport.close()
        if self.peer is not None:
            self.peer.transport.write(b"".join(out))

    def _begin(self, request: h11.Request) -> bytes:
        path, headers = request.target.decode("ascii"), request.headers.raw_items()
        recorded = request.method == b"POST" and self._service.records(path)
        self.running.append(Passed(request.method, path, recorded, self._arrived_ns))
        self._chunked = any(name.lower() == b"transfer-encoding" for name, _ in headers)
        kept = [(name, value) for name, value in headers if name.lower() not in REPLACED]
        first = b"%s %s HTTP/%s" % (request.method, request.target, request.http_version)
        return _head(first, [(b"Host", self._service.authority), *kept])

    def end(self, *, cancelled: bool = False) -> None:
        """Hand over the exchange that has ended."""
        passed = self.running.popleft()
        if passed.recorded:
            # behind the tokens that have arrived at the same time
            asyncio.get_running_loop().call_soon(self._service.hand_over, passed, cancelled)

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel what runs at the service."""
        while self.running:
            self.end(cancelled=True)
        if self.peer is not None:
            self.peer.transport.abort()


class ServerSide(PairedSide):
    """The connection to the service for one client."""

    peer: ClientSide

    def __init__(self, client: ClientSide) -> None:
        self.peer, self._framing, self._start, self._followed = client, Framing(), b"", True

    def data_received(self, data: bytes) -> None:
        """Pass on a part of a response at once, then see whether the response has ended."""
        stamp_ns, running = time.time_ns(), self.peer.running
        if self._framing.head is None and self._followed:
            data = self._with_own_head(data)
        self.peer.transport.write(data)
        if not (data and running and self._followed):
            return
        if running[0].recorded:
            running[0].reads.append((stamp_ns, data))
        # what is not HTTP/1 is passed on as it is, until the service closes
        self._followed = False
        with suppress(FramingError):
            ended = self._framing.feed(data) or (running[0].method == b"HEAD" and self._framing.head is not None)
            self._followed = True
            if ended:
                self._framing.reset()
                self.peer.end()

    def _with_own_head(self, data: bytes) -> bytes:
        """Return the beginning of a response with a head for the client; empty while the head is not complete."""
        head, end, rest = (self._start + data).partition(b"\r\n\r\n")
        if not end and len(head) < HEADER_BYTES_MAX:
            self._start = head
            return b""
        self._start = b""
        first, *lines = head.split(b"\r\n")
        own = _head(first, [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)])
        # behind an interim response (1xx) comes another head
        return own + (self._with_own_head(rest) if first[9:10] == b"1" and rest else rest)

    def connection_lost(self, error: Exception | None) -> None:
        """Close the client's connection behind what was passed on; an answer that ends like this is complete or cut."""
        if not self.peer.transport.is_closing():
            self.peer.transport.write(self._start)
            while self.peer.running:
                self.peer.end()
            self.peer.transport.close()


def _head(first: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a head for the next connection: without the headers of this one, but with its wish to be kept or closed."""
    headers = list(headers)
    words = b",".join(value.lower() for name, value in headers if name.lower() == b"connection").split(b",")
    options = {word.strip() for word in words}
    dropped = {*HOP_BY_HOP, *options} - {b"content-length", b"transfer-encoding"}
    kept = [b"%s: %s" % header for header in headers if header[0].lower() not in dropped]
    kept += [b"Connection: " + option for option in (b"close", b"keep-alive") if option in options]
    return b"\r\n".join([first, *kept, b"", b""])


def _reader() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)
