"""A server that means harm: each manner answers a request in its own way. Runs in threads of the test's process."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
FLOOD = b"x" * 65_536
FLOOD_BYTES = 1 << 30
"""What a flood would send if it were let: more than any client may keep."""
SLOW_S = 60.0


def event(text: str) -> bytes:
    data = b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


END = (
    chunk(b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}\n\n')
    + chunk(b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}\n\n')
    + chunk(b"data: [DONE]\n\n")
    + b"0\r\n\r\n"
)
ANSWER = HEAD + event("a ") + event("b ") + event("c ") + END


def flood(connection: socket.socket, head: bytes, part: bytes = FLOOD) -> None:
    connection.sendall(head)
    for _ in range(FLOOD_BYTES // len(part)):
        connection.sendall(part)


def drip(connection: socket.socket, head: bytes, part: bytes = b"x") -> None:
    connection.sendall(head)
    for _ in range(int(SLOW_S / 0.05)):
        connection.sendall(part)
        time.sleep(0.05)


def bomb() -> bytes:
    return gzip.compress(bytes(64 << 20))


def nested(depth: int) -> bytes:
    return b'{"error": ' + b'{"a": ' * depth + b"1" + b"}" * depth + b"}"


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def say(data: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(data)


def say_and_close(data: bytes) -> Callable[[socket.socket], None]:
    def manner(connection: socket.socket) -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_RDWR)

    return manner


def byte_by_byte(connection: socket.socket) -> None:
    for byte in ANSWER:
        connection.sendall(bytes([byte]))


def chunk_a_byte(connection: socket.socket) -> None:
    data = b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "slow"}}]}).encode() + b"\n\n"
    connection.sendall(HEAD + b"".join(chunk(data[i : i + 1]) for i in range(len(data))) + END)


def cut_in_a_chunk(connection: socket.socket) -> None:
    connection.sendall(HEAD + event("a ") + b"40\r\ndata: {")
    reset(connection)


def silent(connection: socket.socket) -> None:
    time.sleep(SLOW_S)


def steady(connection: socket.socket) -> None:
    connection.sendall(HEAD)
    for _ in range(20):
        connection.sendall(event("a "))
        time.sleep(0.05)
    connection.sendall(END)


MANNERS: dict[str, tuple[Callable[[socket.socket], None], set[str]]] = {
    "honest": (say(ANSWER), {"ok"}),
    "endless headers": (lambda c: flood(c, b"HTTP/1.1 200 OK\r\n", b"X-More: yes\r\n" * 4096), {"protocol"}),
    "one endless header": (lambda c: flood(c, b"HTTP/1.1 200 OK\r\nX-Long: "), {"protocol"}),
    "endless interim answers": (lambda c: flood(c, b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2048), {"protocol"}),
    "endless body without a line end": (lambda c: flood(c, PLAIN + b"\r\n"), {"protocol"}),
    "endless line of a stream": (lambda c: flood(c, HEAD, chunk(FLOOD)), {"protocol"}),
    "endless events": (lambda c: flood(c, HEAD, event("a ") * 512), {"protocol"}),
    "a chunk of 2**59 bytes": (lambda c: flood(c, HEAD + b"7ffffffffffffff\r\n"), {"protocol"}),
    "a chunk size of 5000 digits": (say(HEAD + b"f" * 5000 + b"\r\n"), {"protocol"}),
    "a negative chunk": (say(HEAD + b"-5\r\nhello\r\n"), {"protocol"}),
    "a content-length of 5000 digits": (say(PLAIN + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nx"), {"protocol"}),
    "a huge content-length": (say_and_close(PLAIN + b"Content-Length: 99999999999999\r\n\r\nx"), {"truncated"}),
    "a negative content-length": (say(PLAIN + b"Content-Length: -1\r\n\r\nx"), {"protocol"}),
    "a status of 5000 digits": (say(b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n"), {"protocol"}),
    "no HTTP": (say(b"SSH-2.0-OpenSSH_9.6\r\n" * 8), {"protocol"}),
    "a gzip bomb": (
        lambda c: c.sendall(PLAIN + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(bomb()), bomb())),
        {"protocol"},
    ),
    "invalid UTF-8": (say(HEAD + chunk(b'data: {"choices": [{"delta": {"content": "\xff\xfe\xc0"}}]}\n\n') + END), {"ok"}),
    "half of a surrogate pair": (
        say(
            HEAD
            + chunk(b'data: {"choices": [{"delta": {"content": "\\ud800"}, "finish_reason": "\\udfff"}]}\n\n')
            + chunk(b"data: [DONE]\n\n0")
            + b"0\r\n\r\n"
        ),
        {"ok", "stream_error"},
    ),
    "more tokens than a number holds": (
        say(
            HEAD
            + event("a ")
            + chunk(b'data: {"usage": {"prompt_tokens": 1099511627776, "completion_tokens": 1%s}}\n\n' % (b"0" * 60))
            + chunk(b"data: [DONE]\n\n")
            + b"0\r\n\r\n"
        ),
        {"ok"},
    ),
    "an error nested 1020 deep": (say(HEAD + chunk(b"data: " + nested(1020) + b"\n\n") + END), {"stream_error"}),
    "an error nested 100,000 deep": (say(HEAD + chunk(b"data: " + nested(100_000) + b"\n\n") + END), {"stream_error"}),
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
    "a slow body": (lambda c: drip(c, HEAD, chunk(b":")), {"timeout"}),
    "silence": (silent, {"timeout"}),
}  # fmt: skip
"""Name -> (what it does, the outcomes that its record may have)."""


class Hostile:
    """Serves one model. `manner(number, method, path)` names what a request is answered with; null for an honest answer.

    `asked` lists what was asked, in order: (method, path, name of the manner).
    """

    MODELS = json.dumps({"object": "list", "data": [{"id": "tiny"}]}).encode()

    def __init__(self, manner: Callable[[int, str, str], str | None], host: str = "127.0.0.1", port: int = 0) -> None:
        self.manner = manner
        self.asked: list[tuple[str, str, str]] = []
        self.lock = threading.Lock()
        self.listener = socket.create_server((host, port), backlog=256)
        self.url = f"http://{host}:{self.listener.getsockname()[1]}/v1"
        self.open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in [self.listener, *self.open]:
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            rest = b""
            while True:
                while b"\r\n\r\n" not in rest:
                    part = connection.recv(65_536)
                    if not part:
                        return
                    rest += part
                head, _, rest = rest.partition(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                length = next((int(x.split(":")[1]) for x in lines if x.lower().startswith("content-length:")), 0)
                while len(rest) < length:
                    rest += connection.recv(65_536)
                rest = rest[length:]
                method, path, _ = lines[0].split(" ")
                with self.lock:
                    name = self.manner(len(self.asked), method, path)
                    self.asked.append((method, path, name or "honest"))
                if name is not None:
                    MANNERS[name][0](connection)
                elif method == "GET":
                    connection.sendall(
                        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(self.MODELS) + self.MODELS
                    )
                else:
                    connection.sendall(ANSWER)


if __name__ == "__main__":
    # a plain server in a network of its own: MANNER HOST PORT
    Hostile(lambda number, method, path: sys.argv[1] if method == "POST" else None, sys.argv[2], int(sys.argv[3]))
    time.sleep(600)
