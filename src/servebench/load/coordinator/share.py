"""Splits one phase of load over several workers and merges their reports. Pure."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from servebench.contracts.exchange import PhaseReport, PlannedRequest, PointPlan

STREAMS_PER_WORKER = 2000
"""One process holds more than this without losing exactness; with two, a burst of requests is sent sooner. `auto` goes no
further than the spare cores of the machine."""

REQUESTS_S_PER_WORKER = 500.0
CORES_PER_WORKER = 4
"""`auto` leaves three cores of four to other processes: the engine may be one of them."""
SUMMED = ("planned", "sent", "fillers", "cpu_s", "connections_opened", "connections_failed", "workers")
LARGEST = ("ended_ns", "elapsed_s", "loop_lag_ms_p99", "loop_lag_ms_max", "receive_queue_bytes_max", "nap_ms")
"""Of the reports of several workers the sum counts, or the largest value."""


def worker_count(configured: int | Literal["auto"], *, in_flight: int, rate_req_s: float | None, cores: int) -> int:
    """Return the number of workers of a phase: as configured, and never more than it has streams.

    `auto`: one for each STREAMS_PER_WORKER streams (REQUESTS_S_PER_WORKER requests a second in an open loop), at most a
    quarter of the cores, and at least one.
    """
    if isinstance(configured, int):
        return max(1, min(configured, in_flight))
    streams = in_flight / STREAMS_PER_WORKER if rate_req_s is None else rate_req_s / REQUESTS_S_PER_WORKER
    return max(1, min(math.ceil(streams), cores // CORES_PER_WORKER, in_flight))


def worker_spools(spool: Path, workers: int) -> list[Path]:
    """Return the spool of each worker: the first has the name of the phase's spool."""
    return [spool, *(spool.with_name(f"{spool.stem}.w{number}{spool.suffix}") for number in range(1, workers))]


def split_plan(plan: PointPlan, workers: int) -> list[PointPlan]:
    """Return the plan of each worker: streams and requests in equal parts. Requests that depend on each other stay together:
    those of a session, and sessions of which one waits for the other.

    Requests are dealt in order, as to the streams of one worker, so that all workers end at the same time. A worker with
    one stream more than another gets more requests in proportion.
    """
    if workers == 1:
        return [plan]
    streams = [plan.concurrency // workers + (number < plan.concurrency % workers) for number in range(workers)]
    dealt: list[list[PlannedRequest]] = [[] for _ in range(workers)]
    fillers = [0] * workers
    worker_of_group: dict[str, int] = {}
    for place, (request, group) in enumerate(zip(plan.requests, _groups(plan.requests), strict=True)):
        worker = worker_of_group.get(group) if group is not None else None
        if worker is None:
            worker = min(range(workers), key=lambda number: ((len(dealt[number]) + 1) / streams[number], number))
            if group is not None:
                worker_of_group[group] = worker
        dealt[worker].append(request)
        fillers[worker] += place >= plan.measured
    spare = None if plan.connections is None else max(1, plan.connections // workers)
    starts = [
        None if plan.stream_starts_s is None else plan.stream_starts_s[number::workers] for number in range(workers)
    ]
    plan = replace(plan, slice_requests=plan.slice_requests // workers)
    return [
        replace(plan, requests=requests, fillers=extra, concurrency=count, connections=spare, stream_starts_s=start)
        for requests, extra, count, start in zip(dealt, fillers, streams, starts, strict=True)
        if requests
    ]


def _groups(requests: Sequence[PlannedRequest]) -> list[str | None]:
    """Return for each request the name of its group; None for a request without dependencies (union-find)."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while (above := parent.setdefault(name, name)) != name:
            parent[name] = name = parent[above]
        return name

    for request in requests:
        before = [*request.after, *(of for _, of in request.holes)]
        others = [f"r {of}" for of in before] + ([] if request.session_id is None else [f"s {request.session_id}"])
        for other in others:
            parent[root(f"r {request.request_id}")] = root(other)
    return [root(name) if (name := f"r {request.request_id}") in parent else None for request in requests]


def merge_reports(reports: Sequence[PhaseReport]) -> PhaseReport:
    """Return the report of a phase from those of its workers: sums where that makes sense, the worst value elsewhere.

    `workers` counts the reports. Raises ValueError for none.
    """
    if not reports:
        raise ValueError("no worker has reported")

    def known(name: str) -> list[Any]:
        return [value for report in reports if (value := getattr(report, name)) is not None]

    largest: dict[str, Any] = {name: max(known(name), default=None) for name in LARGEST}
    return PhaseReport(
        started_ns=min(known("started_ns")),
        **{name: sum(known(name)) for name in SUMMED},
        **largest,
        clock_step_ns=max(known("clock_step_ns"), key=abs),
        stamp_source="user" if "user" in known("stamp_source") else "kernel",
        stopped=next(iter(known("stopped")), None),
        error=next(iter(known("error")), None),
    )
