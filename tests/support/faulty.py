"""An endpoint that answers well until a moment, and then has one fault until it is repaired.

Each fault is what an operator meets: a server that dies, hangs, refuses, or answers with something that is no answer.
"""

import socket
import ssl
import time
from collections.abc import Callable

from support.hostile import MODELS, Behaviour, drip, say, silent
from support.servers import (
    LAST_CHUNK,
    SSE_HEAD,
    Abandon,
    Received,
    ScriptedServer,
    chunk,
    content_event,
    reply,
    reset,
    stream_end,
)

Wrap = Callable[[socket.socket], socket.socket]

HTML = "<!doctype html><html><head><title>Sign in</title></head><body>Sign in</body></html>"
PLAIN = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n{}"


def answer(request: Received) -> bytes:
    """Return an honest answer of as many tokens as were asked for."""
    tokens = int(request.json()["max_tokens"])
    return SSE_HEAD + content_event(" word") * tokens + stream_end(output_tokens=tokens)


def _page(kind: str, body: str) -> Behaviour:
    return say(PLAIN.format(kind, len(body), body).encode())


def _cut(connection: socket.socket) -> None:
    connection.sendall(SSE_HEAD + content_event("a "))
    reset(connection)


def _status(status: int, **headers: str) -> Behaviour:
    return say(reply(status, {"error": {"message": f"this is a {status}"}}, **headers))


FAULTS: dict[str, Behaviour] = {
    "hangs": silent,
    **{str(status): _status(status) for status in (401, 403, 404, 429, 500, 503)},
    "redirects": _status(307, Location="http://127.0.0.1:1/v1/chat/completions"),
    "is not HTTP": say(b"SSH-2.0-OpenSSH_9.6\r\n" * 8),
    "an HTML page": _page("text/html", HTML),
    "truncated JSON": _page("application/json", '{"object": "list", "data": [{"id"'),
    "a wrong content type": _page("image/png", "\x00" * 64),
    "an empty body": say(reply(200, b"")),
    "a stream without data": say(SSE_HEAD + chunk(b": hello\n\n") + LAST_CHUNK),
    "a stream of comments without an end": lambda c: drip(c, SSE_HEAD, chunk(b": ping\n\n")),
    "a stream of tokens without an end": lambda c: drip(c, SSE_HEAD, content_event("a ")),
    "resets": reset,
    "resets in mid-stream": _cut,
}
"""Name -> what it does to a connection that has sent a request."""

OF_THE_SERVER = ("dies", "speaks TLS", "speaks no TLS")
"""Faults of the server itself: nobody listens any more, or it has changed its protocol."""


class FaultyEndpoint:
    """Answer `good` generations well, and then have a fault, until `repair`. The fault is one of FAULTS or OF_THE_SERVER.

    With `every`, only each so-manieth generation has it, from the first. `tls` turns accepted sockets into those of TLS; with
    it the endpoint's address is one of https unless the fault is that it speaks TLS. `generations` counts all requests for one.
    """

    def __init__(self, fault: str, good: int = 0, *, every: int = 0, tls: Wrap | None = None) -> None:
        self.fault, self.good, self.every, self.tls = fault, good, every, tls
        self.generations = 0
        self.repaired = False
        self.port = 0
        self.server = self._listen()
        self.port = self.server.port
        if not good and not every:
            self._break()

    @property
    def base_url(self) -> str:
        secure = self.tls is not None and self.fault != "speaks TLS"
        return f"{'https' if secure else 'http'}://127.0.0.1:{self.port}/v1"

    @property
    def broken(self) -> bool:
        """Whether a request now meets the fault."""
        if self.repaired:
            return False
        return not self.generations % self.every if self.every else self.generations > self.good or not self.good

    def repair(self) -> None:
        """Answer well from now on, at the same address."""
        self.repaired = True
        self.server.close()
        self.server = self._listen()

    def close(self) -> None:
        self.server.close()

    def _listen(self) -> ScriptedServer:
        deadline = time.monotonic() + 60
        while True:
            try:
                return ScriptedServer(self._answer, port=self.port, wrap=self._wrap if self.tls else None)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _wrap(self, connection: socket.socket) -> socket.socket:
        assert self.tls is not None
        if (self.fault == "speaks TLS") == self.broken:
            try:
                return self.tls(connection)
            except ssl.SSLError as error:
                raise OSError(str(error)) from error
        return connection

    def _break(self) -> None:
        """Begin a fault of the server itself: it hears no more, or in another protocol, and its connections are gone."""
        if self.fault == "dies":
            self.server.close()
        elif self.fault in OF_THE_SERVER:
            for one in list(self.server.sockets):
                one.close()

    def _answer(self, connection: socket.socket, request: Received) -> None:
        with self.server.lock:
            self.generations += request.method == "POST"
            broken = self.broken
        if not broken:
            known = MODELS if request.path.endswith("/models") else None
            whole = answer(request) if request.method == "POST" else reply(200, known) if known else reply(404)
            connection.sendall(whole)
        elif self.fault in OF_THE_SERVER:
            self._break()
            raise Abandon
        else:
            FAULTS[self.fault](connection)
