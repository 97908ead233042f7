"""How a plan is split over workers, and how their reports are merged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from servebench.contracts.exchange import PhaseReport, PlannedRequest, PointPlan
from servebench.load.coordinator.drive import merge_reports, split_plan, worker_count, worker_spools


@pytest.mark.parametrize(
    ("asked", "in_flight", "rate", "cores", "expected"),
    [
        (1, 5000, None, 64, 1),
        (4, 5000, None, 2, 4),
        (4, 3, None, 64, 3),
        ("auto", 64, None, 64, 1),
        ("auto", 5000, None, 64, 3),
        ("auto", 5000, None, 8, 2),
        ("auto", 5000, None, 2, 1),
        ("auto", 100_000, 2.0, 64, 1),
        ("auto", 100_000, 1200.0, 64, 3),
    ],
)
def test_worker_count(asked, in_flight, rate, cores, expected):
    """As configured, or by streams (requests per second in an open loop) and cores."""
    assert worker_count(asked, in_flight=in_flight, rate_req_s=rate, cores=cores) == expected


def plan(count, concurrency, session=lambda index: None, **more):
    requests = [PlannedRequest(request_id=f"r{i}", path="/", body=b"", session_id=session(i)) for i in range(count)]
    return PointPlan(requests=requests, concurrency=concurrency, timeout_s=1, connect_timeout_s=1, **more)


def test_each_worker_gets_its_share_of_the_fillers_after_its_measured_requests():
    parts = split_plan(plan(10, 4, fillers=4), 2)
    assert [part.fillers for part in parts] == [2, 2]
    assert {r.request_id for part in parts for r in part.requests[part.measured :]} == {"r6", "r7", "r8", "r9"}


def test_streams_and_requests_are_dealt_evenly_and_in_order():
    """Seven streams over three workers: three, two, two; requests in proportion, each once."""
    parts = split_plan(plan(70, 7), 3)
    assert [part.concurrency for part in parts] == [3, 2, 2]
    assert [len(part.requests) for part in parts] == [30, 20, 20]
    assert sorted(int(r.request_id[1:]) for part in parts for r in part.requests) == list(range(70))
    for part in parts:
        numbers = [int(r.request_id[1:]) for r in part.requests]
        assert numbers == sorted(numbers)
        assert numbers[-1] >= 66


def test_a_session_stays_with_one_worker():
    """A turn waits for the answer before it, which only that worker has."""
    parts = split_plan(plan(60, 4, session=lambda index: f"s{index % 10}"), 3)
    homes = [{r.session_id for r in part.requests} for part in parts]
    assert sum(len(home) for home in homes) == 10
    assert sum(len(part.requests) for part in parts) == 60


def test_a_worker_without_requests_is_not_started():
    """One session cannot be split."""
    assert len(split_plan(plan(5, 4, session=lambda index: "one"), 3)) == 1


def test_every_worker_has_its_own_spool():
    """Also if the point's name has a dot."""
    found = worker_spools(Path("raw/q2.5-r0.spool"), 3)
    assert [path.name for path in found] == ["q2.5-r0.spool", "q2.5-r0.w1.spool", "q2.5-r0.w2.spool"]


def report(**changes):
    fields = {
        "started_ns": 10,
        "ended_ns": 20,
        "planned": 5,
        "sent": 5,
        "elapsed_s": 1.0,
        "cpu_s": 0.5,
        "loop_lag_ms_p99": 0.1,
        "loop_lag_ms_max": 0.2,
        "clock_step_ns": 0,
        "stamp_source": "kernel",
    }
    return PhaseReport(**(fields | changes))


def test_merged_reports():
    """Sums where they make sense, the worst value elsewhere."""
    found = merge_reports(
        [
            report(connections_opened=3),
            report(
                started_ns=5, ended_ns=30, elapsed_s=2.0, loop_lag_ms_p99=0.7, clock_step_ns=-9, connections_opened=1
            ),
            report(loop_lag_ms_p99=None, loop_lag_ms_max=None, clock_step_ns=4, stopped="worker_died", error="gone"),
        ]
    )
    assert (found.started_ns, found.ended_ns, found.planned, found.sent, found.elapsed_s) == (5, 30, 15, 15, 2.0)
    assert (found.cpu_s, found.loop_lag_ms_p99, found.clock_step_ns, found.workers) == (1.5, 0.7, -9, 3)
    assert (found.stopped, found.error, found.connections_opened) == ("worker_died", "gone", 4)
    with pytest.raises(ValueError, match="no worker"):
        merge_reports([])


def test_dependent_sessions_go_to_one_worker():
    """Sessions that wait for each other, directly or through others, share a worker; the rest is spread."""
    ties = {3: ("r0",), 5: ("r3",)}
    requests = [
        PlannedRequest(request_id=f"r{i}", path="/", body=b"", session_id=f"s{i}", after=ties.get(i, ()))
        for i in range(9)
    ]
    parts = split_plan(PointPlan(requests=requests, concurrency=3, timeout_s=1, connect_timeout_s=1), 3)
    of = {request.request_id: number for number, part in enumerate(parts) for request in part.requests}
    assert of["r0"] == of["r3"] == of["r5"]
    assert Counter(of.values()) == {0: 3, 1: 3, 2: 3}
