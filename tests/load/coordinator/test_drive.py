"""Workers that die, hang or stop, and several workers at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from itertools import count

import psutil
import pytest

from servebench.load.client.spool import read_spool
from servebench.load.coordinator import drive as drive_module
from servebench.util.errors import LoadError
from support.servers import LAST_CHUNK, SSE_HEAD, Abandon, chunk, content_event
from support.streams import answer, answer_after, body, outcomes, sent_ids, stream
from support.waiting import wait_ended, wait_until, words_of


def load_workers():
    return [child for child in psutil.Process().children() if "servebench.load.client.worker" in words_of(child)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_fillers_end_with_the_last_measured_request(serve, run, workers):
    """They are sent while it is answered, spooled like all others, cancelled at its end, and not counted as sent."""

    measured, fillers = {f"r{number}" for number in range(10)}, count()

    def script(connection, request):
        name = request.json()["id"]
        if name in ("r0", "r1"):
            # the last measured ones end when two fillers are in flight, which are never answered
            wait_until(lambda: len(server.requests) >= 20 or server.closed.is_set())
        elif name not in measured:
            # one worker may begin long after the other
            wait_until(lambda: measured <= set(sent_ids(server)) or server.closed.is_set())
            if next(fillers) >= 8:
                raise Abandon
        answer(connection, request)

    server = serve(script)
    report, exchanges = run(server, 60, concurrency=4, workers=workers, fillers=50)
    assert (report.planned, report.sent) == (10, 10)
    assert report.fillers == len(exchanges) - 10
    found = Counter(exchange.outcome for name, exchange in exchanges.items() if int(name[1:]) >= 10)
    assert found["complete"] == 8
    # one more if the stream of the first of the two late ones was free before the other ended
    assert found["cancelled"] == report.fillers - 8 in (2, 3)
    last = max(exchanges[f"r{number}"].ended_ns for number in range(10))
    assert all(exchange.sent_ns <= last for exchange in exchanges.values())


@pytest.mark.slow
def test_a_phase_that_is_finished_early_ends_whole(serve, run):
    """Nothing more is sent by either worker, what is in flight ends as usual, and the phase was not stopped."""

    def enough(counts):
        return "finish" if counts.completed >= 5 else None

    report, exchanges = run(serve(answer_after(0.02)), 100_000, concurrency=4, workers=2, watch=enough)
    assert report.stopped is None
    assert 5 <= report.sent == len(exchanges) < 100_000
    assert {exchange.outcome for exchange in exchanges.values()} == {"complete"}


def test_a_killed_worker_loses_no_finished_request(serve, run, tmp_path):
    """The report says how it died; the spool has every finished request."""

    def kill(counts):
        if counts.completed >= 5:
            for worker in load_workers():
                worker.kill()

    report, _ = run(serve(answer_after(0.02)), 1000, concurrency=2, watch=kill)
    assert report.stopped == "worker_died"
    assert "SIGKILL" in report.error
    (spool,) = tmp_path.glob("*.spool")
    assert sum(exchange.outcome == "complete" for exchange in read_spool(spool)) >= 5


@pytest.mark.slow
def test_a_killed_worker_has_spooled_most_of_an_unfinished_answer(serve, run, tmp_path):
    """Reads go to the spool every two seconds, also when no answer ends."""

    def endless(connection, request):
        connection.sendall(SSE_HEAD)
        for word in range(100_000):
            connection.sendall(content_event(f"w{word} "))
            time.sleep(0.02)

    def kill(counts):
        (spool,) = tmp_path.glob("*.spool")
        if spool.read_bytes().count(b"data: ") > 40:
            for worker in load_workers():
                worker.kill()

    report, _ = run(serve(endless), 2, concurrency=2, watch=kill, timeout_s=600.0)
    assert report.stopped == "worker_died"
    (spool,) = tmp_path.glob("*.spool")
    exchanges = list(read_spool(spool))
    assert [exchange.outcome for exchange in exchanges] == ["cancelled"] * 2
    for exchange in exchanges:
        assert body(exchange).startswith(SSE_HEAD + content_event("w0 ") + content_event("w1 "))
    assert sum(body(exchange).count(b"data: ") for exchange in exchanges) > 40


@pytest.fixture
def worker_with(tmp_path, monkeypatch):
    """Have the next phases run by a worker in which some lines of Python were executed first."""

    def use(lines):
        module = tmp_path / "changed_worker.py"
        module.write_text(
            f"from servebench.load.client import connection, phase, worker\n{lines}\nraise SystemExit(worker.main())\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(drive_module, "WORKER", ("changed_worker",))

    return use


def test_without_kernel_stamps_those_of_user_space_are_used_and_reported(serve, run, worker_with):
    """The answer is as complete, and its stamp source says so."""
    worker_with("connection.SO_TIMESTAMPNS = None")

    def slow(connection, request):
        connection.sendall(SSE_HEAD)
        for part in (content_event("a "), content_event("b "), chunk(b"data: [DONE]\n\n"), LAST_CHUNK):
            time.sleep(0.02)
            connection.sendall(part)

    report, exchanges = run(serve(slow), 4, concurrency=2)
    assert report.stamp_source == "user"
    assert outcomes(exchanges) == {"complete": 4}
    for exchange in exchanges.values():
        assert exchange.stamp_source == "user"
        assert (
            body(exchange)
            == SSE_HEAD + content_event("a ") + content_event("b ") + chunk(b"data: [DONE]\n\n") + LAST_CHUNK
        )
        stamps = [exchange.sent_ns, *(stamp for stamp, _ in exchange.reads), exchange.ended_ns]
        assert len(stamps) > 4
        assert stamps == sorted(stamps)


def test_a_worker_that_crashes_spools_the_reads_that_it_holds(serve, run, worker_with, tmp_path):
    """An error of its own ends it, with everything that it had read on disk."""
    worker_with("phase.LoadPhase._sample_queues = lambda self: 1 / 0 if self.reads > 20 else None")

    def endless(connection, request):
        connection.sendall(SSE_HEAD)
        for word in range(1000):
            connection.sendall(content_event(f"w{word} "))
            time.sleep(0.01)

    report, _ = run(serve(endless), 1, concurrency=1)
    assert report.stopped == "worker_died"
    assert "ZeroDivisionError" in report.error
    (spool,) = tmp_path.glob("*.spool")
    (exchange,) = read_spool(spool)
    assert body(exchange).startswith(SSE_HEAD + content_event("w0 "))
    assert body(exchange).count(b"data: ") >= 19


def test_three_workers_share_the_streams(serve, run):
    """Every request is sent once, together they hold the concurrency, and the report counts them all."""
    seen = []

    def slow(connection, request):
        wait_until(lambda: server.most_in_flight == 7 or server.closed.is_set())
        connection.sendall(stream())

    server = serve(slow)
    report, exchanges = run(server, 40, concurrency=7, workers=3, watch=lambda counts: seen.append(counts) or None)
    assert sorted(sent_ids(server)) == sorted(f"r{i}" for i in range(40))
    assert outcomes(exchanges) == {"complete": 40}
    assert server.most_in_flight == 7
    assert (report.workers, report.planned, report.sent) == (3, 40, 40)
    assert seen[-1].completed == 40


def test_one_of_two_workers_dies(serve, run):
    """The phase ends for both at once; the finished requests of both are kept."""
    killed = []

    def kill(counts):
        if counts.completed >= 8 and not killed:
            workers = load_workers()
            assert len(workers) == 2
            killed.append(workers[0].kill())

    report, exchanges = run(serve(answer_after(0.02)), 2000, concurrency=4, workers=2, watch=kill)
    assert (report.stopped, report.workers, report.planned) == ("worker_died", 2, 2000)
    assert outcomes(exchanges)["complete"] >= 8
    assert set(outcomes(exchanges)) == {"complete", "cancelled"}


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
    server = serve(answer_after(0.02))
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
    wait_until(lambda: len(server.requests) >= 10, process=process)
    yield process, spool
    process.kill()
    process.wait()
    process.stdout.close()


def test_ctrl_c_in_a_terminal_keeps_everything(coordinator):
    """The signal goes to the whole process group, as from a terminal."""
    process, spool = coordinator
    os.killpg(process.pid, signal.SIGINT)
    said, sent = process.stdout.readline().split()
    assert said == "interrupt"
    exchanges = list(read_spool(spool))
    assert len(exchanges) == int(sent)
    assert Counter(exchange.outcome for exchange in exchanges)["cancelled"] <= 3


def test_an_interrupt_as_the_last_request_ends_is_not_lost(serve, run):
    """The worker has ended by itself, so its report does not say that it was stopped."""
    asked = []

    def late(counts):
        if counts.completed == 10 and not asked:
            asked.append(
                wait_until(lambda: not any(one.is_running() and one.status() != "zombie" for one in load_workers()))
            )
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(serve(answer), 10, watch=late)


def test_a_worker_does_not_outlive_its_coordinator(coordinator):
    """After a kill -9 of the coordinator the worker sees its input close, finishes its spool, and ends."""
    process, spool = coordinator
    (worker,) = psutil.Process(process.pid).children()
    process.kill()
    wait_ended(worker.pid)
    assert sum(exchange.outcome == "complete" for exchange in read_spool(spool)) >= 7


def test_no_thread_and_no_process_is_left(serve, run):
    """A phase leaves nothing behind."""
    run(serve(answer), 4)
    assert psutil.Process().children() == []
    assert threading.current_thread() is threading.main_thread()


def test_no_room_for_temporary_files(serve, run, monkeypatch):
    """None are needed where anonymous memory exists; elsewhere the error names TMPDIR."""
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    if hasattr(os, "memfd_create"):
        assert outcomes(run(serve(answer), 3, concurrency=1)[1]) == {"complete": 3}
        monkeypatch.delattr("os.memfd_create")
    with pytest.raises(LoadError, match="TMPDIR"):
        run(serve(answer), 3, concurrency=1)


def test_counts_of_a_stopped_worker_are_marked_as_old(serve, run, monkeypatch):
    """The engine must not be blamed for what a worker that stands still would have read."""
    monkeypatch.setattr("servebench.load.coordinator.worker_process.STALLED_S", 0.4)
    seen = []

    def watch(counts):
        seen.append(counts.stalled)
        if len(seen) == 3:
            load_workers()[0].suspend()
        if counts.stalled:
            load_workers()[0].resume()
        return "finish" if 1 in seen and not counts.stalled else None

    report, exchanges = run(serve(answer_after(0.05)), 10_000, concurrency=2, watch=watch)
    assert report.stopped is None
    assert set(outcomes(exchanges)) == {"complete"}
