"""Compares runs: the rows of all levels, their corrected p-values, and the result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from servebench.analysis.comparison.families import corrected
from servebench.analysis.comparison.methods import compare_level, missing_row
from servebench.analysis.comparison.model import (
    FAILED,
    METRICS,
    ComparedPoint,
    Comparison,
    ComparisonRow,
    Metric,
    Side,
)
from servebench.analysis.comparison.starts import group_by_start
from servebench.analysis.fairness import SettingDifference
from servebench.analysis.verdict import Reason, ReasonKind
from servebench.analysis.warnings.weighing import Weight, weigh
from servebench.contracts.level import Level

SIGNIFICANCE = 0.05
MARGIN = 0.05
"""The smallest difference that matters by default."""
FAILED_MARGIN = 0.01
"""The difference between shares of failed requests that matters."""
STARTS_ADVISED = 5
"""Starts with which a difference of 5% is found where starts differ by 1% (docs/calibration.md)."""


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
    level: Level, baseline: Side, candidate: Side, with_doubtful: bool, metrics: Sequence[Metric]
) -> list[ComparisonRow]:
    points = [point for side in (baseline, candidate) for point in side.samples if point.level == level]
    for name, side in (("baseline", baseline), ("candidate", candidate)):
        if not any(point.level == level for point in side.samples):
            row = missing_row(level, metrics[0], Reason(ReasonKind.LEVEL_MISSING, side=name))
            return [replace(row, level_missing=name == "candidate")]
    void = [point for point in points if point.verdict == "void"]
    if void:
        codes = tuple(dict.fromkeys(code for point in void for code in point.doubts))
        return [replace(missing_row(level, metrics[0], Reason(ReasonKind.VOID_POINT, codes=codes)), level_missing=True)]
    sides = [[point for point in side.samples if point.level == level] for side in (baseline, candidate)]
    return [_weighed(row, sides, with_doubtful) for row in compare_level(level, baseline, candidate, metrics)]


def _weighed(row: ComparisonRow, sides: Sequence[Sequence[ComparedPoint]], with_doubtful: bool) -> ComparisonRow:
    """The row with what the warnings of its points mean for it: a wider interval, or a result that is only provisional."""
    weights = [_weight(points, row.metric) for points in sides]
    doubts = tuple(dict.fromkeys(code for weight in weights for code in weight.unbounded))
    factor = (1 + weights[0].bound) * (1 + weights[1].bound)
    if row.low is not None and row.high is not None and row.metric is not FAILED:
        row = replace(row, low=(1 + row.low) / factor - 1, high=(1 + row.high) * factor - 1)
    bounded = tuple(dict.fromkeys(code for weight in weights for code in weight.bounded))
    reasons = (
        *row.reasons,
        *([Reason(ReasonKind.WIDENED, share=factor - 1, codes=bounded)] if bounded else []),
        *([Reason(ReasonKind.PROVISIONAL, codes=doubts)] if doubts else []),
    )
    competes = row.competes and (with_doubtful or not doubts)
    widened = _widened_by_start(sides, row.metric)
    return replace(row, competes=competes, reasons=reasons, doubts=doubts, widened=widened)


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
    open_by = Reason(ReasonKind.MAY_BE_CHANCE if row.may_be_chance else ReasonKind.INTERVAL_TOO_WIDE)
    return replace(row, bound=bound, reasons=row.reasons or (open_by,))


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
        starts=(len(group_by_start(baseline.samples)), len(group_by_start(candidate.samples))),
        start_seconds=(baseline.start_seconds, candidate.start_seconds),
    )
    return with_rows(found, rows)


def with_rows(
    comparison: Comparison, rows: tuple[ComparisonRow, ...], deciding: Collection[Metric] = (*METRICS, FAILED)
) -> Comparison:
    """Return the comparison with these rows, and the result that follows from them. Only metrics that are `deciding` keep it
    open."""
    if any(one.matters for one in comparison.unequal):
        withheld = tuple(replace(row, result="unequal_settings", competes=False) for row in rows)
        return replace(comparison, rows=withheld, result="unequal_settings", bound=None)
    found = replace(comparison, rows=rows, bound=None)
    results = {row.result for row in found.competing}
    if different := results & {"faster", "slower"}:
        return replace(found, result="mixed" if len(different) > 1 else different.pop())
    same = [row.bound or 0.0 for row in found.competing if row.result == "no difference"]
    # a row whose interval is too wide for a verdict may differ by more
    undecided = [row for row in found.competing if row.result == "not enough data" and row.metric in deciding]
    if same and all(row.low is None for row in undecided):
        return replace(found, result="no difference", bound=max(same))
    return replace(found, result="not enough data")
