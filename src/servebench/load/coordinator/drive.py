"""The coordinator: starts the workers of one phase of load, watches them, and merges their reports."""

from __future__ import annotations

import contextlib
import os
import select
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
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


def drive(target: Target, plan: PointPlan, *, spool: Path, watch: Watch, workers: int = 1) -> PhaseReport:
    """Drive one phase and return the client's report of itself; the exchanges are in the spools (`read_spool` of each of
    `worker_spools`). All workers start together, once each has its connections.

    Raises LoadError when the target cannot be resolved or a worker never started, StoreError when a spool cannot be
    written. A worker that dies ends the phase for all: the report says `worker_died`, and the spools keep every finished
    request. KeyboardInterrupt ends it with a report that says `interrupt`.
    """
    plans = split_plan(plan, workers)
    with ExitStack() as stack:
        crew: list[WorkerProcess] = []
        try:
            for share, path in zip(plans, worker_spools(spool, len(plans)), strict=True):
                page = _create_progress_page(stack)
                worker = WorkerProcess(share.measured, stack.enter_context(WorkerProgress.attach(str(page))), WORKER)
                stack.callback(worker.close)
                crew.append(worker)
                with contextlib.suppress(OSError):
                    # the worker reports why it cannot be written
                    path.touch()
                worker.send_job(encode_job(target, share, path, page))
            return _watch_workers(crew, plan, watch)
        except KeyboardInterrupt:
            return _end_phase(crew, StopReason.INTERRUPT)


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


def _watch_workers(crew: Sequence[WorkerProcess], plan: PointPlan, watch: Watch) -> PhaseReport:
    ready_s = READY_TIMEOUT_S + plan.connect_timeout_s
    deadline = time.monotonic() + ready_s
    for worker in crew:
        if worker.read_line(max(0.0, deadline - time.monotonic())) is None:
            raise LoadError(f"a load worker was not ready within {ready_s:g} s")
    for worker in crew:
        worker.send_order(GO)
    while True:
        working = [worker for worker in crew if worker.report is None]
        ready, _, _ = select.select([worker.output for worker in working], [], [], TICK_S)
        lost: LoadError | None = None
        for worker in working:
            if worker.output in ready:
                lost = worker.read_report() or lost
            elif worker.hangs():
                lost = LoadError(worker.died)
        reason = watch(sum_counts(worker.counts() for worker in crew))
        if lost is not None:
            return _end_phase(crew, StopReason.WORKER_DIED)
        if all(worker.report is not None for worker in crew):
            return merge_reports([worker.report for worker in crew if worker.report is not None])
        if reason == "finish":
            for worker in working:
                worker.send_order(FINISH)
        elif isinstance(reason, StopReason):
            return _end_phase(crew, reason)


def _end_phase(crew: Sequence[WorkerProcess], reason: StopReason) -> PhaseReport:
    """End the phase for all workers and return the merged report. For a dead worker only the last counts are known."""
    _stop_workers(crew, reason)
    return merge_reports(
        [worker.report for worker in crew if worker.report is not None]
        + [worker.report_of_lost(reason) for worker in crew if worker.report is None]
    )


def _stop_workers(crew: Sequence[WorkerProcess], reason: StopReason) -> None:
    """Have all workers finish their spools, and wait for the reports of those that can still send one."""
    for worker in crew:
        if worker.report is None and not worker.died:
            worker.send_order(STOP + reason.encode() + b"\n")
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for worker in crew:
        while worker.report is None and not worker.died and time.monotonic() < deadline:
            with contextlib.suppress(StoreError):
                worker.read_report(max(0.0, deadline - time.monotonic()))
        if worker.report is None and not worker.died:
            worker.died = f"a load worker (process {worker.process.pid}) did not end after the order to stop"
