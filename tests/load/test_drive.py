"""The load generator against servers that do what servers do: every request sent gives one exchange, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from itertools import pairwise

import psutil
import pytest
import trustme

from servebench.contracts.exchange import Target
from servebench.load.client.spool_reader import read_spool
from servebench.load.coordinator import drive as drive_module
from servebench.util.errors import LoadError

from .conftest import HEADER, LAST, Hang, chunk, event, reset, stream


def outcomes(exchanges):
    return Counter(exchange.outcome for exchange in exchanges.values())


def body(exchange):
    return b"".join(data for _, data in exchange.reads)


def answer(connection, number, request):
    connection.sendall(stream())


def test_every_request_is_sent_once_and_answered(serve, run):
    """In the order of the plan, on one connection a stream, with the whole answer kept."""
    server = serve(answer)
    report, exchanges = run(server, 20, concurrency=2)
    assert outcomes(exchanges) == {"complete": 20}
    assert sorted(server.seen) == sorted(f"r{i}" for i in range(20))
    assert {body(exchange) for exchange in exchanges.values()} == {stream()}
    assert (report.planned, report.sent, report.connections_opened, server.connections) == (20, 20, 2, 2)


def test_stamps_are_the_kernels_and_in_order(serve, run):
    """Scheduled, sent, each read, ended: in this order, on the wall clock."""
    before = time.time_ns()
    report, exchanges = run(serve(answer), 6)
    assert report.stamp_source == "kernel"
    for exchange in exchanges.values():
        stamps = [exchange.scheduled_ns, exchange.sent_ns, *(stamp for stamp, _ in exchange.reads), exchange.ended_ns]
        assert before < stamps[0]
        assert stamps == sorted(stamps)
        assert exchange.stamp_source == "kernel"


def test_the_asked_concurrency_is_held_and_not_passed(serve, run):
    """A closed loop: five at a time, as long as there are requests."""

    def slow(connection, number, request):
        time.sleep(0.05)
        connection.sendall(stream())

    server = serve(slow)
    run(server, 25, concurrency=5)
    assert server.most_open == 5


def test_connecting_is_told_apart_from_sending(serve, run):
    """Only the first request of a connection knows when it was made, and that was before it was sent."""
    _, exchanges = run(serve(answer), 6, concurrency=1)
    first, *others = [exchanges[f"r{i}"] for i in range(6)]
    assert first.connect_started_ns <= first.connected_ns <= first.sent_ns
    assert {(other.connect_started_ns, other.connected_ns) for other in others} == {(None, None)}


@pytest.mark.parametrize(
    ("name", "answered"),
    [
        ("length", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
        ("refusal", b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"),
        ("trailers", HEADER + event("a") + b"0\r\nX-Time: 1\r\n\r\n"),
    ],
)
def test_other_framings_keep_the_connection(serve, run, name, answered):
    """A length, a refusal and trailers end an answer as well as a last chunk does."""
    server = serve(lambda connection, number, request: connection.sendall(answered))
    _, exchanges = run(server, 6, concurrency=1)
    assert outcomes(exchanges) == {"complete": 6}
    assert server.connections == 1
    assert body(exchanges["r5"]) == answered


def test_a_chunk_a_byte_is_whole(serve, run):
    """However small the pieces, the answer ends where it ends."""

    def bytewise(connection, number, request):
        connection.sendall(HEADER)
        for value in b"data: {}\n\n":
            connection.sendall(chunk(bytes([value])))
        connection.sendall(LAST)

    _, exchanges = run(serve(bytewise), 4)
    assert outcomes(exchanges) == {"complete": 4}


def test_an_answer_that_ends_with_the_connection(serve, run):
    """No length and no chunks: the close is the end, and the next request has a connection of its own."""

    def until_close(connection, number, request):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n")
        return False

    _, exchanges = run(serve(until_close), 5, concurrency=1)
    assert outcomes(exchanges) == {"complete": 5}


def test_a_server_that_closes_after_each_stream_loses_nothing(serve, run):
    """It promises keep-alive and closes: what meets the closed connection is sent again, and counted once."""

    def closing(connection, number, request):
        connection.sendall(stream())
        return False

    report, exchanges = run(serve(closing), 30, concurrency=3)
    assert outcomes(exchanges) == {"complete": 30}
    assert report.sent == 30


def test_an_idle_connection_that_the_server_closed_is_replaced(serve, run):
    """Every third answer ends its connection, unannounced."""
    _, exchanges = run(
        serve(lambda connection, number, request: connection.sendall(stream()) or number % 3 != 2), 20, concurrency=2
    )
    assert outcomes(exchanges) == {"complete": 20}


def test_resets_and_cuts_are_outcomes(serve, run):
    """Others are not touched by them, and what had come is kept."""

    def faulty(connection, number, request):
        if number % 4 == 1:
            connection.sendall(HEADER + event("half"))
            time.sleep(0.02)
            reset(connection)
        if number % 4 == 3:
            connection.sendall(HEADER + event("half"))
            return False
        connection.sendall(stream())
        return True

    _, exchanges = run(serve(faulty), 16, concurrency=1)
    assert outcomes(exchanges) == {"complete": 8, "reset": 4, "closed": 4}
    assert all(b"half" in body(exchange) for exchange in exchanges.values() if exchange.outcome != "complete")


def test_silence_times_out(serve, run):
    """A stream that stalls and a server that never answers cost the timeout, not the run."""

    def stalling(connection, number, request):
        if number == 1:
            connection.sendall(HEADER + event("half"))
        if number in (1, 2):
            raise Hang
        connection.sendall(stream())

    began = time.monotonic()
    _, exchanges = run(serve(stalling), 8, concurrency=2, timeout_s=0.5)
    assert outcomes(exchanges) == {"complete": 6, "timeout": 2}
    assert time.monotonic() - began < 5


def test_what_is_no_http_is_a_protocol_error(serve, run):
    """And an endless header does not fill the memory."""

    def strange(connection, number, request):
        if number == 0:
            connection.sendall(b"220 mail.example.com ESMTP\r\n\r\n")
        elif number == 1:
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000)
        else:
            connection.sendall(stream())
        return number > 1

    _, exchanges = run(serve(strange), 6, concurrency=1)
    assert outcomes(exchanges) == {"complete": 4, "protocol": 2}


def test_a_large_request_is_sent_whole(serve, run):
    """Larger than any socket buffer."""
    server = serve(answer)
    _, exchanges = run(server, 3, concurrency=3, padding=8_000_000)
    assert outcomes(exchanges) == {"complete": 3}
    assert sorted(server.seen) == ["r0", "r1", "r2"]


def test_nobody_listens(serve, run):
    """Every request is refused, at once."""
    server = serve(answer)
    server.close()
    began = time.monotonic()
    _, exchanges = run(server, 10, concurrency=2)
    assert outcomes(exchanges) == {"refused": 10}
    assert time.monotonic() - began < 5


def test_a_name_that_is_unknown(run):
    """It is told as such, before anything is sent."""
    with pytest.raises(LoadError, match=r"cannot resolve no-such-host\.invalid"):
        run(None, target=Target(host="no-such-host.invalid", port=80))


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def tls_server(serve, authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return serve(answer, wrap=lambda connection: context.wrap_socket(connection, server_side=True))


def test_tls_has_kernel_stamps_too(tls_server, run):
    """The stamp is that of the encrypted bytes; the answer is the decrypted one; the handshake is part of connecting."""
    target = Target(host="127.0.0.1", port=tls_server.port, tls=True, verify_tls=False)
    report, exchanges = run(tls_server, 10, target=target, padding=200_000)
    assert outcomes(exchanges) == {"complete": 10}
    assert report.stamp_source == "kernel"
    assert {body(exchange) for exchange in exchanges.values()} == {stream()}
    assert exchanges["r0"].connected_ns > exchanges["r0"].connect_started_ns


def test_a_certificate_that_is_not_trusted(tls_server, run):
    """It is an outcome of its own, with the reason."""
    target = Target(host="127.0.0.1", port=tls_server.port, tls=True)
    _, exchanges = run(tls_server, 3, target=target)
    assert outcomes(exchanges) == {"tls": 3}
    assert "certificate" in exchanges["r0"].error


def test_a_timed_phase_ends_and_drains(serve, run):
    """No request is begun after the time; those in flight are let finish."""

    def slow(connection, number, request):
        time.sleep(0.2)
        connection.sendall(stream())

    report, exchanges = run(serve(slow), 1000, concurrency=4, duration_s=1.0)
    assert outcomes(exchanges) == {"complete": report.sent}
    assert 8 <= report.sent <= 24
    assert 0.9 < report.elapsed_s < 2.5


def test_what_does_not_drain_is_given_up(serve, run):
    """The drain has a bound of its own."""

    def stuck(connection, number, request):
        raise Hang

    report, exchanges = run(serve(stuck), 10, concurrency=2, duration_s=0.3, drain_s=0.3)
    assert outcomes(exchanges) == {"timeout": 2}
    assert report.elapsed_s < 3


def test_an_open_loop_sends_on_time_and_does_not_wait(serve, run):
    """Requests leave at their times though none is answered yet; lateness is small; connections are opened ahead."""

    def slow(connection, number, request):
        time.sleep(0.5)
        connection.sendall(stream())

    server = serve(slow)
    times = [0.02 * i for i in range(30)]
    _, exchanges = run(server, 30, concurrency=30, connections=8, at_s=times)
    assert outcomes(exchanges) == {"complete": 30}
    assert server.most_open > 20
    start_ns = exchanges["r0"].scheduled_ns
    assert [round((exchanges[f"r{i}"].scheduled_ns - start_ns) / 1e9, 6) for i in range(30)] == [
        round(t, 6) for t in times
    ]
    late_ms = sorted((exchange.sent_ns - exchange.scheduled_ns) / 1e6 for exchange in exchanges.values())
    assert late_ms[0] >= 0
    assert late_ms[15] < 20


def test_an_open_loop_with_a_bound_waits_and_is_late(serve, run):
    """No more than the bound in flight; what waited for it was scheduled earlier than it was sent."""

    def slow(connection, number, request):
        time.sleep(0.1)
        connection.sendall(stream())

    server = serve(slow)
    _, exchanges = run(server, 8, concurrency=2, connections=2, at_s=[0.0] * 8)
    assert server.most_open == 2
    assert max(exchange.sent_ns - exchange.scheduled_ns for exchange in exchanges.values()) > 0.25e9


@pytest.mark.parametrize("plan", [{}, {"duration_s": 0.2, "drain_s": 5.0}], ids=["capped", "over"])
def test_a_worker_that_waits_does_not_spin(serve, run, plan):
    """Requests that are overdue wait for a free stream, or for nothing when the time is over: neither costs a core."""

    def slow(connection, number, request):
        time.sleep(0.5)
        connection.sendall(stream())

    report, _ = run(serve(slow), 3, concurrency=1, at_s=[0.0] * 3, **plan)
    assert report.elapsed_s > 0.4
    assert report.cpu_s < 0.3 * report.elapsed_s


def test_a_reason_to_stop_stops(serve, run):
    """What was finished is complete, what was in flight is cancelled, and the report says why."""

    def slow(connection, number, request):
        time.sleep(0.05)
        connection.sendall(stream())

    report, exchanges = run(
        serve(slow), 1000, concurrency=2, watch=lambda counts: "engine_died" if counts.completed >= 4 else None
    )
    assert report.stopped == "engine_died"
    assert 4 <= outcomes(exchanges)["complete"] < 1000
    assert set(outcomes(exchanges)) <= {"complete", "cancelled"}


def test_a_worker_that_is_killed_is_told_and_loses_nothing_finished(serve, run, tmp_path):
    """Its death is one line; the spool has every finished request."""

    def slow(connection, number, request):
        time.sleep(0.02)
        connection.sendall(stream())

    def kill(counts):
        if counts.completed >= 5:
            for child in psutil.Process().children():
                if "servebench.load.client.worker" in child.cmdline():
                    child.kill()

    report, _ = run(serve(slow), 1000, concurrency=2, watch=kill)
    assert report.stopped == "worker_died"
    assert "died by signal SIGKILL" in report.error
    (spool,) = tmp_path.glob("*.spool")
    assert sum(exchange.outcome == "complete" for exchange in read_spool(spool)) >= 5


def test_a_worker_that_is_killed_has_written_down_most_of_an_answer_under_way(serve, run, tmp_path):
    """What streams read goes to the spool every two seconds, also when no answer ends."""

    def endless(connection, number, request):
        connection.sendall(HEADER)
        for word in range(1000):
            connection.sendall(event(f"w{word} "))
            time.sleep(0.02)

    began = []

    def kill(counts):
        began.append(time.monotonic())
        if began[-1] - began[0] > 3.5:
            for child in psutil.Process().children():
                if "servebench.load.client.worker" in child.cmdline():
                    child.kill()

    report, _ = run(serve(endless), 2, concurrency=2, watch=kill, timeout_s=30.0)
    assert report.stopped == "worker_died"
    (spool,) = tmp_path.glob("*.spool")
    exchanges = list(read_spool(spool))
    assert [exchange.outcome for exchange in exchanges] == ["cancelled"] * 2
    for exchange in exchanges:
        assert body(exchange).startswith(HEADER + event("w0 ") + event("w1 "))
        assert body(exchange).count(b"data: ") > 10


@pytest.fixture
def worker_with(tmp_path, monkeypatch):
    """Has the next phases run by a worker in which some lines of Python were carried out first."""

    def use(lines):
        module = tmp_path / "changed_worker.py"
        module.write_text(
            f"from servebench.load.client import connection, phase, worker\n{lines}\nraise SystemExit(worker.main())\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(drive_module, "LOCAL_WORKER", ("changed_worker",))

    return use


def test_without_the_kernels_stamps_those_of_user_space_are_taken_and_told(serve, run, worker_with):
    """Where the kernel stamps nothing, the answer is as whole and says so."""
    worker_with("connection.SO_TIMESTAMPNS = None")

    def slow(connection, number, request):
        connection.sendall(HEADER)
        for part in (event("a "), event("b "), chunk(b"data: [DONE]\n\n"), LAST):
            time.sleep(0.02)
            connection.sendall(part)

    report, exchanges = run(serve(slow), 4, concurrency=2)
    assert report.stamp_source == "user"
    assert outcomes(exchanges) == {"complete": 4}
    for exchange in exchanges.values():
        assert exchange.stamp_source == "user"
        assert body(exchange) == HEADER + event("a ") + event("b ") + chunk(b"data: [DONE]\n\n") + LAST
        stamps = [exchange.sent_ns, *(stamp for stamp, _ in exchange.reads), exchange.ended_ns]
        assert len(stamps) > 4
        assert stamps == sorted(stamps)


def test_a_worker_that_breaks_off_writes_down_what_it_holds(serve, run, worker_with, tmp_path):
    """A fault of its own ends it, with all that it had read on disk."""
    worker_with("phase.LoadPhase._sample_queues = lambda self: 1 / 0 if self.reads > 20 else None")

    def endless(connection, number, request):
        connection.sendall(HEADER)
        for word in range(1000):
            connection.sendall(event(f"w{word} "))
            time.sleep(0.01)

    report, _ = run(serve(endless), 1, concurrency=1)
    assert report.stopped == "worker_died"
    assert "ZeroDivisionError" in report.error
    (spool,) = tmp_path.glob("*.spool")
    (exchange,) = read_spool(spool)
    assert body(exchange).startswith(HEADER + event("w0 "))
    assert body(exchange).count(b"data: ") >= 19


@pytest.mark.parametrize("size", [4095, 4096, 4097, 3 * 4096, 65_536, 65_536 + 4096, 300_000])
@pytest.mark.parametrize("framed", [True, False])
def test_a_read_that_fills_its_buffer_leaves_nothing_behind(serve, run, size, framed):
    """A socket tells but once that something came, however much it is; the end may stand right behind it."""
    head = HEADER if framed else b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    rest = size - len(head)
    if framed:
        rest -= len(chunk(b"x" * rest)) - rest
        head += chunk(b"x" * rest)
        head += b"" if len(head) == size else chunk(b"x")
    else:
        head += b"x" * rest

    def burst(connection, number, request):
        connection.sendall(head)
        if framed:
            time.sleep(0.1)
            connection.sendall(LAST)
        return framed

    report, exchanges = run(serve(burst), 4, concurrency=2)
    assert outcomes(exchanges) == {"complete": 4}
    assert all(body(exchange) == head + (LAST if framed else b"") for exchange in exchanges.values())
    assert report.elapsed_s < 3


def test_three_workers_share_the_streams(serve, run):
    """Every request is sent once, the level is held by all together, and the report counts them all."""
    seen = []

    def slow(connection, number, request):
        time.sleep(0.05)
        connection.sendall(stream())

    server = serve(slow)
    report, exchanges = run(server, 40, concurrency=7, workers=3, watch=lambda counts: seen.append(counts) or None)
    assert sorted(server.seen) == sorted(f"r{i}" for i in range(40))
    assert outcomes(exchanges) == {"complete": 40}
    assert server.most_open == 7
    assert (report.workers, report.planned, report.sent) == (3, 40, 40)
    assert seen[-1].completed == 40


def test_one_of_two_workers_dies(serve, run):
    """The phase ends for both at once; what either had finished is kept."""
    killed = []

    def slow(connection, number, request):
        time.sleep(0.02)
        connection.sendall(stream())

    def kill(counts):
        if counts.completed >= 8 and not killed:
            workers = [c for c in psutil.Process().children() if "servebench.load.client.worker" in c.cmdline()]
            assert len(workers) == 2
            killed.append(workers[0].kill())

    began = time.monotonic()
    report, exchanges = run(serve(slow), 2000, concurrency=4, workers=2, watch=kill)
    assert time.monotonic() - began < 10
    assert (report.stopped, report.workers, report.planned) == ("worker_died", 2, 2000)
    assert outcomes(exchanges)["complete"] >= 8
    assert set(outcomes(exchanges)) == {"complete", "cancelled"}


def slowly(connection, number, request):
    time.sleep(0.03)
    connection.sendall(stream())


@pytest.mark.parametrize("at_s", [None, [0.001 * i for i in range(12)]], ids=["closed", "open"])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_turns_of_a_session_wait_for_each_other(serve, run, at_s, workers):
    """Three sessions of four turns: one at a time in each, in order, whatever the streams; no turn is called late."""
    server = serve(slowly)
    _, exchanges = run(
        server,
        12,
        concurrency=12,
        workers=workers,
        at_s=at_s,
        facts=lambda i: {"session_id": f"s{i % 3}", "think_s": 0.02},
    )
    assert outcomes(exchanges) == {"complete": 12}
    assert 2 <= server.most_open <= 3
    for session in range(3):
        turns = [exchanges[f"r{i}"] for i in range(session, 12, 3)]
        for before, after in pairwise(turns):
            assert after.scheduled_ns >= before.ended_ns + 15_000_000
            assert after.sent_ns >= after.scheduled_ns
            assert after.sent_ns - after.scheduled_ns < 200_000_000


def test_sessions_leave_their_streams_to_others(serve, run):
    """With two streams and one long session, the other requests do not wait for it."""
    server = serve(slowly)
    _, exchanges = run(server, 9, concurrency=2, facts=lambda i: {"session_id": "long" if i < 3 else None})
    assert server.most_open == 2
    ends = sorted(exchanges, key=lambda name: exchanges[name].ended_ns)
    assert ends.index("r1") > 1


def test_a_timed_phase_does_not_wait_for_turns_that_come_too_late(serve, run):
    """A user who thinks for an hour keeps nobody."""
    report, exchanges = run(
        serve(slowly), 4, concurrency=4, duration_s=0.3, facts=lambda i: {"session_id": "s", "think_s": 3600.0}
    )
    assert outcomes(exchanges) == {"complete": 1}
    assert report.sent == 1


def test_a_client_that_goes_away(serve, run):
    """The connection is closed at its time, the stream is free for the next, and the others are answered."""
    closed = []

    def endless(connection, number, request):
        if json.loads(request)["id"] in ("r0", "r1"):
            connection.sendall(HEADER + event("a"))
            began = time.monotonic()
            assert connection.recv(1) == b""
            closed.append(time.monotonic() - began)
            return False
        slowly(connection, number, request)
        return None

    _, exchanges = run(serve(endless), 8, concurrency=2, facts=lambda i: {"cancel_after_s": 0.2 if i < 2 else 5.0})
    assert outcomes(exchanges) == {"abandoned": 2, "complete": 6}
    assert all(0.15 < waited < 3.0 for waited in closed)
    assert "0.2 s after sending, as planned" in exchanges["r0"].error
    assert len(exchanges["r0"].reads) == 1


@pytest.mark.parametrize("leaves", [True, False], ids=["its user leaves", "it times out"])
def test_what_is_sent_again_has_a_time_of_its_own(serve, run, *, leaves):
    """The kept-alive connection was closed under the second request: its times belong to where it is sent again."""

    def closing(connection, number, request):
        if number == 1:
            return False
        if number == 2:
            time.sleep(1.0)
        connection.sendall(stream())
        return None

    facts = {"cancel_after_s": 0.3} if leaves else {}
    _, exchanges = run(serve(closing), 3, concurrency=1, facts=lambda i: facts, timeout_s=5.0 if leaves else 0.5)
    assert outcomes(exchanges) == {"complete": 2, "abandoned" if leaves else "timeout": 1}


def test_streams_join_one_after_another(serve, run):
    """A ramp of a closed loop: the k-th stream sends when its time has come, and not before."""
    starts = (0.0, 0.1, 0.2, 0.3)
    _, exchanges = run(
        serve(lambda c, n, r: (time.sleep(0.5), c.sendall(stream()))[1]), 4, concurrency=4, stream_starts_s=starts
    )
    sent = sorted(exchange.sent_ns for exchange in exchanges.values())
    gaps_s = [(later - sent[0]) / 1e9 for later in sent]
    assert gaps_s == pytest.approx(starts, abs=0.08)
    assert all(exchange.sent_ns - exchange.scheduled_ns < 80_000_000 for exchange in exchanges.values())


COORDINATOR = """
    import sys
    from pathlib import Path
    from servebench.contracts.exchange import PlannedRequest, PointPlan, Target
    from servebench.load.coordinator.drive import drive

    requests = [PlannedRequest(request_id=f"r{i}", path="/", body=b'{"id": "r%d"}' % i) for i in range(10_000)]
    plan = PointPlan(requests=requests, concurrency=3, timeout_s=5, connect_timeout_s=2)
    print("go", flush=True)
    report = drive(Target(host="127.0.0.1", port=int(sys.argv[1])), plan, spool=Path(sys.argv[2]), watch=lambda counts: None)
    print(report.stopped, report.sent, flush=True)
"""


@pytest.fixture
def coordinator(serve, tmp_path):
    def slow(connection, number, request):
        time.sleep(0.02)
        connection.sendall(stream())

    server = serve(slow)
    spool = tmp_path / "c.spool"
    spool.touch()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(COORDINATOR), str(server.port), str(spool)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert process.stdout.readline() == "go\n"
    while len(server.seen) < 10:
        time.sleep(0.02)
    yield process, spool
    process.kill()
    process.wait()
    process.stdout.close()


def test_ctrl_c_in_a_terminal_keeps_everything(coordinator):
    """The signal goes to the whole group, as a terminal sends it."""
    process, spool = coordinator
    os.killpg(process.pid, signal.SIGINT)
    said, sent = process.stdout.readline().split()
    assert said == "interrupt"
    exchanges = list(read_spool(spool))
    assert len(exchanges) == int(sent)
    assert Counter(exchange.outcome for exchange in exchanges)["cancelled"] <= 3


def test_a_worker_does_not_outlive_its_coordinator(coordinator):
    """Kill -9 of the coordinator: the worker sees its input close, writes what it has, and goes."""
    process, spool = coordinator
    (worker,) = psutil.Process(process.pid).children()
    process.kill()
    gone, alive = psutil.wait_procs([worker], timeout=5)
    assert (gone, alive) == ([worker], [])
    assert sum(exchange.outcome == "complete" for exchange in read_spool(spool)) >= 7


def test_no_thread_and_no_process_is_left(serve, run):
    """A phase leaves nothing behind."""
    run(serve(answer), 4)
    assert psutil.Process().children() == []
    assert threading.current_thread() is threading.main_thread()


def test_connections_that_are_refused_are_counted(serve, run):
    """The server goes while requests are left: each finds nobody, and the report says how often."""

    def last(connection, number, request):
        connection.sendall(stream())
        if number == 1:
            server.listener.shutdown(socket.SHUT_RDWR)
        return number < 1

    server = serve(last)
    report, exchanges = run(server, 6, concurrency=1)
    assert outcomes(exchanges) == {"complete": 2, "refused": 4}
    assert report.connections_failed >= 4
    assert "cannot connect" in exchanges["r5"].error


def test_bytes_that_wait_in_the_kernel_are_seen(serve, run):
    """A server that gives more than one turn of the loop takes."""

    def flood(connection, number, request):
        connection.sendall(HEADER + event("x" * 8_000_000) + LAST)

    report, exchanges = run(serve(flood), 1, concurrency=1)
    assert outcomes(exchanges) == {"complete": 1}
    assert report.receive_queue_bytes_max > 0


def test_no_room_for_temporary_files(serve, run, monkeypatch):
    """None is needed where memory can have a name; elsewhere it is one line."""
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    if hasattr(os, "memfd_create"):
        assert outcomes(run(serve(answer), 3, concurrency=1)[1]) == {"complete": 3}
        monkeypatch.delattr("os.memfd_create")
    with pytest.raises(LoadError, match="TMPDIR"):
        run(serve(answer), 3, concurrency=1)
