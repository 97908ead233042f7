"""One scripted HTTP server for all tests. A script answers each request, in JSON or byte by byte."""

import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Self

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class Abandon(Exception):
    """Raised by a script to leave its connection as it is, open and silent or reset."""


@dataclass(frozen=True)
class Received:
    """A request as the server read it. `number` counts all requests from 0; header names are in lower case."""

    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


Script = Callable[[socket.socket, Received], Any]
"""Answers one request. It returns (status, body) to send a reply of JSON, text or bytes; None if it wrote to the socket
itself and the connection stays; False to close the connection."""


@contextmanager
def refusing_port() -> Iterator[int]:
    """Yield a port that refuses connections, and that nobody else can take."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


_FIRST_PORT = 10_000 + 100 * (os.getpid() % 95)
_PORTS = cycle(range(_FIRST_PORT, _FIRST_PORT + 100))


def own_port() -> int:
    """Return a free port for a server that begins to listen later. Nobody else takes it meanwhile: it is below those that the
    system chooses, and another process of the tests has others."""
    for port in _PORTS:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError


class ScriptedServer:
    """Serve `script` on a free port, one thread a connection. `wrap` turns accepted sockets into others, for TLS.

    `requests` are those received so far. `most_in_flight` and `connections` count; `closed` is set when the server
    closes, so that a script can hold a request open with `server.closed.wait()`.
    """

    def __init__(
        self,
        script: Script,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        wrap: Callable[[socket.socket], socket.socket] | None = None,
    ) -> None:
        self.script, self.wrap = script, wrap
        self.listener = socket.create_server((host, port), backlog=1024)
        self.host, self.port = host, self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.requests: list[Received] = []
        self.in_flight = self.most_in_flight = self.connections = 0
        self.sockets: list[socket.socket] = []
        self.closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The server's address, without a path."""
        return f"http://{self.host}:{self.port}"

    @property
    def base_url(self) -> str:
        """The address of an OpenAI-like API at this server."""
        return f"{self.url}/v1"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.closed.set()
        with suppress(OSError):
            # a thread that waits in accept would still accept one connection
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.sockets.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, Abandon):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.wrap is not None:
                connection = self.wrap(connection)
                self.sockets.append(connection)
            used = False
            rest = b""
            while (read := _read_request(connection, rest)) is not None:
                (method, path, headers, body), rest = read
                with self.lock:
                    self.connections += not used
                    used = True
                    request = Received(len(self.requests), method, path, headers, body)
                    self.requests.append(request)
                    self.in_flight += 1
                    self.most_in_flight = max(self.most_in_flight, self.in_flight)
                try:
                    answer = self.script(connection, request)
                    if isinstance(answer, tuple):
                        connection.sendall(reply(*answer))
                finally:
                    with self.lock:
                        self.in_flight -= 1
                if answer is False:
                    break
            connection.close()


def _read_request(
    connection: socket.socket, rest: bytes
) -> tuple[tuple[str, str, dict[str, str], bytes], bytes] | None:
    while b"\r\n\r\n" not in rest:
        if not (part := connection.recv(65_536)):
            return None
        rest += part
    head, _, rest = rest.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("expect", "").lower() == "100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    length = int(headers.get("content-length", 0))
    while len(rest) < length:
        if not (part := connection.recv(65_536)):
            return None
        rest += part
    method, path, _ = first.split(" ")
    return (method, path, headers, rest[:length]), rest[length:]


def reply(status: int, body: object = b"", **headers: str) -> bytes:
    """Return a whole reply; `body` is bytes, text, or anything that JSON can write."""
    data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Status\r\n{more}Content-Length: {len(data)}\r\n\r\n".encode() + data


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(document: object) -> bytes:
    """Return a server-sent event in a chunk of its own."""
    return chunk(b"data: " + json.dumps(document).encode() + b"\n\n")


def content_event(text: str) -> bytes:
    """Return the event of a chat stream that carries this text."""
    return event({"choices": [{"index": 0, "delta": {"content": text}}]})


def stream_end(prompt_tokens: int = 9, output_tokens: int = 3) -> bytes:
    """Return how a chat stream ends: the reason, the usage, and what closes it."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
    return (
        event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        + event({"choices": [], "usage": {**usage, "total_tokens": prompt_tokens + output_tokens}})
        + chunk(b"data: [DONE]\n\n")
        + LAST_CHUNK
    )


def completion(text: str, *, finish_reason: str = "stop", usage: tuple[int, int] = (9, 1)) -> dict[str, Any]:
    """Return a chat completion that is not streamed; `usage` is (prompt tokens, output tokens)."""
    message = {"role": "assistant", "content": text}
    prompt, output = usage
    return {
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output},
    }


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    raise Abandon
