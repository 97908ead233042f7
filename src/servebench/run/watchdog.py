"""Progress of a phase while it runs, and the reasons to stop it early."""

from __future__ import annotations

import time

from servebench.contracts.engine import RunningEngine
from servebench.contracts.exchange import StopReason
from servebench.load.client.progress import Counts
from servebench.report.terminal.display import Display


class Watcher:
    """Looks after a phase while it runs: shows progress, and stops it when the engine is gone."""

    def __init__(
        self,
        display: Display,
        running: RunningEngine,
        label: str,
        planned: int,
        duration_s: float | None,
        *,
        patience_s: float,
    ) -> None:
        """`patience_s` is how long an engine that was asked may send nothing at all."""
        self._display = display
        self._running = running
        self._label = label
        self._planned = planned
        self._duration_s = duration_s
        self._began = self._last = time.monotonic()
        self._reads = 0
        self._rate = 0.0
        self._patience_s = patience_s
        self._seen = Counts()
        self._heard = self._began
        self.silent_s = 0.0

    def __call__(self, counts: Counts) -> StopReason | None:
        """Called about ten times a second."""
        now = time.monotonic()
        spent = now - self._began
        if now - self._last >= 1.0:
            self._rate = (counts.reads - self._reads) / (now - self._last)
            self._reads, self._last = counts.reads, now
        done = counts.completed + counts.failed
        if self._duration_s is not None:
            left_s: float | None = max(0.0, self._duration_s - spent)
        else:
            left_s = spent / done * (self._planned - done) if done else None
        self._display.progress(
            label=self._label,
            done=done,
            planned=self._planned,
            failed=counts.failed,
            in_flight=counts.in_flight,
            rate=self._rate or (counts.reads / spent if spent else 0.0),
            left_s=left_s,
            silent_s=self.silent_s,
        )
        if self._running.died():
            return StopReason.ENGINE_DIED
        return StopReason.NO_PROGRESS if self._silence(counts, now) > self._patience_s else None

    def _silence(self, counts: Counts, now: float) -> float:
        """For how long nothing came though something was asked. A pause that the plan makes is none."""
        seen, self._seen = self._seen, counts
        asked = counts.in_flight or counts.failed > seen.failed
        if counts.reads > seen.reads or counts.completed > seen.completed or not asked:
            self._heard = now
        self.silent_s = now - self._heard
        return self.silent_s
