"""A load worker as its coordinator sees it: a process that gets a job and orders, and answers in lines of JSON."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from servebench.contracts.exchange import PhaseReport, StopReason
from servebench.load.client.progress import Counts, WorkerProgress
from servebench.util.children import SCHEDULER_SECRETS, python_environment
from servebench.util.clock import step_ns, take_anchor
from servebench.util.errors import LoadError, StoreError, reason_of
from servebench.util.signals import end_by_closing
from servebench.util.units import NS_PER_S

TICK_S = 0.2
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
SILENT_S = 60.0
"""A worker publishes its counters fifty times a second; one that publishes none for this long hangs or was stopped."""
STALLED_S = 5.0
"""After this long without an update nobody can say what a worker's requests have received."""


def worker_environment() -> dict[str, str]:
    """Return the environment of a load worker and of the server of the self-check."""
    return python_environment(None, *SCHEDULER_SECRETS)


class WorkerProcess:
    """A worker process, how many measured requests it has, the lines that it sends, and the report that is the last of them.
    `died` is the reason why it is lost, None while it is not."""

    def __init__(self, planned: int, progress: WorkerProgress, command: Sequence[str]) -> None:
        """Start `python -m COMMAND`. Raises LoadError."""
        self.planned = planned
        self.progress = progress
        self.report: PhaseReport | None = None
        self.died: str | None = None
        self._began = take_anchor()
        self._updates = 0
        self._silent_ticks = 0
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
            raise LoadError(f"cannot start a load worker: {reason_of(error)}") from error
        self._received = b""

    def send_order(self, order: bytes) -> None:
        """Send an order; a worker that is gone misses it."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(order)

    def send_job(self, job: bytes) -> None:
        """Send the job. Raises LoadError when the worker dies or does not take it."""
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
            raise self.death() from None
        os.set_blocking(self.process.stdin.fileno(), True)

    def read_line(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next line, or None when none came in time. Raises LoadError when the worker died or failed, StoreError when
        it could not write its spool."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            part = os.read(self.process.stdout.fileno(), 65_536)
            if not part:
                raise self.death()
            self._received += part
        text, _, self._received = self._received.partition(b"\n")
        line: dict[str, Any] = orjson.loads(text)
        if "failed" in line:
            raise (StoreError if "full" in line else LoadError)(str(line["failed"]))
        return line

    @property
    def output(self) -> int:
        """The descriptor of the worker's standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def read_report(self, timeout_s: float = 0.0) -> LoadError | None:
        """Read the report if it has come. Returns the error of a lost worker; raises StoreError when its spool is full."""
        try:
            line = self.read_line(timeout_s)
        except LoadError as error:
            self.died = str(error)
            return error
        if line is not None and "planned" in line:
            stopped = line.pop("stopped", None)
            self.report = PhaseReport(**line, stopped=StopReason(stopped) if stopped else None)
        return None

    def counts(self) -> Counts:
        """Return how far the worker is, and whether that is old."""
        stalled = self.report is None and self._silent_ticks * TICK_S >= STALLED_S
        return replace(self.progress.read(), stalled=int(stalled))

    def hangs(self) -> bool:
        """Whether the worker has published nothing for SILENT_S. Must be called once every TICK_S. Calls are counted, and the
        clock is not asked, so that a suspended machine is not taken for a hanging worker."""
        updates = self.progress.updates()
        self._silent_ticks = self._silent_ticks + 1 if updates == self._updates else 0
        self._updates = updates
        if self._silent_ticks * TICK_S < SILENT_S:
            return False
        self.died = f"a load worker (process {self.process.pid}) hangs or was stopped: no progress for {SILENT_S:g} s"
        return True

    def report_of_lost(self, stopped: StopReason) -> PhaseReport:
        """Return what is known of a worker that died or does not answer: its last counts."""
        now, counts = take_anchor(), self.progress.read()
        return PhaseReport(
            started_ns=self._began.realtime_ns,
            ended_ns=now.realtime_ns,
            planned=self.planned,
            sent=counts.sent,
            elapsed_s=(now.monotonic_ns - self._began.monotonic_ns) / NS_PER_S,
            clock_step_ns=step_ns(self._began, now),
            stopped=stopped,
            error=self.died,
        )

    def death(self) -> LoadError:
        """Return the error of a worker that has died: how, and the last line of its standard error."""
        assert self.process.stderr is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_S)
        code = self.process.poll()
        lines = [] if code is None else self.process.stderr.read().decode(errors="replace").strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        how = f"by signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        return LoadError(f"a load worker died {how}{last}; the requests that it had finished are kept")

    def close(self) -> None:
        """End the process: a worker stops when its standard input closes."""
        end_by_closing(self.process, STOP_TIMEOUT_S)
