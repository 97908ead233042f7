"""A small server of threads that does what a test tells it, byte for byte."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from contextlib import suppress

import pytest

from servebench.contracts.exchange import PlannedRequest, PointPlan, Target
from servebench.load.client.spool_reader import read_spool
from servebench.load.coordinator.drive import drive
from servebench.load.coordinator.share import worker_spools

HEADER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text: str) -> bytes:
    return chunk(b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n")


def stream(words: int = 3) -> bytes:
    return HEADER + b"".join(event(f"w{i} ") for i in range(words)) + chunk(b"data: [DONE]\n\n") + LAST


class Hang(Exception):
    """Raised by a script that wants its connection left open and silent."""


class Scripted:
    """`script(connection, number, request)` answers one request; `number` counts all requests from 0."""

    def __init__(self, script, wrap=None):
        self.script, self.wrap = script, wrap
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.seen: list[str] = []
        self.open = self.most_open = self.connections = 0
        self.sockets: list[socket.socket] = []
        self.over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.sockets.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with suppress(OSError, Hang):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.wrap is not None:
                connection = self.wrap(connection)
                self.sockets.append(connection)
            used = False
            while request := self._request(connection):
                with self.lock:
                    self.connections += not used
                    used = True
                    number = len(self.seen)
                    self.seen.append(json.loads(request)["id"])
                    self.open += 1
                    self.most_open = max(self.most_open, self.open)
                try:
                    keep = self.script(connection, number, request)
                finally:
                    with self.lock:
                        self.open -= 1
                if keep is False:
                    break
            connection.close()

    def _request(self, connection):
        data = b""
        while b"\r\n\r\n" not in data:
            part = connection.recv(65536)
            if not part:
                return None
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(re.search(rb"(?i)content-length: (\d+)", head).group(1))
        while len(body) < length:
            body += connection.recv(65536)
        return body

    def close(self):
        self.over.set()
        with suppress(OSError):
            # a thread that waits in accept would still take one
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for one in self.sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def reset(connection):
    """Close with a RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    raise Hang


@pytest.fixture
def serve():
    servers = []

    def start(script, **options):
        servers.append(Scripted(script, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def run(tmp_path):
    """Drive requests against a server; gives the report and the exchanges by request id."""

    def go(
        server,
        count=8,
        *,
        concurrency=2,
        watch=lambda counts: None,
        target=None,
        padding=0,
        at_s=None,
        workers=1,
        facts=lambda index: {},
        **plan,
    ):
        requests = [
            PlannedRequest(
                request_id=f"r{i}",
                path="/v1/x",
                body=json.dumps({"id": f"r{i}", "pad": "x" * padding}).encode(),
                scheduled_s=at_s[i] if at_s else None,
                **facts(i),
            )
            for i in range(count)
        ]
        spool = tmp_path / f"{time.time_ns()}.spool"
        spool.touch()
        plan = {"timeout_s": 5.0, "connect_timeout_s": 2.0, **plan}
        report = drive(
            target or Target(host="127.0.0.1", port=server.port),
            PointPlan(requests=requests, concurrency=concurrency, **plan),
            spool=spool,
            watch=watch,
            workers=workers,
        )
        exchanges = [exchange for path in worker_spools(spool, workers) for exchange in read_spool(path)]
        assert len({exchange.request_id for exchange in exchanges}) == len(exchanges)
        return report, {exchange.request_id: exchange for exchange in exchanges}

    return go
