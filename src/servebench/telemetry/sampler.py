"""Sample all sources at an interval, in a thread besides the load; nothing is parsed until the load is over."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from servebench.contracts.telemetry import Reading, TelemetrySource

JOIN_TIMEOUT_S = 10.0
"""How long the end of a phase waits for a running sample; sources limit their samples to less."""


class Sampler:
    """`with Sampler(sources, interval_s) as sampler: drive(...)`, then `sampler.readings()`.

    One sample is taken on entry and one on exit, so that the differences of counters span the phase. A source that fails
    loses that sample; `failures` counts the lost samples by source.
    """

    def __init__(self, sources: Sequence[TelemetrySource], interval_s: float) -> None:
        self._sources = sources
        self._interval_s = interval_s
        self._samples: list[tuple[TelemetrySource, int, Any]] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.failures: Counter[str] = Counter()

    def __enter__(self) -> Self:
        if self._sources:
            self._sample()
            self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is None:
            return
        self._thread.join(JOIN_TIMEOUT_S)
        if not self._thread.is_alive() and kind is None:
            self._sample()

    def _run(self) -> None:
        due = time.monotonic() + self._interval_s
        while not self._over.wait(max(0.0, due - time.monotonic())):
            self._sample()
            # a slow source skips samples instead of queueing them
            due = max(due + self._interval_s, time.monotonic())

    def _sample(self) -> None:
        for source in self._sources:
            try:
                began = time.time_ns()
                sample = source.sample()
                # the value belongs to some moment between the call and its return
                t_ns = (began + time.time_ns()) // 2
            except Exception:  # noqa: BLE001 - a source may be a plugin's, and load must go on
                sample = None
            if sample is None:
                self.failures[source.name] += 1
            else:
                self._samples.append((source, t_ns, sample))

    def readings(self) -> list[Reading]:
        """Return all readings in order of time, without samples that cannot be parsed. Call it when the phase is over."""
        readings: list[Reading] = []
        for source, t_ns, sample in self._samples:
            try:
                readings += source.readings(t_ns, sample)
            except Exception:  # noqa: BLE001 - as above
                self.failures[source.name] += 1
        return readings
