"""One load worker against servers of all kinds: every request that was sent gives one exchange, whatever happens."""

from __future__ import annotations

import json
import socket
import time
from itertools import pairwise

import pytest

from servebench.contracts.exchange import StopReason, Target
from servebench.util.errors import LoadError
from support.servers import LAST_CHUNK, SSE_HEAD, Abandon, chunk, content_event, reset
from support.streams import answer, answer_after, body, outcomes, sent_ids, stream
from support.waiting import wait_until


def test_every_request_is_sent_once_and_answered(serve, run):
    """On one connection per stream, and the whole answer is kept."""
    server = serve(answer)
    report, exchanges = run(server, 20, concurrency=2)
    assert outcomes(exchanges) == {"complete": 20}
    assert sorted(sent_ids(server)) == sorted(f"r{i}" for i in range(20))
    assert {body(exchange) for exchange in exchanges.values()} == {stream()}
    assert (report.planned, report.sent, report.connections_opened, server.connections) == (20, 20, 2, 2)


def test_stamps_come_from_the_kernel_and_are_in_order(serve, run):
    """Scheduled, sent, each read, ended: in this order, on the wall clock."""
    before = time.time_ns()
    report, exchanges = run(serve(answer), 6)
    assert report.stamp_source == "kernel"
    for exchange in exchanges.values():
        stamps = [exchange.scheduled_ns, exchange.sent_ns, *(stamp for stamp, _ in exchange.reads), exchange.ended_ns]
        assert before < stamps[0]
        assert stamps == sorted(stamps)
        assert exchange.stamp_source == "kernel"


def test_the_concurrency_is_reached_and_never_exceeded(serve, run):
    """A closed loop: five at a time, as long as there are requests."""

    def slow(connection, request):
        wait_until(lambda: server.most_in_flight == 5 or server.closed.is_set())
        connection.sendall(stream())

    server = serve(slow)
    run(server, 25, concurrency=5)
    assert server.most_in_flight == 5


def test_connecting_is_not_part_of_sending(serve, run):
    """Only the first request of a connection has connect times, which precede the send."""
    _, exchanges = run(serve(answer), 6, concurrency=1)
    first, *others = [exchanges[f"r{i}"] for i in range(6)]
    assert first.connect_started_ns <= first.connected_ns <= first.sent_ns
    assert {(other.connect_started_ns, other.connected_ns) for other in others} == {(None, None)}


@pytest.mark.parametrize(
    ("name", "answered"),
    [
        ("length", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
        ("refusal", b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"),
        ("trailers", SSE_HEAD + content_event("a") + b"0\r\nX-Time: 1\r\n\r\n"),
    ],
)
def test_other_framings_keep_the_connection(serve, run, name, answered):
    """A length, a refusal and trailers end an answer as a last chunk does."""
    server = serve(lambda connection, request: connection.sendall(answered))
    _, exchanges = run(server, 6, concurrency=1)
    assert outcomes(exchanges) == {"complete": 6}
    assert server.connections == 1
    assert body(exchanges["r5"]) == answered


def test_chunks_of_one_byte(serve, run):
    """The end of the answer is found however small the chunks are."""

    def bytewise(connection, request):
        connection.sendall(SSE_HEAD)
        for value in b"data: {}\n\n":
            connection.sendall(chunk(bytes([value])))
        connection.sendall(LAST_CHUNK)

    _, exchanges = run(serve(bytewise), 4)
    assert outcomes(exchanges) == {"complete": 4}


def test_an_answer_that_ends_with_its_connection(serve, run):
    """Without length and chunks the close is the end, and the next request gets a new connection."""

    def until_close(connection, request):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n")
        return False

    _, exchanges = run(serve(until_close), 5, concurrency=1)
    assert outcomes(exchanges) == {"complete": 5}


def test_a_server_that_closes_after_each_stream_loses_nothing(serve, run):
    """It promises keep-alive and closes: requests on a closed connection are sent again and counted once."""

    def closing(connection, request):
        connection.sendall(stream())
        return False

    report, exchanges = run(serve(closing), 30, concurrency=3)
    assert outcomes(exchanges) == {"complete": 30}
    assert report.sent == 30


def test_an_idle_connection_that_the_server_closed_is_replaced(serve, run):
    """The server closes after every third answer, unannounced."""
    _, exchanges = run(
        serve(lambda connection, request: connection.sendall(stream()) or request.number % 3 != 2), 20, concurrency=2
    )
    assert outcomes(exchanges) == {"complete": 20}


def test_resets_and_cuts_are_outcomes(serve, run):
    """Other requests are not affected, and the partial answers are kept."""

    def faulty(connection, request):
        if request.number % 4 == 1:
            connection.sendall(SSE_HEAD + content_event("half"))
            time.sleep(0.02)
            reset(connection)
        if request.number % 4 == 3:
            connection.sendall(SSE_HEAD + content_event("half"))
            return False
        connection.sendall(stream())
        return True

    _, exchanges = run(serve(faulty), 16, concurrency=1)
    assert outcomes(exchanges) == {"complete": 8, "reset": 4, "closed": 4}
    assert all(b"half" in body(exchange) for exchange in exchanges.values() if exchange.outcome != "complete")


@pytest.mark.slow
def test_silence_times_out(serve, run):
    """A stream that stalls and a server that never answers end with a timeout; the others are answered."""

    def stalling(connection, request):
        if request.number == 1:
            connection.sendall(SSE_HEAD + content_event("half"))
        if request.number in (1, 2):
            raise Abandon
        connection.sendall(stream())

    _, exchanges = run(serve(stalling), 8, concurrency=2, timeout_s=4.0)
    assert outcomes(exchanges) == {"complete": 6, "timeout": 2}


def test_bytes_that_are_not_http_are_a_protocol_error(serve, run):
    """An endless header does not fill the memory."""

    def strange(connection, request):
        if request.number == 0:
            connection.sendall(b"220 mail.example.com ESMTP\r\n\r\n")
        elif request.number == 1:
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000)
        else:
            connection.sendall(stream())
        return request.number > 1

    _, exchanges = run(serve(strange), 6, concurrency=1)
    assert outcomes(exchanges) == {"complete": 4, "protocol": 2}


def test_a_large_request_is_sent_whole(serve, run):
    """Larger than any socket buffer."""
    server = serve(answer)
    _, exchanges = run(server, 3, concurrency=3, padding=8_000_000)
    assert outcomes(exchanges) == {"complete": 3}
    assert sorted(sent_ids(server)) == ["r0", "r1", "r2"]


def test_a_closed_port_refuses_every_request(serve, run):
    """Without a server there is no request in flight."""
    server = serve(answer)
    server.close()
    _, exchanges = run(server, 10, concurrency=2)
    assert outcomes(exchanges) == {"refused": 10}


def test_an_unknown_host_name(run):
    """The error names the host, before anything is sent."""
    with pytest.raises(LoadError, match=r"no-such-host\.invalid"):
        run(None, target=Target(host="no-such-host.invalid", port=80))


@pytest.mark.slow
def test_a_timed_phase_ends_and_drains(serve, run):
    """No request starts after the time; those in flight may finish."""
    report, exchanges = run(serve(answer_after(0.03)), 100_000, concurrency=4, duration_s=0.5)
    assert outcomes(exchanges) == {"complete": report.sent}
    assert 4 <= report.sent < 100_000
    assert report.elapsed_s > 0.5


def test_draining_has_a_limit(serve, run):
    """Requests that are not answered by then time out."""

    def stuck(connection, request):
        raise Abandon

    report, exchanges = run(serve(stuck), 10, concurrency=2, duration_s=0.3, drain_s=0.3)
    assert outcomes(exchanges) == {"timeout": 2}
    assert report.elapsed_s >= 0.6


def test_an_open_loop_does_not_wait_for_answers(serve, run):
    """Every request leaves at its time or later though none is answered before all have arrived."""
    times = [0.02 * i for i in range(30)]

    def hold(connection, request):
        wait_until(lambda: len(server.requests) == 30 or server.closed.is_set())
        connection.sendall(stream())

    server = serve(hold)
    _, exchanges = run(server, 30, concurrency=30, connections=8, at_s=times, timeout_s=60.0)
    assert outcomes(exchanges) == {"complete": 30}
    assert server.most_in_flight == 30
    start_ns = exchanges["r0"].scheduled_ns
    scheduled_s = [(exchanges[f"r{i}"].scheduled_ns - start_ns) / 1e9 for i in range(30)]
    assert scheduled_s == pytest.approx(times, abs=1e-6)
    assert all(exchange.sent_ns >= exchange.scheduled_ns for exchange in exchanges.values())


@pytest.mark.slow
@pytest.mark.parametrize("plan", [{}, {"duration_s": 0.2, "drain_s": 5.0}], ids=["capped", "over"])
def test_a_worker_that_waits_does_not_spin(serve, run, plan):
    """Overdue requests wait for a free stream, or for nothing once the time is over: neither takes a core."""

    report, _ = run(serve(answer_after(0.5)), 3, concurrency=1, at_s=[0.0] * 3, **plan)
    assert report.elapsed_s > 0.4
    assert report.cpu_s < 0.3 * report.elapsed_s


def test_a_reason_to_stop_ends_the_phase(serve, run):
    """Finished requests are complete, those in flight are cancelled, and the report has the reason."""

    report, exchanges = run(
        serve(answer_after(0.05)),
        1000,
        concurrency=2,
        watch=lambda counts: StopReason.ENGINE_DIED if counts.completed >= 4 else None,
    )
    assert report.stopped == "engine_died"
    assert 4 <= outcomes(exchanges)["complete"] < 1000
    assert set(outcomes(exchanges)) <= {"complete", "cancelled"}


@pytest.mark.slow
@pytest.mark.parametrize("size", [4095, 4096, 4097, 3 * 4096, 65_536, 65_536 + 4096, 300_000])
@pytest.mark.parametrize("framed", [True, False])
def test_a_read_that_fills_its_buffer_leaves_nothing_behind(serve, run, size, framed):
    """Epoll reports data only once, however much there is; the end may come right behind it."""
    head = SSE_HEAD if framed else b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    rest = size - len(head)
    if framed:
        rest -= len(chunk(b"x" * rest)) - rest
        head += chunk(b"x" * rest)
        head += b"" if len(head) == size else chunk(b"x")
    else:
        head += b"x" * rest

    def burst(connection, request):
        connection.sendall(head)
        if framed:
            time.sleep(0.1)
            connection.sendall(LAST_CHUNK)
        return framed

    _, exchanges = run(serve(burst), 4, concurrency=2)
    assert outcomes(exchanges) == {"complete": 4}
    assert all(body(exchange) == head + (LAST_CHUNK if framed else b"") for exchange in exchanges.values())


def test_connections_that_are_refused_are_counted(serve, run):
    """The server ends while requests are left: each is refused, and the report counts them."""

    def last(connection, request):
        connection.sendall(stream())
        if request.number == 1:
            server.listener.shutdown(socket.SHUT_RDWR)
        return request.number < 1

    server = serve(last)
    report, exchanges = run(server, 6, concurrency=1)
    assert outcomes(exchanges) == {"complete": 2, "refused": 4}
    assert report.connections_failed >= 4
    assert "cannot connect" in exchanges["r5"].error


def test_bytes_that_wait_in_the_kernel_are_seen(serve, run):
    """A server sends more than one pass of the loop reads."""

    def flood(connection, request):
        connection.sendall(SSE_HEAD + content_event("x" * 8_000_000) + LAST_CHUNK)

    report, exchanges = run(serve(flood), 1, concurrency=1)
    assert outcomes(exchanges) == {"complete": 1}
    assert report.receive_queue_bytes_max > 0


@pytest.mark.slow
@pytest.mark.parametrize("at_s", [None, [0.001 * i for i in range(12)]], ids=["closed", "open"])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_turns_of_a_session_wait_for_each_other(serve, run, at_s, workers):
    """Three sessions of four turns: one at a time in each, in order, however many streams there are."""
    server = serve(answer_after(0.03))
    _, exchanges = run(
        server,
        12,
        concurrency=12,
        workers=workers,
        at_s=at_s,
        facts=lambda i: {"session_id": f"s{i % 3}", "think_s": 0.02},
    )
    assert outcomes(exchanges) == {"complete": 12}
    assert server.most_in_flight <= 3
    for session in range(3):
        turns = [exchanges[f"r{i}"] for i in range(session, 12, 3)]
        for before, after in pairwise(turns):
            assert after.scheduled_ns >= before.ended_ns + 15_000_000
            assert after.sent_ns >= after.scheduled_ns


def test_a_client_that_goes_away(serve, run):
    """The connection is closed at its time, its stream is used for the next request, and the others are answered."""
    closed = []

    def endless(connection, request):
        if request.json()["id"] in ("r0", "r1"):
            connection.sendall(SSE_HEAD + content_event("a"))
            closed.append(connection.recv(1))
            return False
        answer_after(0.03)(connection, request)
        return None

    _, exchanges = run(serve(endless), 8, concurrency=2, facts=lambda i: {"cancel_after_s": 2.0 if i < 2 else 60.0})
    assert outcomes(exchanges) == {"abandoned": 2, "complete": 6}
    wait_until(lambda: closed == [b"", b""])
    for name in ("r0", "r1"):
        assert exchanges[name].ended_ns - exchanges[name].sent_ns >= 2_000_000_000
        assert len(exchanges[name].reads) == 1


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [True, False], ids=["its user leaves", "it times out"])
def test_a_request_that_is_sent_again_has_deadlines_of_its_own(serve, run, *, leaves):
    """The kept-alive connection was closed under the second request: its deadlines count from the second send."""

    def closing(connection, request):
        if request.number == 1:
            return False
        if request.number == 2:
            raise Abandon
        connection.sendall(stream())
        return None

    _, exchanges = run(
        serve(closing),
        3,
        concurrency=1,
        facts=lambda i: {"cancel_after_s": 2.0} if leaves and i == 1 else {},
        timeout_s=30.0 if leaves else 3.0,
    )
    assert outcomes(exchanges) == {"complete": 2, "abandoned" if leaves else "timeout": 1}


def test_each_request_carries_its_own_headers(serve, run):
    """What no header can hold is percent-encoded."""
    server = serve(answer)
    run(server, 2, facts=lambda index: {"headers": (("x-session-id", "größe\r\nx"),) if index else ()})
    received = {json.loads(one.body)["id"]: one.headers for one in server.requests}
    assert "x-session-id" not in received["r0"]
    assert received["r1"]["x-session-id"] == "gr%C3%B6%C3%9Fe%0D%0Ax"
