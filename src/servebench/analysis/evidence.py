"""Everything that a point is built from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from servebench.analysis.disturbance import Disturbance, first_sent_ns
from servebench.analysis.drift import Drift
from servebench.contracts.engine import Engine
from servebench.contracts.exchange import ClientFloor, PhaseReport
from servebench.contracts.phase import PhaseFacts
from servebench.contracts.point_row import PointRow
from servebench.contracts.request import Request, Tokenizer
from servebench.contracts.results import Record
from servebench.contracts.settings import RunSettings
from servebench.contracts.telemetry import Reading
from servebench.load.plan.levels import PlannedPoint


@dataclass(frozen=True, kw_only=True)
class PointEvidence:
    """Everything that a point is built from, whether it was just measured, recovered from its files or simulated.

    `records` are all of the point. A recovered point has no `tokenizer` and no `floor`; of its `requests` it knows what answers
    are compared with, and nothing where that was not stored. `row`, `drifts` (by metric) and `disturbances` follow from the
    rest: who builds the point fills them in.
    """

    settings: RunSettings
    level: PlannedPoint
    engine: Engine
    emulated: bool
    facts: PhaseFacts
    report: PhaseReport
    records: Sequence[Record] = ()
    requests: Sequence[Request] = ()
    readings: Sequence[Reading] = ()
    tokenizer: Tokenizer | None = None
    floor: ClientFloor | None = None
    row: PointRow = field(default_factory=PointRow)
    drifts: Mapping[str, Drift] = field(default_factory=dict)
    disturbances: Sequence[Disturbance] = ()

    @property
    def began_ns(self) -> int:
        """When its first request was sent: the seconds in messages count from there."""
        return first_sent_ns(self.measured) or self.report.started_ns

    @cached_property
    def measured(self) -> list[Record]:
        """The records without those of the warm-up and fillers."""
        return [record for record in self.records if record.measured]

    @cached_property
    def ok(self) -> list[Record]:
        """The measured records that succeeded."""
        return [record for record in self.measured if record.outcome == "ok"]

    @cached_property
    def fillers(self) -> list[Record]:
        """The records of requests that only kept the level."""
        return [record for record in self.records if record.filler]
