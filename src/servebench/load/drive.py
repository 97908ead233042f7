"""The coordinator: starts a worker for one phase of load, watches it, and hands over what it saw."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from servebench.contracts.exchange import PhaseReport, PointPlan, Target
from servebench.errors import LoadError, StoreError
from servebench.load.jobs import GO, STOP, Counts, Progress, job_bytes

TICK_S = 0.1
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0

Watch = Callable[[Counts], str | None]
"""Called ten times a second while load runs; returns a short reason to stop the phase (`engine_died`), or None."""


class _Worker:
    """A worker process and the lines it says."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "servebench.load.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        self._said = b""

    def order(self, order: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(order)

    def give(self, job: bytes) -> None:
        assert self.process.stdin is not None
        view = memoryview(job)
        try:
            while view:
                view = view[self.process.stdin.write(view) or 0 :]
        except BrokenPipeError:
            raise self.lost() from None

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
            self.process.wait()


def drive(target: Target, plan: PointPlan, *, spool: Path, watch: Watch) -> PhaseReport:
    """Drive one phase and return what the client knows of itself; the exchanges are in the spool (`read_spool`).

    Raises LoadError when the target cannot be reached at all or the worker died (the spool then holds what it had
    finished), StoreError when the spool cannot be written. KeyboardInterrupt stops the worker and ends the phase with
    a report that says `interrupt`; everything so far is in the spool. It goes on only when the worker says no more.
    """
    with tempfile.TemporaryDirectory(prefix="servebench-") as folder:
        page = Path(folder) / "progress"
        with Progress.create(page) as progress:
            worker = _Worker()
            try:
                worker.give(job_bytes(target, plan, spool, page))
                return _watch(worker, plan, progress, watch)
            except KeyboardInterrupt:
                report = _stop(worker, "interrupt")
                if report is None:
                    raise
                return report
            finally:
                worker.close()


def _watch(worker: _Worker, plan: PointPlan, progress: Progress, watch: Watch) -> PhaseReport:
    if worker.line(READY_TIMEOUT_S + plan.connect_timeout_s) is None:
        raise LoadError(f"a load worker was not ready within {READY_TIMEOUT_S + plan.connect_timeout_s:g} s")
    worker.order(GO)
    while True:
        said = worker.line(TICK_S)
        counts = progress.read()
        if said is not None:
            watch(counts)
            return PhaseReport(**said)
        reason = watch(counts)
        if reason is not None:
            report = _stop(worker, reason)
            if report is None:
                raise worker.lost()
            return report


def _stop(worker: _Worker, reason: str) -> PhaseReport | None:
    """Have the worker write everything down and end; None when it could not."""
    worker.order(STOP + reason.encode() + b"\n")
    with contextlib.suppress(LoadError, StoreError):
        while said := worker.line(STOP_TIMEOUT_S):
            if "planned" in said:
                return PhaseReport(**said)
    return None
