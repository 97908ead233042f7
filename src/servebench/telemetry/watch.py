"""Open the telemetry sources of a run once, and make a sampler for each of its points."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from servebench.contracts.settings import TelemetrySettings
from servebench.contracts.telemetry import Subject, TelemetrySource
from servebench.telemetry.sampler import Sampler


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
            source = kind(subject)
            try:
                reason = source.open()
            except Exception as error:  # noqa: BLE001 - a source may be a plugin's
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
            if reason is None:
                telemetry.sources.append(source)
            else:
                telemetry.missing[source.name] = reason
                source.close()
        return telemetry

    def sampler(self) -> Sampler:
        """Return a sampler for one point; pass it to `add_failures` afterwards."""
        return Sampler(self.sources, self.settings.interval_s)

    def add_failures(self, sampler: Sampler) -> None:
        """Add the samples that a sampler lost."""
        self.failures.update(sampler.failures)

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
            source.close()
