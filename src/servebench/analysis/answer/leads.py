"""Who leads at a load level, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from servebench.analysis.answer.model import AnswerCell, LevelLead, OtherDifference
from servebench.analysis.comparison.compare import SIGNIFICANCE
from servebench.analysis.comparison.decisions import starts_may_differ
from servebench.analysis.comparison.model import Comparison, ComparisonRow
from servebench.analysis.verdict import MethodKind
from servebench.contracts.labels import RunLabel
from servebench.contracts.level import Level

THROUGHPUT = "output_throughput_tok_s"


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
    first, second = order[:2]
    rows = {rival: row_between(first, rival, level, comparisons) for rival in order[1:]}
    margins = {rival: one.margin for one in comparisons for rival in order[1:] if set(one.ids) == {first, rival}}
    bounds = {rival: _bound(row, cells[first][level], cells[rival][level]) for rival, row in rows.items()}
    open_rivals = [rival for rival, row in rows.items() if not _is_clear(row, bounds[rival], margins.get(rival, 0.0))]
    # where a lead is not clear, the rival that it is not clear against is the one to name
    rival = open_rivals[0] if open_rivals else second
    row = rows[rival]
    unequal = [
        (one.key, rival in comparison.ids)
        for comparison in comparisons
        if first in comparison.ids and set(comparison.ids) <= set(order)
        for one in comparison.unequal
        if one.matters
    ]
    return LevelLead(
        level=level,
        leader=labels[first].series,
        rival=labels[rival].series,
        size=row.effect if row is not None and row.effect is not None else values[first] / values[rival] - 1,
        low=row.low if row is not None else None,
        high=row.high if row is not None else None,
        clear=not open_rivals,
        bound=bounds[rival],
        tied=tuple(labels[rival].series for rival in open_rivals),
        over_starts=row is not None and row.p_corrected is not None,
        certain=row is not None and row.p_corrected is not None and row.p_corrected < SIGNIFICANCE,
        verdict=all(row is not None and row.competes and row.result == "faster" for row in rows.values()),
        unequal=tuple(dict.fromkeys(key for key, _ in unequal)),
        unequal_rival=any(named for _, named in unequal),
        codes=tuple(dict.fromkeys(code for one in rows.values() if one is not None for code in one.doubts)),
        within=_equal_within(row_between(a, b, level, comparisons) for a, b in combinations(order, 2)),
        behind=tuple((labels[run].series, values[run] / values[first] - 1) for run in rows if run not in open_rivals),
        by_earlier=any(
            one is not None and one.method is not None and one.method.kind is MethodKind.EARLIER_STARTS
            for one in rows.values()
        ),
    )


def _equal_within(rows: Iterable[ComparisonRow | None]) -> float | None:
    """Return the largest difference that there may be between any two runs, where none of them differ; else None."""
    bounds = [one.bound if one and one.competes and one.result == "no difference" else None for one in rows]
    return max((one for one in bounds if one is not None), default=None) if None not in bounds else None


def _is_clear(row: ComparisonRow | None, bound: float, margin: float) -> bool:
    """Whether a lead is more than chance, and may be as large as a difference that matters, the margin of the comparison.

    Over several starts, or where the spread of earlier ones is known, by the corrected p-value of the comparison. The interval
    of one start each leaves out that starts differ, so there a lead must exceed `bound`.
    """
    if row is None or row.effect is None or row.low is None or row.high is None or row.low <= 0 or row.high <= margin:
        return False
    if row.p_corrected is not None:
        return row.p_corrected < SIGNIFICANCE and (row.bound is None or row.bound > margin)
    return row.effect > bound


def _bound(row: ComparisonRow | None, ours: AnswerCell, theirs: AnswerCell) -> float:
    """Return by how much one start each of two equal engines may differ, as a share: what starts do, and what the intervals of
    the lead and of the two numbers leave open, whichever is more. The comparison pairs requests, which leaves out that the
    engines or the machine may have wandered slowly at different times; the intervals of the numbers allow for that."""
    own = (
        math.log1p(row.effect) - math.log1p(row.low) if row and row.effect is not None and row.low is not None else 0.0
    )
    apart = math.hypot(_log_distance(ours.value, ours.low), _log_distance(theirs.high, theirs.value))
    return math.expm1(math.hypot(max(own, apart), math.log1p(starts_may_differ())))


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
    open_at = {lead.level: {lead.leader, *lead.tied} for lead in leads if not lead.clear}
    found = []
    for one in comparisons:
        baseline, candidate = (labels[run].series for run in one.ids)
        rows = [
            row
            for row in one.competing
            if {baseline, candidate} <= open_at.get(row.level, set())
            and row.result in ("faster", "slower")
            and row.metric.name != THROUGHPUT
        ]
        if rows:
            largest = max(rows, key=lambda row: abs(row.effect or 0.0))
            found.append(OtherDifference(baseline=baseline, candidate=candidate, row=largest))
    return found
