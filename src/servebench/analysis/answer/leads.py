"""Which run is best at a load level, and by how much: a ranking of the verdicts that its comparisons give."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from servebench.analysis.answer.model import AnswerCell, LevelLead, OtherDifference, Rival
from servebench.analysis.estimate import THROUGHPUT
from servebench.analysis.verdict.compare import SIGNIFICANCE
from servebench.analysis.verdict.model import DIFFERENT, EQUAL, Comparison, ComparisonRow
from servebench.analysis.verdict.one_start import one_start_bound
from servebench.contracts.labels import RunLabel
from servebench.contracts.level import Level


def find_lead(
    level: Level,
    cells: Mapping[str, Mapping[Level, AnswerCell]],
    labels: Mapping[str, RunLabel],
    comparisons: Sequence[Comparison],
) -> LevelLead | None:
    """Return the lead at a level; None with fewer than two runs that count there."""
    values = {
        run: own[level].value or 0.0 for run, own in cells.items() if level in own and own[level].verdict != "void"
    }
    order = sorted((run for run, value in values.items() if value), key=lambda run: -values[run])
    if len(order) < 2:
        return None
    first = order[0]
    rivals = []
    for run in order[1:]:
        comparison = next((one for one in comparisons if set(one.ids) == {first, run}), None)
        row = row_between(first, run, level, comparisons)
        bound = _bound(row, cells[first][level], cells[run][level])
        rivals.append(
            Rival(
                label=labels[run].series,
                distance=values[run] / values[first] - 1,
                row=row,
                clear=_is_clear(row, bound, comparison.margin if comparison else 0.0),
                bound=bound,
                unequal=tuple(one.key for one in comparison.mattering) if comparison else (),
            )
        )
    within = _equal_within(row_between(a, b, level, comparisons) for a, b in combinations(order, 2))
    return LevelLead(level=level, best=labels[first].series, rivals=tuple(rivals), within=within)


def _equal_within(rows: Iterable[ComparisonRow | None]) -> float | None:
    """Return the largest difference that there may be between any two runs, where none of them differ; else None."""
    bounds = [one.bound if one and one.competes and one.result is EQUAL else None for one in rows]
    return max((one for one in bounds if one is not None), default=None) if None not in bounds else None


def _is_clear(row: ComparisonRow | None, bound: float, margin: float) -> bool:
    """Whether a lead is more than chance, and may be as large as a difference that matters, the margin of the comparison.

    Over several starts, or where the spread of earlier ones is known, by the corrected p-value of the comparison. The interval
    of one start each leaves out that starts differ, so there a lead must exceed `bound`.
    """
    found = row.difference if row is not None else None
    if row is None or found is None or found.low <= 0 or found.high <= margin:
        return False
    if row.p_corrected is not None:
        return row.p_corrected < SIGNIFICANCE and (row.bound is None or row.bound > margin)
    return found.effect > bound


def _bound(row: ComparisonRow | None, ours: AnswerCell, theirs: AnswerCell) -> float:
    """Return by how much one start each of two equal engines may differ, as a share: what starts do, and what the intervals of
    the lead and of the two numbers leave open, whichever is more. The comparison pairs requests, which leaves out that the
    engines or the machine may have wandered slowly at different times; the intervals of the numbers allow for that."""
    found = row.difference if row is not None else None
    own = math.log1p(found.effect) - found.logs[0] if found is not None else 0.0
    apart = math.hypot(_log_distance(ours.value, ours.low), _log_distance(theirs.high, theirs.value))
    return one_start_bound(max(own, apart))


def _log_distance(upper: float | None, lower: float | None) -> float:
    return math.log(upper / lower) if upper and lower and lower > 0 else 0.0


def row_between(
    first: str, rival: str, level: Level | None, comparisons: Iterable[Comparison], metric: str = THROUGHPUT
) -> ComparisonRow | None:
    """Return the row of two runs for a metric at a level, with the first as the candidate; None where there is none."""
    for one in comparisons:
        if set(one.ids) != {first, rival}:
            continue
        row = next((row for row in one.rows if row.level == level and row.metric.name == metric), None)
        return row if row is None or one.ids == (rival, first) else row.turned()
    return None


def other_differences(
    leads: Sequence[LevelLead], comparisons: Iterable[Comparison], labels: Mapping[str, RunLabel]
) -> list[OtherDifference]:
    """Return what differs by the comparisons between runs whose throughput does not at a level, such as latency at a rate that
    all engines complete: of each pair the largest change."""
    open_at = {lead.level: {lead.best, *lead.tied} for lead in leads if not lead.clear}
    found = []
    for one in comparisons:
        baseline, candidate = (labels[run].series for run in one.ids)
        rows = [
            row
            for row in one.competing
            if {baseline, candidate} <= open_at.get(row.level, set())
            and row.result in DIFFERENT
            and row.metric.name != THROUGHPUT
        ]
        if rows:
            largest = max(rows, key=lambda row: abs(row.effect or 0.0))
            found.append(OtherDifference(baseline=baseline, candidate=candidate, row=largest))
    return found
