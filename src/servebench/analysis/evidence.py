"""Everything that a point is built from."""

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
from servebench.measure.in_flight import sent_and_ended
from servebench.measure.window import few_remain, not_counted_sends, pauses_of
from servebench.util.stretches import Spans, length, merged, outside


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
    def pauses(self) -> Spans:
        """The stretches between the slices of a point in slices."""
        return pauses_of(self.facts, self.report)

    @property
    def disturbed_out_ns(self) -> int:
        """How much of the window is left out because others took the machine."""
        window = self.row.window_ns or (0, 0)
        return length(self.row.left_out) - length(merged(self.pauses, *window))

    @property
    def disturbed_latencies(self) -> bool:
        """Whether too few requests remain outside of what is left out because others took the machine."""
        if not self.disturbed_out_ns or self.row.window_ns is None:
            return False
        start, end = self.row.window_ns
        sent, _ = sent_and_ended(self.measured)
        inside = (sent >= start) & (sent <= end)
        kept, whole = (
            inside & outside(sent, out) for out in (self.row.not_counted, not_counted_sends(self.pauses, self.measured))
        )
        return few_remain(int(kept.sum()), int(whole.sum()))

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
