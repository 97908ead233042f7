"""Compares runs: the rows of all levels, their corrected p-values, and the result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

from servebench.analysis.comparison.families import corrected
from servebench.analysis.comparison.methods import ONE_START, compare_level, missing_row
from servebench.analysis.comparison.model import (
    FAILED,
    METRICS,
    ComparedPoint,
    Comparison,
    ComparisonRow,
    Metric,
    Result,
    Side,
)
from servebench.analysis.comparison.starts import group_by_start
from servebench.analysis.fairness import SettingDifference, how_to_resolve, mattering_keys
from servebench.analysis.warnings.weighing import Weight, weigh
from servebench.util.figures import duration

SIGNIFICANCE = 0.05
MARGIN = 0.05
"""The smallest difference that matters by default."""
FAILED_MARGIN = 0.01
"""The difference between shares of failed requests that matters."""
STARTS_ADVISED = 5
"""Starts with which a difference of 5% is found where starts differ by 1% (docs/calibration.md)."""
REASONS_MAX = 3
MORE_STARTS = "more starts are needed (study.starts)"
TOO_WIDE = f"the interval is too wide for a verdict: {MORE_STARTS}"
MAY_BE_CHANCE = f"among so many rows, an interval may leave out 0 by chance: {MORE_STARTS}"
"""Why rows have no verdict."""


def compare(
    pairs: Iterable[tuple[Side, Side, Sequence[SettingDifference]]],
    *,
    margin: float = MARGIN,
    with_doubtful: bool = False,
) -> list[Comparison]:
    """Compare each candidate with its baseline: (baseline, candidate, their unequal settings). Pure.

    `margin` is a share. P-values are corrected over all pairs. `with_doubtful` accepts what warnings make provisional.
    """
    listed = list(pairs)
    rows = corrected([level_rows(baseline, candidate, with_doubtful) for baseline, candidate, _ in listed])
    return [
        _conclude(baseline, candidate, tuple(_judge(row, margin) for row in own), tuple(unequal), margin)
        for (baseline, candidate, unequal), own in zip(listed, rows, strict=True)
    ]


def level_rows(
    baseline: Side, candidate: Side, with_doubtful: bool, metrics: Sequence[Metric] = METRICS
) -> list[ComparisonRow]:
    """Return the rows of all levels, not yet corrected and judged."""
    levels = dict.fromkeys(point.level for side in (baseline, candidate) for point in side.samples)
    return [row for level in levels for row in _level_rows(level, baseline, candidate, with_doubtful, metrics)]


def _level_rows(
    level: str, baseline: Side, candidate: Side, with_doubtful: bool, metrics: Sequence[Metric]
) -> list[ComparisonRow]:
    points = [point for side in (baseline, candidate) for point in side.samples if point.level == level]
    for name, side in (("baseline", baseline), ("candidate", candidate)):
        if not any(point.level == level for point in side.samples):
            row = missing_row(level, metrics[0], f"the {name} has no such level")
            return [replace(row, level_missing=name == "candidate")]
    void = [point for point in points if point.verdict == "void"]
    if void:
        codes = ", ".join(dict.fromkeys(code for point in void for code in point.doubts)) or "void"
        return [replace(missing_row(level, metrics[0], f"void point: {codes}"), level_missing=True)]
    sides = [[point for point in side.samples if point.level == level] for side in (baseline, candidate)]
    return [_weighed(row, sides, with_doubtful) for row in compare_level(level, baseline, candidate, metrics)]


def _weighed(row: ComparisonRow, sides: Sequence[Sequence[ComparedPoint]], with_doubtful: bool) -> ComparisonRow:
    """The row with what the warnings of its points mean for it: a wider interval, or a result that is only provisional."""
    weights = [_weight(points, row.metric) for points in sides]
    doubts = tuple(dict.fromkeys(code for weight in weights for code in weight.unbounded))
    factor = (1 + weights[0].bound) * (1 + weights[1].bound)
    if row.low is not None and row.high is not None and row.metric is not FAILED:
        row = replace(row, low=(1 + row.low) / factor - 1, high=(1 + row.high) * factor - 1)
    bounded = ", ".join(dict.fromkeys(code for weight in weights for code in weight.bounded))
    parts = (
        row.why,
        f"wider by {factor - 1:.1%} for {bounded}" if bounded else "",
        f"provisional: {', '.join(doubts)}" * bool(doubts),
    )
    competes = row.competes and (with_doubtful or not doubts)
    widened = _widened_by_start(sides, row.metric)
    return replace(row, competes=competes, why="; ".join(filter(None, parts)), doubts=doubts, widened=widened)


def _weight(points: Iterable[ComparedPoint], metric: Metric) -> Weight:
    return weigh([(point.doubts, point.row) for point in points], metric.name)


def _widened_by_start(sides: Sequence[Sequence[ComparedPoint]], metric: Metric) -> tuple[float, ...]:
    """Return by how much the warnings of the first start of each side widen an interval, of the first two, and so on."""
    starts = [group_by_start(points) for points in sides]
    bounds = [
        [_weight(chain.from_iterable(side[:count]), metric).bound for side in starts]
        for count in range(1, max(map(len, starts)) + 1)
    ]
    return tuple((1 + ours) * (1 + theirs) - 1 for ours, theirs in bounds)


def _judge(row: ComparisonRow, margin: float) -> ComparisonRow:
    """The row with its verdict. Rows of a single start have no p-value, and so none."""
    if row.effect is None or row.low is None or row.high is None or row.p_corrected is None:
        return row
    bound = max(abs(row.low), abs(row.high))
    margin = margin if row.metric is not FAILED else FAILED_MARGIN
    if bound <= margin:
        # a difference that is certain and too small to matter is no difference either
        return replace(row, result="no difference", bound=bound)
    if row.p_corrected < SIGNIFICANCE and not row.low <= 0 <= row.high:
        better = (row.effect > 0) == row.metric.higher_is_better
        return replace(row, result="faster" if better else "slower", bound=bound)
    if bound <= 2 * margin:
        return replace(row, result="no difference", bound=bound)
    row = replace(row, bound=bound)
    return replace(row, why=row.why or (MAY_BE_CHANCE if row.may_be_chance else TOO_WIDE))


def _conclude(
    baseline: Side,
    candidate: Side,
    rows: tuple[ComparisonRow, ...],
    unequal: tuple[SettingDifference, ...],
    margin: float,
) -> Comparison:
    found = Comparison(
        baseline=baseline.name,
        candidate=candidate.name,
        ids=(baseline.run_id, candidate.run_id),
        rows=(),
        unequal=unequal,
        margin=margin,
        result="not enough data",
        summary="",
    )
    found = with_rows(found, rows)
    alone = _one_start(baseline, candidate, rows) if found.result == "not enough data" else ""
    return replace(found, summary=alone) if alone else found


def with_rows(
    comparison: Comparison, rows: tuple[ComparisonRow, ...], deciding: Collection[Metric] = (*METRICS, FAILED)
) -> Comparison:
    """Return the comparison with these rows, and the result and the summary that follow from them. Only metrics that are
    `deciding` keep it open."""
    comparison = replace(comparison, bound=None)
    if unequal := [one for one in comparison.unequal if one.matters]:
        withheld = tuple(replace(row, result="unequal_settings", competes=False) for row in rows)
        summary = f"no verdict: the runs have different settings ({mattering_keys(unequal)}); {how_to_resolve(unequal)}"
        return replace(comparison, rows=withheld, result="unequal_settings", summary=summary)
    competing = [row for row in rows if row.competes]
    faster, slower, same = (
        [row for row in competing if row.result == result] for result in ("faster", "slower", "no difference")
    )
    if faster or slower:
        result: Result | Literal["mixed"] = "mixed" if faster and slower else "faster" if faster else "slower"
        how = "faster in some metrics and slower in others" if result == "mixed" else result
        largest = _largest((*slower, *faster)).description
        return replace(
            comparison, rows=rows, result=result, summary=f"{comparison.candidate} is {how}; largest change: {largest}"
        )
    bound = max((row.bound or 0 for row in same), default=0.0)
    # a row whose interval is too wide for a verdict may differ by more
    undecided = (row for row in competing if row.result == "not enough data" and row.metric in deciding)
    if same and not any(row.low is not None for row in undecided):
        short = len(competing) - len(same)
        rest = f" ({short} of {len(competing)} rows have too little data)" if short else ""
        summary = f"they differ by at most {bound:.1%}{rest}"
        return replace(comparison, rows=rows, result="no difference", summary=summary, bound=bound)
    summary = _why_undecided(rows)
    summary += f" ({len(same)} of {len(competing)} rows differ by at most {bound:.1%})" if same else ""
    return replace(comparison, rows=rows, result="not enough data", summary=summary)


def _one_start(baseline: Side, candidate: Side, rows: Sequence[ComparisonRow]) -> str:
    """What two runs with one start each show, and what gives a verdict; empty for other runs."""
    alone = [row for row in rows if row.why.startswith(ONE_START)]
    if not alone:
        return ""
    clear = [row for row in alone if row.low is not None and row.high is not None and not row.low <= 0 <= row.high]
    largest = f"these two differ most in {_largest(clear).description}" if clear else "these two do not clearly differ"
    seconds = [side.start_seconds for side in (baseline, candidate)]
    total = STARTS_ADVISED * sum(one for one in seconds if one is not None)
    price = f" (about {duration(total)} for these two)" if None not in seconds else ""
    few = [side.name for side in (baseline, candidate) if _start_count(side) < 2]
    which = ONE_START if len(few) == 2 else f"one start of {few[0]}: no verdict on the engines" if few else ONE_START
    return f"{which}; {largest}; study.starts={STARTS_ADVISED} gives a verdict{price}"


def _start_count(side: Side) -> int:
    return len(group_by_start(side.samples))


def _largest(rows: Iterable[ComparisonRow]) -> ComparisonRow:
    return max(rows, key=lambda row: abs(row.effect or 0))


def _why_undecided(rows: Sequence[ComparisonRow]) -> str:
    excluded = [row for row in rows if not row.competes and row.result in ("faster", "slower")]
    if excluded:
        codes = ", ".join(dict.fromkeys(code for row in excluded for code in row.doubts))
        largest = _largest(excluded)
        return (
            f"provisional: {largest.description} ({largest.result}), but every level with a difference has warnings of unknown "
            f"size ({codes}); --with-doubtful accepts it"
        )
    reasons = _reasons(rows)
    if reasons[:1] == [MORE_STARTS]:
        return f"not decided: {MORE_STARTS}"
    return f"not enough data: {'; '.join(reasons[:REASONS_MAX])}" if reasons else "not enough data"


def _reasons(rows: Sequence[ComparisonRow]) -> list[str]:
    """Why rows have no result, each reason once, what more starts settle first."""
    parts = dict.fromkeys(part for row in rows for part in row.why.split("; ") if part)
    found = dict.fromkeys(MORE_STARTS if part in (MAY_BE_CHANCE, TOO_WIDE) else part for part in parts)
    return sorted(found, key=lambda part: part != MORE_STARTS)
