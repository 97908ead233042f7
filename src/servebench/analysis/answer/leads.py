"""Which run is best at a load level, and by how much: a ranking of the verdicts that its comparisons give."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from servebench.analysis.answer.model import AnswerCell, LevelLead, OtherDifference, Overall, Rival
from servebench.analysis.estimate import THROUGHPUT
from servebench.analysis.verdict.compare import SIGNIFICANCE
from servebench.analysis.verdict.model import DIFFERENT, EQUAL, FASTER, Comparison, ComparisonRow
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
        rivals.append(
            Rival(
                label=labels[run].series,
                distance=values[run] / values[first] - 1,
                row=row,
                clear=_is_clear(row, comparison.margin if comparison else 0.0),
                bound=row.difference.chance if row is not None and row.difference is not None else 0.0,
                unequal=tuple(one.key for one in comparison.mattering) if comparison else (),
            )
        )
    within = _equal_within(row_between(a, b, level, comparisons) for a, b in combinations(order, 2))
    return LevelLead(level=level, best=labels[first].series, rivals=tuple(rivals), within=within)


def find_overall(
    runs: Sequence[str], labels: Mapping[str, RunLabel], comparisons: Sequence[Comparison]
) -> Overall | None:
    """Return the verdict on some runs by the first question of their comparisons; None where it is open or refused."""
    rows = {
        pair: row
        for one in comparisons
        if one.first is not None and one.first.competes
        for pair, row in ((one.ids[::-1], one.first), (one.ids, one.first.turned()))
    }
    within = _equal_within(rows.get(pair) for pair in combinations(runs, 2))
    if within is not None:
        return Overall(within=within)
    for best in runs:
        over = {rival: rows.get((best, rival)) for rival in runs if rival != best}
        if over and all(row is not None and row.result is FASTER for row in over.values()):
            rival, row = min(over.items(), key=lambda one: (one[1].effect if one[1] else None) or 0.0)
            assert row is not None
            names = labels[best].series, labels[rival].series
            return Overall(best=names[0], rival=names[1], size=row.effect, low=row.low, high=row.high)
    return None


def _equal_within(rows: Iterable[ComparisonRow | None]) -> float | None:
    """Return the largest difference that there may be between any two runs, where none of them differ; else None."""
    bounds = [one.bound if one and one.competes and one.result is EQUAL else None for one in rows]
    return max((one for one in bounds if one is not None), default=None) if None not in bounds else None


def _is_clear(row: ComparisonRow | None, margin: float) -> bool:
    """Whether a lead is more than chance, and may be as large as a difference that matters, the margin of the comparison: by the
    corrected p-value, or, of one start each, by its interval."""
    found = row.difference if row is not None else None
    if row is None or found is None or found.low <= 0 or found.high <= margin:
        return False
    return row.p_corrected is None or (row.p_corrected < SIGNIFICANCE and (row.bound is None or row.bound > margin))


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
