"""The coordinator: starts the workers of one phase of load, watches them, and hands over what they saw."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson

from servebench.contracts.exchange import PhaseReport, PointPlan, Target
from servebench.load.client.job import GO, STOP, encode_job
from servebench.load.client.progress import Counts, Progress, sum_counts
from servebench.load.coordinator.share import shares, together, worker_spools
from servebench.util.clock import step_ns, take_anchor
from servebench.util.errors import LoadError, StoreError
from servebench.util.units import NS_PER_S

TICK_S = 0.2
LOCAL_WORKER = ("servebench.load.client.worker",)
RAY_WORKER = ("servebench.load.ray.bridge", "--node")
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
SILENT_S = 60.0
"""A worker tells its counts fifty times a second; one that does not for so long hangs, or was stopped."""

Watch = Callable[[Counts], str | None]
"""Called ten times a second while load runs; returns a short reason to stop the phase (`engine_died`), or None."""


def worker_environment() -> dict[str, str]:
    """The environment of a process that must find what this one finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


class _Worker:
    """A worker process, its share of the plan, the lines it says and the report that is the last of them."""

    def __init__(self, plan: PointPlan, progress: Progress, command: Sequence[str]) -> None:
        self.plan = plan
        self.progress = progress
        self.report: PhaseReport | None = None
        self.died: str | None = None
        self._began = take_anchor()
        self._updates = 0
        self._ticks = 0
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=worker_environment(),
                bufsize=0,
            )
        except OSError as error:
            raise LoadError(f"a load worker cannot be started: {(error.strerror or str(error)).lower()}") from error
        self._said = b""

    def order(self, order: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(order)

    def give(self, job: bytes) -> None:
        assert self.process.stdin is not None
        view = memoryview(job)
        deadline = time.monotonic() + READY_TIMEOUT_S
        os.set_blocking(self.process.stdin.fileno(), False)
        try:
            while view:
                left_s = max(0.0, deadline - time.monotonic())
                if not select.select([], [self.process.stdin], [], left_s)[1]:
                    raise LoadError(f"a load worker did not take its requests within {READY_TIMEOUT_S:g} s")
                view = view[self.process.stdin.write(view) or 0 :]
        except BrokenPipeError:
            raise self.lost() from None
        os.set_blocking(self.process.stdin.fileno(), True)

    def line(self, timeout_s: float) -> dict[str, Any] | None:
        """The next line it says, or None when it said none in time. Raises LoadError when it died or failed."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._said:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            part = os.read(self.process.stdout.fileno(), 65_536)
            if not part:
                raise self.lost()
            self._said += part
        text, _, self._said = self._said.partition(b"\n")
        said: dict[str, Any] = orjson.loads(text)
        if "failed" in said:
            raise (StoreError if "full" in said else LoadError)(str(said["failed"]))
        return said

    @property
    def output(self) -> int:
        """The descriptor of what it says."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def listen(self, timeout_s: float = 0.0) -> LoadError | None:
        """Take what it says while it works. Returns how it was lost, if it was. Raises StoreError when its spool is full."""
        try:
            said = self.line(timeout_s)
        except LoadError as error:
            self.died = str(error)
            return error
        if said is not None and "planned" in said:
            self.report = PhaseReport(**said)
        return None

    def hangs(self) -> bool:
        """Whether it has told nothing new for SILENT_S. Called once a tick; ticks are counted, and not the clock asked, so
        that a machine that was suspended is not taken for a worker that hangs."""
        updates = self.progress.updates()
        self._ticks = self._ticks + 1 if updates == self._updates else 0
        self._updates = updates
        if self._ticks * TICK_S < SILENT_S:
            return False
        self.died = (
            f"a load worker (process {self.process.pid}) did nothing for {SILENT_S:g} s: it hangs, or was stopped"
        )
        return True

    def epitaph(self, stopped: str = "worker_died") -> PhaseReport:
        """What the coordinator knows of a worker that died, or that does not answer any more."""
        now, counts = take_anchor(), self.progress.read()
        return PhaseReport(
            started_ns=self._began.realtime_ns,
            ended_ns=now.realtime_ns,
            planned=len(self.plan.requests),
            sent=counts.sent,
            elapsed_s=(now.monotonic_ns - self._began.monotonic_ns) / NS_PER_S,
            cpu_s=0.0,
            loop_lag_ms_p99=None,
            loop_lag_ms_max=None,
            clock_step_ns=step_ns(self._began, now),
            stamp_source="kernel",
            stopped=stopped,
            error=self.died,
        )

    def lost(self) -> LoadError:
        """What to say of a worker that is gone."""
        assert self.process.stderr is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_S)
        words = (
            self.process.stderr.read().decode(errors="replace").strip().splitlines()
            if self.process.poll() is not None
            else []
        )
        last = f": {words[-1]}" if words else ""
        code = self.process.poll()
        how = f"by signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        return LoadError(f"a load worker died {how}{last}; what it had finished is kept")

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            # only a kernel that hangs keeps it now
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_TIMEOUT_S)


def ray_nodes() -> list[str]:
    """The ids of the living nodes of the Ray cluster at RAY_ADDRESS, else of this machine's. Raises LoadError."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", RAY_WORKER[0], "--nodes"],
            capture_output=True,
            timeout=READY_TIMEOUT_S,
            env=worker_environment(),
            check=False,
        )
        said = orjson.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        raise LoadError("the Ray cluster does not tell its nodes; look with 'ray status'") from error
    if "failed" in said:
        raise LoadError(str(said["failed"]))
    nodes: list[str] = said["nodes"]
    return nodes


def _page(held: ExitStack) -> Path:
    """Where a worker counts: memory with a name that is gone with us, even by kill -9; a temporary file where the system
    has none such. Raises LoadError."""
    with contextlib.suppress(AttributeError, OSError):
        memory = os.memfd_create("servebench-progress")
        held.callback(os.close, memory)
        page = Path(f"/proc/{os.getpid()}/fd/{memory}")
        Progress.create(page)
        return page
    try:
        folder = tempfile.TemporaryDirectory(prefix="servebench-", ignore_cleanup_errors=True)
        page = Path(held.enter_context(folder)) / "progress"
        Progress.create(page)
    except OSError as error:
        raise LoadError(
            f"no temporary file can be made: {(error.strerror or str(error)).lower()}; "
            "free some room in TMPDIR, or set TMPDIR to another folder"
        ) from error
    return page


def drive(
    target: Target, plan: PointPlan, *, spool: Path, watch: Watch, workers: int = 1, nodes: Sequence[str] = ()
) -> PhaseReport:
    """Drive one phase and return what the client knows of itself; the exchanges are in the spools (`read_spool` of each
    of `worker_spools`). All workers start together, once each has its connections. With `nodes` (ids of a Ray cluster's
    nodes) each worker runs on one of them, and a process here stands for it.

    Raises LoadError when the target cannot be reached at all or a worker never started, StoreError when a spool cannot
    be written. A worker that dies at work ends the phase for all: the report says `worker_died`, and the spools hold
    what was finished. KeyboardInterrupt ends it with a report that says `interrupt`.
    """
    plans = shares(plan, workers)
    with ExitStack() as held:
        crew: list[_Worker] = []
        try:
            for number, (share, path) in enumerate(zip(plans, worker_spools(spool, len(plans)), strict=True)):
                page = _page(held)
                command = [*RAY_WORKER, nodes[number]] if nodes else LOCAL_WORKER
                worker = _Worker(share, held.enter_context(Progress.attach(str(page))), command)
                held.callback(worker.close)
                crew.append(worker)
                with contextlib.suppress(OSError):
                    # the worker says better than we why it cannot be written
                    path.touch()
                worker.give(encode_job(target, share, path, page))
            return _watch(crew, plan, watch)
        except KeyboardInterrupt:
            return _ended(crew, "interrupt")


def _watch(crew: Sequence[_Worker], plan: PointPlan, watch: Watch) -> PhaseReport:
    ready_s = READY_TIMEOUT_S + plan.connect_timeout_s
    deadline = time.monotonic() + ready_s
    for worker in crew:
        if worker.line(max(0.0, deadline - time.monotonic())) is None:
            raise LoadError(f"a load worker was not ready within {ready_s:g} s")
    for worker in crew:
        worker.order(GO)
    while True:
        at_work = [worker for worker in crew if worker.report is None]
        ready, _, _ = select.select([worker.output for worker in at_work], [], [], TICK_S)
        lost: LoadError | None = None
        for worker in at_work:
            if worker.output in ready:
                lost = worker.listen() or lost
            elif worker.hangs():
                lost = LoadError(worker.died)
        reason = watch(sum_counts(worker.progress.read() for worker in crew))
        if lost is not None:
            return _ended(crew, "worker_died")
        if all(worker.report is not None for worker in crew):
            return together([worker.report for worker in crew if worker.report is not None])
        if reason is not None:
            return _ended(crew, reason)


def _ended(crew: Sequence[_Worker], reason: str) -> PhaseReport:
    """End the phase for all, and what is known of it then: of those that cannot tell any more, what we saw."""
    reports = _stop(crew, reason)
    return together([*reports, *(worker.epitaph(reason) for worker in crew if worker.report is None)])


def _stop(crew: Sequence[_Worker], reason: str) -> list[PhaseReport]:
    """Have all workers write everything down and end; the reports of those that could."""
    for worker in crew:
        if worker.report is None and not worker.died:
            worker.order(STOP + reason.encode() + b"\n")
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for worker in crew:
        while worker.report is None and not worker.died and time.monotonic() < deadline:
            with contextlib.suppress(StoreError):
                worker.listen(max(0.0, deadline - time.monotonic()))
        if worker.report is None and not worker.died:
            worker.died = f"a load worker (process {worker.process.pid}) did not end when it was told to"
    return [worker.report for worker in crew if worker.report is not None]
