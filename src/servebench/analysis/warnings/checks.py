"""What a check of a point works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from servebench.contracts.exchange import PhaseReport
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Record
from servebench.contracts.settings import RunSettings


@dataclass(frozen=True)
class MeasuredPoint:
    """A point with everything that is known of it. `requests` excludes the warm-up and `fillers`."""

    row: PointRow
    requests: Sequence[Record]
    report: PhaseReport
    settings: RunSettings
    tokenizer_exact: bool
    tokenizer_name: str
    fillers: Sequence[Record] = ()

    @cached_property
    def ok(self) -> list[Record]:
        """The requests that succeeded."""
        return [record for record in self.requests if record.outcome == "ok"]
