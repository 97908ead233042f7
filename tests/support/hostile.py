"""A server that means harm: each behaviour answers a request in its own way.

python -m support.hostile BEHAVIOUR HOST PORT      serves one behaviour to every POST
"""

import gzip
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import cache

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

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
FLOOD = b"x" * 65_536
FLOOD_BYTES = 1 << 30
"""What a flood sends if it is let: more than any client may keep."""

MODELS = {"object": "list", "data": [{"id": "tiny"}]}
END = stream_end()
ANSWER = SSE_HEAD + content_event("a ") + content_event("b ") + content_event("c ") + END

Behaviour = Callable[[socket.socket], None]


def flood(connection: socket.socket, head: bytes, part: bytes = FLOOD) -> None:
    """Send far more than a client may keep."""
    connection.sendall(head)
    for _ in range(FLOOD_BYTES // len(part)):
        connection.sendall(part)


def drip(connection: socket.socket, head: bytes, part: bytes = b"x") -> None:
    """Send a little at a time until the client gives up: it never ends by itself."""
    connection.sendall(head)
    while True:
        connection.sendall(part)
        time.sleep(0.05)


def silent(connection: socket.socket) -> None:
    """Leave the connection open and never answer."""
    raise Abandon


@cache
def bomb() -> bytes:
    """Return 64 MiB of zeros, compressed."""
    return gzip.compress(bytes(64 << 20))


def nested(depth: int) -> bytes:
    return b'{"error": ' + b'{"a": ' * depth + b"1" + b"}" * depth + b"}"


def say(data: bytes) -> Behaviour:
    """Return a behaviour that sends these bytes."""
    return lambda connection: connection.sendall(data)


def say_and_close(data: bytes) -> Behaviour:
    """Return a behaviour that sends these bytes and closes the connection."""

    def behave(connection: socket.socket) -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_RDWR)

    return behave


def byte_by_byte(connection: socket.socket) -> None:
    """Send each byte of an honest answer alone."""
    for byte in ANSWER:
        connection.sendall(bytes([byte]))


def chunk_a_byte(connection: socket.socket) -> None:
    """Send each byte of an event in a chunk of its own."""
    data = b'data: {"choices": [{"index": 0, "delta": {"content": "slow"}}]}\n\n'
    connection.sendall(SSE_HEAD + b"".join(chunk(data[i : i + 1]) for i in range(len(data))) + END)


def cut_in_a_chunk(connection: socket.socket) -> None:
    connection.sendall(SSE_HEAD + content_event("a ") + b"40\r\ndata: {")
    reset(connection)


def steady(connection: socket.socket) -> None:
    """Answer honestly, within a second."""
    connection.sendall(SSE_HEAD)
    for _ in range(20):
        connection.sendall(content_event("a "))
        time.sleep(0.05)
    connection.sendall(END)


BEHAVIOURS: dict[str, tuple[Behaviour, set[str]]] = {
    "honest": (say(ANSWER), {"ok"}),
    "endless headers": (lambda c: flood(c, b"HTTP/1.1 200 OK\r\n", b"X-More: yes\r\n" * 4096), {"protocol"}),
    "one endless header": (lambda c: flood(c, b"HTTP/1.1 200 OK\r\nX-Long: "), {"protocol"}),
    "endless interim answers": (lambda c: flood(c, b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2048), {"protocol"}),
    "endless body without a line end": (lambda c: flood(c, PLAIN + b"\r\n"), {"protocol"}),
    "endless line of a stream": (lambda c: flood(c, SSE_HEAD, chunk(FLOOD)), {"protocol"}),
    "endless events": (lambda c: flood(c, SSE_HEAD, content_event("a ") * 512), {"protocol"}),
    "a chunk of 2**59 bytes": (lambda c: flood(c, SSE_HEAD + b"7ffffffffffffff\r\n"), {"protocol"}),
    "a chunk size of 5000 digits": (say(SSE_HEAD + b"f" * 5000 + b"\r\n"), {"protocol"}),
    "a negative chunk": (say(SSE_HEAD + b"-5\r\nhello\r\n"), {"protocol"}),
    "a content-length of 5000 digits": (say(PLAIN + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nx"), {"protocol"}),
    "a huge content-length": (say_and_close(PLAIN + b"Content-Length: 99999999999999\r\n\r\nx"), {"truncated"}),
    "a negative content-length": (say(PLAIN + b"Content-Length: -1\r\n\r\nx"), {"protocol"}),
    "a status of 5000 digits": (say(b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n"), {"protocol"}),
    "no HTTP": (say(b"SSH-2.0-OpenSSH_9.6\r\n" * 8), {"protocol"}),
    "a gzip bomb": (
        lambda c: c.sendall(PLAIN + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(bomb()), bomb())),
        {"protocol"},
    ),
    "invalid UTF-8": (say(SSE_HEAD + chunk(b'data: {"choices": [{"delta": {"content": "\xff\xfe\xc0"}}]}\n\n') + END), {"ok"}),
    "half of a surrogate pair": (
        say(
            SSE_HEAD
            + chunk(b'data: {"choices": [{"delta": {"content": "\\ud800"}, "finish_reason": "\\udfff"}]}\n\n')
            + chunk(b"data: [DONE]\n\n0")
            + LAST_CHUNK
        ),
        {"ok", "stream_error"},
    ),
    "more tokens than a number holds": (
        say(
            SSE_HEAD
            + content_event("a ")
            + chunk(b'data: {"usage": {"prompt_tokens": 1099511627776, "completion_tokens": 1%s}}\n\n' % (b"0" * 60))
            + chunk(b"data: [DONE]\n\n")
            + LAST_CHUNK
        ),
        {"ok"},
    ),
    "an error nested 1020 deep": (say(SSE_HEAD + chunk(b"data: " + nested(1020) + b"\n\n") + END), {"stream_error"}),
    "an error nested 100,000 deep": (say(SSE_HEAD + chunk(b"data: " + nested(100_000) + b"\n\n") + END), {"stream_error"}),
    "a redirect": (
        say(b"HTTP/1.1 307 Moved\r\nLocation: http://192.0.2.1/v1/chat/completions\r\nContent-Length: 0\r\n\r\n"),
        {"http_error"},
    ),
    "steady": (steady, {"ok"}),
    "byte by byte": (byte_by_byte, {"ok"}),
    "a chunk a byte": (chunk_a_byte, {"ok"}),
    "two answers to one request": (say(ANSWER + ANSWER), {"ok"}),
    "cut in a chunk": (cut_in_a_chunk, {"reset"}),
    "closed at once": (lambda c: c.shutdown(socket.SHUT_RDWR), {"truncated"}),
    "slow headers": (lambda c: drip(c, b"HTTP/1.1 200 OK\r\nX-Slow: "), {"timeout"}),
    "a slow body": (lambda c: drip(c, SSE_HEAD, chunk(b":")), {"timeout"}),
    "silence": (silent, {"timeout"}),
}  # fmt: skip
"""Name -> (what it does, the outcomes that its record may have)."""


Choose = Callable[[int, str, str], str | None]


class HostileServer(ScriptedServer):
    """Serve one model. `choose(number, method, path)` names the behaviour for a request; None for an honest answer, which with
    `only_load` all get that are no request of a load.

    `asked` lists the others in order: (method, path, name of the behaviour).
    """

    def __init__(self, choose: Choose, *, host: str = "127.0.0.1", port: int = 0, only_load: bool = False) -> None:
        self.choose, self.only_load = choose, only_load
        self.asked: list[tuple[str, str, str]] = []
        self.choosing = threading.Lock()
        super().__init__(self._behave, host=host, port=port)

    def _behave(self, connection: socket.socket, request: Received) -> None:
        if self.only_load and request.method == "POST" and "x-request-id" not in request.headers:
            # no request of the load: only asks whether the server answers
            connection.sendall(ANSWER)
            return
        with self.choosing:
            name = self.choose(len(self.asked), request.method, request.path)
            self.asked.append((request.method, request.path, name or "honest"))
        if name is not None:
            BEHAVIOURS[name][0](connection)
        elif request.method == "GET":
            connection.sendall(reply(200, MODELS))
        else:
            connection.sendall(ANSWER)


if __name__ == "__main__":
    HostileServer(
        lambda number, method, path: sys.argv[1] if method == "POST" else None, host=sys.argv[2], port=int(sys.argv[3])
    ).closed.wait()
