"""One phase of load over several worker processes: who gets what, and what they say together. All but `usable_cores` is pure."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from servebench.contracts.exchange import PhaseReport, PlannedRequest, PointPlan

STREAMS_PER_WORKER = 2000
"""One process holds more than that without losing exactness; two share the sending of a burst of answers that end
together. `auto` goes no further than the machine's idle cores."""

REQUESTS_S_PER_WORKER = 500.0
CORES_PER_WORKER = 4
"""`auto` leaves three cores of four to whatever else runs here: the engine may be one of it."""


def usable_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_count(asked: int | Literal["auto", "ray"], *, in_flight: int, rate_req_s: float | None, cores: int) -> int:
    """How many workers a phase gets: as asked, and never more than it has streams.

    `auto`: one for each STREAMS_PER_WORKER streams (REQUESTS_S_PER_WORKER requests a second in an open loop), but no
    more than a quarter of the cores, and at least one.
    """
    if isinstance(asked, int):
        return max(1, min(asked, in_flight))
    streams = in_flight / STREAMS_PER_WORKER if rate_req_s is None else rate_req_s / REQUESTS_S_PER_WORKER
    return max(1, min(math.ceil(streams), cores // CORES_PER_WORKER, in_flight))


def worker_spools(spool: Path, workers: int) -> list[Path]:
    """Each worker's spool: the first has the phase's own name."""
    return [spool, *(spool.with_name(f"{spool.stem}.w{number}{spool.suffix}") for number in range(1, workers))]


def split_plan(plan: PointPlan, workers: int) -> list[PointPlan]:
    """The plan of each worker: streams and requests in equal parts, what belongs together all to one worker: the requests
    of a session, and sessions of which one waits for the other.

    Requests are dealt in order, as to the streams of one worker, so that each worker's last is among the last. A worker
    with one stream more than another gets requests in proportion.
    """
    if workers == 1:
        return [plan]
    streams = [plan.concurrency // workers + (number < plan.concurrency % workers) for number in range(workers)]
    dealt: list[list[PlannedRequest]] = [[] for _ in range(workers)]
    taken: dict[str, int] = {}
    for request, group in zip(plan.requests, _groups(plan.requests), strict=True):
        to = taken.get(group) if group is not None else None
        if to is None:
            to = min(range(workers), key=lambda number: ((len(dealt[number]) + 1) / streams[number], number))
            if group is not None:
                taken[group] = to
        dealt[to].append(request)
    spare = None if plan.connections is None else max(1, plan.connections // workers)
    starts = [
        None if plan.stream_starts_s is None else plan.stream_starts_s[number::workers] for number in range(workers)
    ]
    return [
        replace(plan, requests=requests, concurrency=count, connections=spare, stream_starts_s=start)
        for requests, count, start in zip(dealt, streams, starts, strict=True)
        if requests
    ]


def _groups(requests: Sequence[PlannedRequest]) -> list[str | None]:
    """For each request the name of what it belongs to; None for one that stands alone."""
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
    """What the workers of one phase say together: sums of what adds up, and the worst of what does not.

    `workers` counts those that told something. Raises ValueError for none.
    """
    if not reports:
        raise ValueError("no worker said anything")
    lags_p99 = [report.loop_lag_ms_p99 for report in reports if report.loop_lag_ms_p99 is not None]
    lags_max = [report.loop_lag_ms_max for report in reports if report.loop_lag_ms_max is not None]
    offsets = [report.clock_offset_ms for report in reports]
    errors = [report.clock_offset_error_ms for report in reports]
    return PhaseReport(
        started_ns=min(report.started_ns for report in reports),
        ended_ns=max(report.ended_ns for report in reports),
        planned=sum(report.planned for report in reports),
        sent=sum(report.sent for report in reports),
        elapsed_s=max(report.elapsed_s for report in reports),
        cpu_s=sum(report.cpu_s for report in reports),
        loop_lag_ms_p99=max(lags_p99, default=None),
        loop_lag_ms_max=max(lags_max, default=None),
        clock_step_ns=max((report.clock_step_ns for report in reports), key=abs),
        stamp_source="user" if any(report.stamp_source == "user" for report in reports) else "kernel",
        stopped=next((report.stopped for report in reports if report.stopped), None),
        error=next((report.error for report in reports if report.error), None),
        connections_opened=sum(report.connections_opened for report in reports),
        connections_failed=sum(report.connections_failed for report in reports),
        receive_queue_bytes_max=max(report.receive_queue_bytes_max for report in reports),
        nap_ms=max(report.nap_ms for report in reports),
        workers=sum(report.workers for report in reports),
        clock_offset_ms=max((o for o in offsets if o is not None), key=abs, default=None),
        clock_offset_error_ms=max((e for e in errors if e is not None), default=None),
    )
