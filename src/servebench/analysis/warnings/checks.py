"""What a check of a point works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from servebench.analysis.disturbance import Disturbance, first_sent_ns
from servebench.analysis.drift import Drift
from servebench.contracts.exchange import PhaseReport
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Record
from servebench.contracts.settings import RunSettings
from servebench.contracts.telemetry import Reading


@dataclass(frozen=True)
class MeasuredPoint:
    """A point with everything that is known of it. `requests` excludes the warm-up and `fillers`; `drifts` is by metric."""

    row: PointRow
    requests: Sequence[Record]
    report: PhaseReport
    settings: RunSettings
    tokenizer_exact: bool
    tokenizer_name: str
    fillers: Sequence[Record] = ()
    drifts: Mapping[str, Drift] = field(default_factory=dict)
    readings: Sequence[Reading] = ()
    disturbances: Sequence[Disturbance] = ()

    @property
    def began_ns(self) -> int:
        """When its first request was sent: the seconds in messages count from there."""
        return first_sent_ns(self.requests) or self.report.started_ns

    @cached_property
    def ok(self) -> list[Record]:
        """The requests that succeeded."""
        return [record for record in self.requests if record.outcome == "ok"]
