"""Sample all sources at their intervals, in threads besides the load; samples are parsed some seconds later."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from servebench.contracts.settings import TelemetrySettings
from servebench.contracts.telemetry import Reading, Subject, TelemetrySource

JOIN_TIMEOUT_S = 10.0
"""How long the end of a phase waits for a running sample; sources limit their samples to less."""

LOG_INTERVAL_S = 2.0
"""How often readings are logged: a kill -9 costs at most these, as it does of the answers in flight."""

LOG_SHARE = 0.05
"""The share of a core that parsing and logging may take while load runs; with slow sources the log is written less often."""


class Sampler:
    """`with Sampler(sources, interval_s) as sampler: drive(...)`, then `sampler.readings()`.

    One sample is taken on entry and one on exit, so that the differences of counters span the phase. A source that fails
    loses that sample; `failures` counts the lost samples by source. `log` is given the readings while the phase goes on; it
    never raises.
    """

    def __init__(
        self,
        sources: Sequence[TelemetrySource],
        interval_s: float,
        log: Callable[[Sequence[Reading]], None] | None = None,
        failures: Counter[str] | None = None,
    ) -> None:
        self._sources = sources
        self._interval_s = interval_s
        self._log = log
        self._samples: list[tuple[TelemetrySource, int, Any]] = []
        self._readings: list[Reading] = []
        self._logged = 0
        self._parsing = threading.Lock()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.failures: Counter[str] = Counter() if failures is None else failures

    def __enter__(self) -> Self:
        self._sample(self._sources)
        self._write_log()
        paces: dict[float, list[TelemetrySource]] = {}
        for source in self._sources:
            paces.setdefault(source.interval_s or self._interval_s, []).append(source)
        self._threads = [
            threading.Thread(target=self._run, args=(sources, interval_s), name="telemetry", daemon=True)
            for interval_s, sources in paces.items()
        ]
        if self._log is not None and self._sources:
            self._threads.append(threading.Thread(target=self._run_log, name="telemetry-log", daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads) and kind is None:
            self._sample(self._sources)
            self._write_log()

    def _run_log(self) -> None:
        pause_s = LOG_INTERVAL_S
        while not self._over.wait(pause_s):
            began_s = time.monotonic()
            self._write_log()
            pause_s = max(LOG_INTERVAL_S, (time.monotonic() - began_s) / LOG_SHARE)

    def _write_log(self) -> None:
        if self._log is not None:
            self._parse()
            if new := self._readings[self._logged :]:
                self._logged += len(new)
                self._log(new)

    def _run(self, sources: Sequence[TelemetrySource], interval_s: float) -> None:
        due = time.monotonic() + interval_s
        while not self._over.wait(max(0.0, due - time.monotonic())):
            self._sample(sources)
            # a slow source skips samples instead of queueing them
            due = max(due + interval_s, time.monotonic())

    def _sample(self, sources: Sequence[TelemetrySource]) -> None:
        for source in sources:
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

    def _parse(self) -> None:
        """Convert the samples that were taken since the last call, without those that cannot be parsed."""
        with self._parsing:
            taken = self._samples[:]
            del self._samples[: len(taken)]
            for source, t_ns, sample in taken:
                try:
                    self._readings += sorted(source.readings(t_ns, sample), key=lambda one: one.t_ns)
                except Exception:  # noqa: BLE001 - as above
                    self.failures[source.name] += 1

    def readings(self) -> list[Reading]:
        """Return all readings so far in order of time, without samples that cannot be parsed."""
        self._parse()
        return sorted(self._readings, key=lambda one: one.t_ns)


@dataclass
class Telemetry:
    """The sources of a run. `missing` says why a source is unavailable; `failures` counts lost samples. Both by source."""

    settings: TelemetrySettings
    sources: list[TelemetrySource] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)

    @classmethod
    def open(cls, classes: Iterable[type[TelemetrySource]], subject: Subject, settings: TelemetrySettings) -> Self:
        """Open every source. One that is unavailable or raises an exception is listed in `missing`."""
        telemetry = cls(settings)
        if not settings.enabled:
            return telemetry
        for kind in classes:
            try:
                source = kind(subject)
                reason = source.open()
                if reason is None:
                    telemetry.sources.append(source)
                else:
                    source.close()
            except Exception as error:  # noqa: BLE001 - a source may be a plugin's
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
            if reason is not None:
                telemetry.missing[kind.name] = reason
        return telemetry

    def sampler(self, log: Callable[[Sequence[Reading]], None]) -> Sampler:
        """Return a sampler for one point, which adds its lost samples to `failures`."""
        return Sampler(self.sources, self.settings.interval_s, log, self.failures)

    def facts(self) -> dict[str, object]:
        """Return the manifest's entries: the sources that were read, those that were not and why, and lost samples."""
        return {
            "interval_s": self.settings.interval_s if self.settings.enabled else None,
            "sources": [source.name for source in self.sources],
            "missing": dict(self.missing),
            "lost_samples": dict(self.failures),
        }

    def close(self) -> None:
        """Close every source."""
        for source in self.sources:
            with suppress(Exception):  # as above
                source.close()
