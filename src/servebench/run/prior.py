"""What earlier attempts at a run left: points that stand, attempts per level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from servebench.contracts.point_id import PointId
from servebench.contracts.results import Doubt, Point, RunOutcome
from servebench.contracts.settings import RunSettings
from servebench.load.plan.levels import plan_levels
from servebench.store import (
    RunFolder,
    read_records,
    read_rows,
    read_run,
)

CUT_OFF = frozenset({"interrupted", "engine_died", "worker_died", "no_progress"})
"""Doubts of a point that did not come to its end: it is measured again."""


@dataclass(frozen=True, kw_only=True)
class PriorProgress:
    """What earlier attempts at a run left: the points that stand, and how often others were tried, by their first attempt."""

    points: Mapping[PointId, Point] = field(default_factory=dict)
    attempts: Mapping[PointId, int] = field(default_factory=dict)

    def after(self, outcome: RunOutcome) -> PriorProgress:
        """With what a turn of the run has measured meanwhile."""
        return replace(self, points={point.id.first: point for point in outcome.points})


def unmeasured(settings: RunSettings, repeat: int | None, earlier: PriorProgress) -> bool:
    """Whether levels of this repeat are listed that no earlier attempt measured."""
    listed = plan_levels(settings.load, settings.workload.seed)
    return any(level.repeat == repeat and level.id not in earlier.points for level in listed)


def prior_progress(folder: RunFolder) -> PriorProgress:
    """What earlier attempts at a run left, whatever came of them. Raises StoreError."""
    if not folder.state.exists():
        return PriorProgress()
    status = read_run(folder).status
    points = {point.id.first: point for point in stored_points(folder) if not _to_repeat(point, status)}
    tried: dict[PointId, set[PointId]] = {}
    for record in read_records(folder):
        point = PointId.parse(record.point)
        tried.setdefault(point.first, set()).add(point)
    return PriorProgress(points=points, attempts={level: len(names) for level, names in tried.items()})


def _to_repeat(point: Point, status: str) -> bool:
    """A point that was cut off (in a finished run, by the death of a worker), and one of a failed run in which nothing
    succeeded."""
    return _cut_off(point) or (status == "failed" and not point.row.requests_ok)


def _cut_off(point: Point) -> bool:
    return any(doubt.code in CUT_OFF for doubt in point.doubts)


def stored_points(folder: RunFolder) -> list[Point]:
    """The points of a run as they were stored; of their doubts only the codes are known. Raises StoreError."""
    return [
        Point(row=row, doubts=tuple(_doubt(code, void=row.verdict == "void") for code in row.doubts))
        for row in read_rows(folder)
    ]


def _doubt(code: str, *, void: bool) -> Doubt:
    return Doubt(code=code, message="told when the point was measured", remedy="see the study's first part", void=void)
