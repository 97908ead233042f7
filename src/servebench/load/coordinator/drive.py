"""The coordinator: splits a phase of load, or several at once, over workers, watches them, and merges their reports."""

import contextlib
import math
import os
import select
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from servebench.contracts.exchange import PhaseReport, PlannedRequest, PointPlan, StopReason, Target
from servebench.load.client.job import FINISH, GO, STOP, encode_job
from servebench.load.client.progress import Counts, WorkerProgress, sum_counts
from servebench.load.coordinator.worker_process import READY_TIMEOUT_S, STOP_TIMEOUT_S, TICK_S, WorkerProcess
from servebench.util.errors import LoadError, StoreError, reason_of

WORKER = ("servebench.load.client.worker",)
STREAMS_PER_WORKER = 2000
"""One process holds more than this without losing exactness; with two, a burst of requests is sent sooner. `auto` goes no
further than the spare cores of the machine."""
REQUESTS_S_PER_WORKER = 500.0
CORES_PER_WORKER = 4
"""`auto` leaves three cores of four to other processes: the engine may be one of them."""
SUMMED = ("planned", "sent", "fillers", "cpu_s", "connections_opened", "connections_failed", "workers")
LARGEST = ("ended_ns", "elapsed_s", "loop_lag_ms_p99", "loop_lag_ms_max", "receive_queue_bytes_max", "nap_ms")
"""Of the reports of several workers the sum counts, or the largest value."""

Watch = Callable[[Counts], StopReason | Literal["finish"] | None]
"""Called every TICK_S while load runs. Returns a reason to stop the phase, `finish` to send nothing more and let the requests in
flight end, or None."""


@dataclass(frozen=True, kw_only=True)
class Drive:
    """One phase that is to be driven: its plan to its target, with its own workers, spools and watch."""

    target: Target
    plan: PointPlan
    spool: Path
    watch: Watch
    workers: int = 1


def drive(target: Target, plan: PointPlan, *, spool: Path, watch: Watch, workers: int = 1) -> PhaseReport:
    """Drive one phase and return the client's report of itself, see `drive_together`."""
    (report,) = drive_together([Drive(target=target, plan=plan, spool=spool, watch=watch, workers=workers)])
    return report


def drive_together(drives: Sequence[Drive]) -> list[PhaseReport]:
    """Drive phases at the same time and return the client's reports; the exchanges are in the spools (`read_spool` of each of
    `worker_spools`). All workers of all phases start together, once each has its connections.

    Raises LoadError when a target cannot be resolved or a worker never started, StoreError when a spool cannot be
    written. A worker that dies ends its phase: the report says `worker_died`, and the spools keep every finished
    request. KeyboardInterrupt ends all with reports that say `interrupt`; it is raised where a phase had no worker yet, or
    all had just ended by themselves.
    """
    with ExitStack() as stack:
        crews = [_Crew(one) for one in drives]
        try:
            for crew in crews:
                crew.hire(stack)
            for crew in crews:
                crew.await_ready()
            for crew in crews:
                crew.order(GO)
            while any(crew.report is None for crew in crews):
                waiting = [worker.output for crew in crews if crew.report is None for worker in crew.working]
                ready, _, _ = select.select(waiting, [], [], TICK_S)
                for crew in crews:
                    if crew.report is None:
                        crew.look(ready)
        except KeyboardInterrupt:
            if not all(crew.hired for crew in crews):
                raise
            for crew in crews:
                crew.report = crew.report or crew.end(StopReason.INTERRUPT)
            if not any(crew.report and crew.report.stopped is StopReason.INTERRUPT for crew in crews):
                # all had ended by themselves, and no report says it
                raise
    return [crew.report for crew in crews if crew.report is not None]


def _create_progress_page(stack: ExitStack) -> Path:
    """Create the file of a worker's counters: anonymous memory, which vanishes with this process even by kill -9, or a
    temporary file on systems without it. Raises LoadError."""
    with contextlib.suppress(AttributeError, OSError):
        memory = os.memfd_create("servebench-progress")
        stack.callback(os.close, memory)
        page = Path(f"/proc/{os.getpid()}/fd/{memory}")
        WorkerProgress.create(page)
        return page
    try:
        folder = tempfile.TemporaryDirectory(prefix="servebench-", ignore_cleanup_errors=True)
        page = Path(stack.enter_context(folder)) / "progress"
        WorkerProgress.create(page)
    except OSError as error:
        raise LoadError(
            f"cannot create a temporary file: {reason_of(error)}; "
            "free some space in TMPDIR, or set TMPDIR to another folder"
        ) from error
    return page


class _Crew:
    """The workers of a phase. Its `report` is null until it has ended."""

    def __init__(self, drive: Drive) -> None:
        self._drive = drive
        self._workers: list[WorkerProcess] = []
        self.report: PhaseReport | None = None

    @property
    def hired(self) -> bool:
        return bool(self._workers)

    @property
    def working(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker.report is None]

    def hire(self, stack: ExitStack) -> None:
        """Start the workers and give them their jobs; `stack` closes them."""
        one = self._drive
        plans = split_plan(one.plan, one.workers)
        for share, path in zip(plans, worker_spools(one.spool, len(plans)), strict=True):
            page = _create_progress_page(stack)
            progress = stack.enter_context(contextlib.closing(WorkerProgress.attach(str(page))))
            worker = WorkerProcess(share.measured, progress, WORKER)
            stack.callback(worker.close)
            self._workers.append(worker)
            with contextlib.suppress(OSError):
                # the worker reports why it cannot be written
                path.touch()
            worker.send_job(encode_job(one.target, share, path, page))

    def await_ready(self) -> None:
        """Wait until all have their connections. Raises LoadError."""
        ready_s = READY_TIMEOUT_S + self._drive.plan.connect_timeout_s
        deadline = time.monotonic() + ready_s
        for worker in self._workers:
            if worker.read_line(max(0.0, deadline - time.monotonic())) is None:
                raise LoadError(f"a load worker was not ready within {ready_s:g} s")

    def order(self, order: bytes) -> None:
        """Give an order to all that work."""
        for worker in self.working:
            worker.send_order(order)

    def look(self, ready: Collection[int]) -> None:
        """Read what those have said whose output is `ready`, and decide how the phase goes on."""
        lost: LoadError | None = None
        for worker in self.working:
            if worker.output in ready:
                lost = worker.read_report() or lost
            elif worker.hangs():
                lost = LoadError(worker.died)
        reason = self._drive.watch(sum_counts(worker.counts() for worker in self._workers))
        if lost is not None:
            self.report = self.end(StopReason.WORKER_DIED)
        elif not self.working:
            self.report = merge_reports([worker.report for worker in self._workers if worker.report is not None])
        elif reason == "finish":
            self.order(FINISH)
        elif isinstance(reason, StopReason):
            self.report = self.end(reason)

    def end(self, reason: StopReason) -> PhaseReport:
        """Have all workers finish their spools, wait for the reports of those that can still send one, and return the merged
        report. For a dead worker only the last counts are known."""
        for worker in self.working:
            if not worker.died:
                worker.send_order(STOP + reason.encode() + b"\n")
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for worker in self._workers:
            while worker.report is None and not worker.died and time.monotonic() < deadline:
                with contextlib.suppress(StoreError):
                    worker.read_report(max(0.0, deadline - time.monotonic()))
            if worker.report is None and not worker.died:
                worker.died = f"a load worker (process {worker.process.pid}) did not end after the order to stop"
        return merge_reports([worker.report or worker.report_of_lost(reason) for worker in self._workers])


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
    """Return the report of a phase from those of its workers: sums where that makes sense, the worst value elsewhere. `workers`
    counts the reports. Raises ValueError for none."""
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
