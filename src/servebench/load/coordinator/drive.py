"""The coordinator: starts the workers of a phase of load, or of several at once, watches them, and merges their reports."""

import contextlib
import os
import select
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from servebench.contracts.exchange import PhaseReport, PointPlan, StopReason, Target
from servebench.load.client.job import FINISH, GO, STOP, encode_job
from servebench.load.client.progress import Counts, WorkerProgress, sum_counts
from servebench.load.coordinator.share import merge_reports, split_plan, worker_spools
from servebench.load.coordinator.worker_process import READY_TIMEOUT_S, STOP_TIMEOUT_S, TICK_S, WorkerProcess
from servebench.util.errors import LoadError, StoreError, reason_of

WORKER = ("servebench.load.client.worker",)

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
    request. KeyboardInterrupt ends all with reports that say `interrupt`; it is raised where a phase had no worker yet.
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
