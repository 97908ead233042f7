"""Compares runs whose starts were fixed before: the rows of all levels, their corrected p-values, and the result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from servebench.analysis.fairness import SettingDifference
from servebench.analysis.verdict.families import Asked, corrected
from servebench.analysis.verdict.model import (
    DIFFERENT,
    EQUAL,
    FAILED,
    METRICS,
    MIXED,
    OPEN,
    UNEQUAL,
    Comparison,
    ComparisonRow,
    Metric,
    Side,
    better,
)
from servebench.analysis.verdict.questions import questions
from servebench.analysis.verdict.reasons import Reason, ReasonKind
from servebench.analysis.verdict.starts import group_by_start

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
    asked = [questions(baseline, candidate, with_doubtful) for baseline, candidate, _ in listed]
    corrections = corrected([[Asked(row.metric.name, row.p, row.starts) for row in rows] for rows in asked])
    return [
        with_rows(
            Comparison(
                baseline=a.name,
                candidate=b.name,
                ids=(a.run_id, b.run_id),
                rows=(),
                unequal=tuple(unequal),
                margin=margin,
                starts=(len(group_by_start(a.samples)), len(group_by_start(b.samples))),
                start_seconds=(a.start_seconds, b.start_seconds),
            ),
            tuple(_judge(replace(row, p_corrected=p), margin) for row, p in zip(rows, ps, strict=True)),
        )
        for (a, b, unequal), rows, ps in zip(listed, asked, corrections, strict=True)
    ]


def _judge(row: ComparisonRow, margin: float) -> ComparisonRow:
    """The row with its verdict. Rows of a single start have no p-value, and so none."""
    found = row.difference
    if found is None or row.p_corrected is None:
        return row
    margin = margin if row.metric is not FAILED else FAILED_MARGIN
    if found.bound <= margin:
        # a difference that is certain and too small to matter is no difference either
        return row.judged(EQUAL, bound=found.bound)
    if row.p_corrected < SIGNIFICANCE and found.leaves_out_zero:
        return row.judged(better(row.metric, found.effect), bound=found.bound)
    if found.bound <= 2 * margin:
        return row.judged(EQUAL, bound=found.bound)
    row = row.judged(OPEN, bound=found.bound)
    open_by = ReasonKind.MAY_BE_CHANCE if row.may_be_chance else ReasonKind.INTERVAL_TOO_WIDE
    return row if row.reasons else row.because(Reason(open_by))


def with_rows(
    comparison: Comparison, rows: Iterable[ComparisonRow], deciding: Collection[Metric] = (*METRICS, FAILED)
) -> Comparison:
    """Return the comparison with these rows, and the result that follows from them. Only metrics that are `deciding` keep it
    open."""
    if comparison.mattering:
        withheld = tuple(replace(row.judged(UNEQUAL, bound=row.bound), competes=False) for row in rows)
        return replace(comparison, rows=withheld, result=UNEQUAL, bound=None)
    found = replace(comparison, rows=tuple(rows), bound=None)
    if different := {row.result for row in found.competing} & DIFFERENT:
        return replace(found, result=MIXED if len(different) > 1 else different.pop())
    same = [row.bound or 0.0 for row in found.competing if row.result is EQUAL]
    # a row whose interval is too wide for a verdict may differ by more
    undecided = [row for row in found.competing if row.result is OPEN and row.metric in deciding]
    if same and all(row.low is None for row in undecided):
        return replace(found, result=EQUAL, bound=max(same))
    return replace(found, result=OPEN)
