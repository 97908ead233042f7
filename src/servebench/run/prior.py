"""Progress of earlier attempts at a run: points that are kept, and the number of attempts at others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from servebench.analysis.answer.next_steps import needs_again
from servebench.analysis.warnings.catalog import type_of
from servebench.contracts.point_id import PointId
from servebench.contracts.precision import may_be_replaced
from servebench.contracts.results import Point, RunOutcome
from servebench.contracts.settings import RunSettings
from servebench.contracts.turns import Turn
from servebench.load.plan.levels import plan_levels
from servebench.store.layout import RunFolder
from servebench.store.state import read_run
from servebench.store.tables import read_records, read_rows


@dataclass(frozen=True, kw_only=True)
class PriorProgress:
    """The points of a run that are kept, and the number of attempts at each point, both by the first attempt."""

    points: Mapping[PointId, Point] = field(default_factory=dict)
    attempts: Mapping[PointId, int] = field(default_factory=dict)

    def after(self, outcome: RunOutcome) -> PriorProgress:
        """Return the progress after a turn of the run with this outcome."""
        return replace(self, points={point.id.first: point for point in outcome.points})


def without_void(earlier: PriorProgress, turn: Turn) -> PriorProgress:
    """Return the progress without the void points of a turn that another start may replace."""
    void = {
        first: point
        for first, point in earlier.points.items()
        if turn.includes(first) and may_be_replaced(point.verdict, point.row.point)
    }
    tried = {first: max(earlier.attempts.get(first, 0), point.id.attempt + 1) for first, point in void.items()}
    kept = {first: point for first, point in earlier.points.items() if first not in void}
    return replace(earlier, points=kept, attempts={**earlier.attempts, **tried})


def levels_given_up(earlier: PriorProgress) -> frozenset[str]:
    """Return the levels with a void point that no other start may replace."""
    void = [one for one in earlier.points.values() if one.verdict == "void"]
    return frozenset(one.id.level for one in void if not may_be_replaced(one.verdict, one.row.point))


def has_unmeasured(settings: RunSettings, turn: Turn, earlier: PriorProgress) -> bool:
    """Return whether the load has levels of this turn that are not measured yet."""
    listed = plan_levels(settings.load, settings.workload.seed, settings.study.listed_starts)
    return any(turn.includes(level.id) and level.id not in earlier.points for level in listed)


def prior_progress(folder: RunFolder, *, better: bool = False) -> PriorProgress:
    """Return the stored progress of a run, whatever its status; with `better` without points that a longer measurement may
    settle. Raises StoreError."""
    if not folder.state.exists():
        return PriorProgress()
    status = read_run(folder).status
    points = {point.id.first: point for point in stored_points(folder) if not must_repeat(point, status, better=better)}
    tried = {PointId.parse(name) for name in {record.point for record in read_records(folder)}}
    return PriorProgress(points=points, attempts=Counter(point.first for point in tried))


def must_repeat(point: Point, status: str, *, better: bool = False) -> bool:
    """Return whether a stored point is measured again: it was cut off, or it had no success and its run failed."""
    if better and needs_again(point.row.verdict, point.row.doubts):
        return True
    return any(type_of(code).cut_off for code in point.codes) or (status == "failed" and not point.row.requests_ok)


def stored_points(folder: RunFolder) -> list[Point]:
    """Return the stored points of a run. Of their warnings only the codes are stored; the figures of each are not. Raises
    StoreError."""
    return [
        Point(
            row=row,
            doubts=tuple(one.issue(one.meaning, void=row.verdict == "void") for one in map(type_of, row.doubts)),
        )
        for row in read_rows(folder)
    ]
