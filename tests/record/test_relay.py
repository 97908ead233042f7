"""What comes out of the proxy is what went in, at once, without what concerns one connection only."""

import asyncio
import socket
import threading
from contextlib import contextmanager

import pytest

from servebench.record.relay import ClientSide, Service
from support.servers import LAST_CHUNK, SSE_HEAD, ScriptedServer, chunk, refusing_port, reply

LIMIT_S = 60.0
ASK = b"POST /v1/chat/completions HTTP/1.1\r\nHost: proxy\r\nContent-Length: 2\r\n\r\n{}"


class Relay:
    """A proxy in a thread. `handed` has what it hands over, with whether it was cancelled; `each` is released once for each."""

    def __init__(self, host, port):
        self.handed, self.each, self.sides = [], threading.Semaphore(0), []
        self.loop = asyncio.new_event_loop()
        service = Service(host, port, b"service", None, self._take, lambda path: "completions" in path)

        def accept():
            self.sides.append(ClientSide(service))
            return self.sides[-1]

        self.server = self.loop.run_until_complete(self.loop.create_server(accept, "127.0.0.1", 0))
        self.port = self.server.sockets[0].getsockname()[1]
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def _take(self, passed, cancelled):
        self.handed.append((passed, cancelled))
        self.each.release()

    def next(self):
        assert self.each.acquire(timeout=LIMIT_S)
        return self.handed[-1]

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.server.close()
        for side in self.sides:
            side.transport.abort()
        # connections are closed in the rounds that follow, first the client's, then the service's
        for _ in range(5):
            self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


@contextmanager
def relay_before(script):
    with ScriptedServer(script) as server:
        relay = Relay(server.host, server.port)
        try:
            with socket.create_connection(("127.0.0.1", relay.port), timeout=LIMIT_S) as client:
                yield server, relay, client
        finally:
            relay.close()


def read(client, until):
    """Read up to and including these bytes."""
    data = b""
    while not data.endswith(until):
        part = client.recv(65_536)
        assert part, data
        data += part
    return data


def test_a_chunk_is_passed_on_before_the_next_one_exists():
    arrived = threading.Semaphore(0)
    chunks = [chunk(b"data: %d\n\n" % number) for number in range(5)]

    def script(connection, _request):
        connection.sendall(SSE_HEAD)
        for one in chunks:
            connection.sendall(one)
            assert arrived.acquire(timeout=LIMIT_S)
        connection.sendall(LAST_CHUNK)

    with relay_before(script) as (_, relay, client):
        client.sendall(ASK)
        assert read(client, chunks[0]) == SSE_HEAD + chunks[0]
        for one in chunks[1:]:
            arrived.release()
            assert read(client, one) == one
        arrived.release()
        assert read(client, LAST_CHUNK) == LAST_CHUNK
        passed, cancelled = relay.next()
        assert b"".join(data for _, data in passed.reads) == SSE_HEAD + b"".join(chunks) + LAST_CHUNK
        assert (passed.body, cancelled) == ([b"{}"], False)


def test_headers_of_one_connection_stay_there():
    def script(connection, _request):
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nConnection: X-Own, keep-alive\r\nX-Own: 1\r\nX-Kept: 2\r\n"
            b"Content-Length: 2\r\n\r\nok"
        )

    asked = (
        b"POST /v1/completions HTTP/1.1\r\nHost: proxy\r\nAuthorization: Bearer key\r\nTE: trailers\r\n"
        b"Connection: x-mine, Content-Length\r\n"
        b"X-Mine: 1\r\nUpgrade: h2c\r\nX-Other: 2\r\nAccept-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"
    )
    with relay_before(script) as (server, _, client):
        client.sendall(asked)
        head = read(client, b"ok").lower()
        assert b"x-kept: 2" in head
        assert b"connection: keep-alive" in head
        assert not any(name in head for name in (b"timeout=5", b"x-own"))
        (request,) = server.requests
        assert request.headers == {
            "host": "service",
            "authorization": "Bearer key",
            "x-other": "2",
            "content-length": "2",
        }


def test_a_client_that_goes_away_cancels_the_request():
    gone = threading.Event()

    def script(connection, _request):
        connection.sendall(SSE_HEAD + chunk(b"data: 1\n\n"))
        if not connection.recv(1):
            gone.set()
        return False

    with relay_before(script) as (_, relay, client):
        client.sendall(ASK)
        read(client, b"data: 1\n\n\r\n")
        client.close()
        passed, cancelled = relay.next()
        assert cancelled
        assert passed.reads
        assert gone.wait(LIMIT_S)


def test_a_service_that_goes_away_ends_the_answer():
    def script(connection, _request):
        connection.sendall(SSE_HEAD + chunk(b"data: 1\n\n"))
        return False

    with relay_before(script) as (_, relay, client):
        client.sendall(ASK)
        assert read(client, b"data: 1\n\n\r\n")
        assert client.recv(1) == b""
        assert relay.next()[1] is False


def test_a_service_that_is_not_there_is_a_bad_gateway():
    with refusing_port() as port:
        relay = Relay("127.0.0.1", port)
        try:
            with socket.create_connection(("127.0.0.1", relay.port), timeout=LIMIT_S) as client:
                client.sendall(ASK)
                assert read(client, b"}}\n").startswith(b"HTTP/1.1 502 ")
                assert client.recv(1) == b""
        finally:
            relay.close()


def test_errors_are_passed_on_as_they_are():
    sent = reply(503, {"error": {"message": "no room"}}, Retry_After="3")
    with relay_before(lambda connection, _: connection.sendall(sent)) as (_, relay, client):
        client.sendall(ASK)
        assert read(client, sent[-20:]) == sent
        assert relay.next()[0].reads


def test_one_connection_carries_many_requests():
    sent = [reply(200, {"n": 0}), b"HTTP/1.1 100 Continue\r\n\r\n" + reply(200, {"n": 1}), reply(200, {"n": 2})]
    with relay_before(lambda connection, request: connection.sendall(sent[request.number])) as (server, relay, client):
        for answer in sent:
            client.sendall(ASK)
            assert read(client, answer[-8:]) == answer
            relay.next()
        assert server.connections == 1


def test_an_idle_client_takes_no_connection_of_the_service():
    with relay_before(lambda *_: (200, {})) as (server, relay, client):
        # a second client is accepted behind the first
        with socket.create_connection(("127.0.0.1", relay.port), timeout=LIMIT_S) as busy:
            busy.sendall(ASK)
            read(busy, b"{}")
        assert len(server.sockets) == 1
        client.sendall(ASK)
        read(client, b"{}")
        assert len(server.sockets) == 2


def test_requests_that_are_not_recorded_are_passed_on():
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
    sent = [head, reply(200, b"# metrics"), reply(200, {})]
    with relay_before(lambda connection, request: connection.sendall(sent[request.number])) as (server, relay, client):
        client.sendall(b"HEAD /metrics HTTP/1.1\r\nHost: proxy\r\n\r\n")
        assert read(client, b"\r\n\r\n") == head
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: proxy\r\n\r\n")
        assert read(client, b"# metrics") == sent[1]
        client.sendall(ASK)
        assert read(client, b"{}") == sent[2]
        relay.next()
        assert len(relay.handed) == 1
        assert [one.method for one in server.requests] == ["HEAD", "GET", "POST"]


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_an_answer_without_a_length_ends_with_the_connection(version):
    def script(connection, _request):
        connection.sendall(b"HTTP/%s 200 OK\r\n\r\nall of it" % version)
        return False

    with relay_before(script) as (_, relay, client):
        client.sendall(ASK.replace(b"HTTP/1.1", b"HTTP/" + version))
        assert read(client, b"all of it")
        assert client.recv(1) == b""
        assert relay.next()[1] is False


def test_a_chunked_request_stays_chunked():
    seen, reached = [], threading.Event()

    def script(connection, _request):
        reached.set()
        data = b""
        while not data.endswith(LAST_CHUNK):
            data += connection.recv(65_536)
        seen.append(data)
        return 200, {}

    with relay_before(script) as (_, relay, client):
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert reached.wait(LIMIT_S)
        client.sendall(chunk(b'{"prompt":') + chunk(b'"x"}') + LAST_CHUNK)
        read(client, b"{}")
        assert b"".join(relay.next()[0].body) == b'{"prompt":"x"}'
        assert seen[0].endswith(chunk(b'"x"}') + LAST_CHUNK)


def test_what_is_not_http_ends_the_connection():
    with relay_before(lambda *_: (200, {})) as (server, _, client):
        client.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert client.recv(1) == b""
        assert server.requests == []


def test_a_large_answer_waits_for_a_slow_client():
    size = 1 << 25
    with relay_before(lambda *_: (200, b"x" * size)) as (_, relay, client):
        client.sendall(ASK)
        left = len(reply(200, b"x" * size))
        while left:
            left -= len(client.recv(1 << 16))
        assert sum(len(data) for _, data in relay.next()[0].reads) > size
