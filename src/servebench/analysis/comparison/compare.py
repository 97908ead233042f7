"""Compares runs: the rows of all levels, their corrected p-values, and the result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from servebench.analysis.comparison.methods import compare_failures, compare_metric, missing_row
from servebench.analysis.comparison.model import (
    FAILED,
    METRICS,
    ComparedPoint,
    Comparison,
    ComparisonRow,
    Result,
    Side,
)
from servebench.analysis.comparison.resampling import START_SD, widen_for_starts
from servebench.analysis.fairness import SettingDifference, how_to_resolve, mattering_keys

SIGNIFICANCE = 0.05
MARGIN = 0.05
"""The smallest difference that matters by default: about what two starts of one engine differ by."""
FAILED_MARGIN = 0.01
"""The difference between shares of failed requests that matters."""
REASONS_MAX = 3


def compare(
    pairs: Iterable[tuple[Side, Side, Sequence[SettingDifference]]],
    *,
    margin: float = MARGIN,
    with_doubtful: bool = False,
    start_sd: float = START_SD,
    seed: int = 0,
) -> list[Comparison]:
    """Compare each candidate with its baseline: (baseline, candidate, their unequal settings). Pure.

    `margin` and `start_sd` are shares. P-values are corrected over all rows of all pairs. `with_doubtful` lets doubtful
    points compete. The same input and seed give the same result.
    """
    measured = [
        (baseline, candidate, tuple(unequal), _rows(baseline, candidate, with_doubtful, seed))
        for baseline, candidate, unequal in pairs
    ]
    corrected = iter(holm([row.p for *_, rows in measured for row in rows]))
    found = []
    for baseline, candidate, unequal, rows in measured:
        judged = tuple(_judge(_widened(replace(row, p_corrected=next(corrected)), start_sd), margin) for row in rows)
        found.append(_conclude(baseline, candidate, judged, unequal, margin))
    return found


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values with Holm's step-down correction; None is no test and stays None."""
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    found: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        found[index] = largest
    return found


def _rows(baseline: Side, candidate: Side, with_doubtful: bool, seed: int) -> list[ComparisonRow]:
    levels = dict.fromkeys(point.level for side in (baseline, candidate) for point in side.samples)
    rows = []
    for level in levels:
        ours = [point for point in baseline.samples if point.level == level]
        theirs = [point for point in candidate.samples if point.level == level]
        rows += _level_rows(level, ours, theirs, with_doubtful, seed)
    return rows


def _level_rows(
    level: str, ours: Sequence[ComparedPoint], theirs: Sequence[ComparedPoint], with_doubtful: bool, seed: int
) -> list[ComparisonRow]:
    if not ours or not theirs:
        side = "baseline" if not ours else "candidate"
        return [missing_row(level, METRICS[0], f"the {side} has no such level")]
    void = [point for point in (*ours, *theirs) if point.verdict == "void"]
    if void:
        codes = ", ".join(dict.fromkeys(code for point in void for code in point.doubts)) or "void"
        return [missing_row(level, METRICS[0], f"void point: {codes}")]
    doubts = tuple(dict.fromkeys(code for p in (*ours, *theirs) if p.verdict != "valid" for code in p.doubts))
    why = f"doubtful: {', '.join(doubts)}" if doubts else ""
    competes = with_doubtful or not doubts
    found = [compare_metric(level, metric, ours, theirs, seed) for metric in METRICS]
    found.append(compare_failures(level, ours, theirs))
    return [
        replace(row, competes=competes and row.competes, why="; ".join(filter(None, (row.why, why))), doubts=doubts)
        for row in found
        if row is not None
    ]


def _widened(row: ComparisonRow, start_sd: float) -> ComparisonRow:
    """The row with its interval widened by how much two starts of one engine differ."""
    if row.effect is None or row.low is None or row.high is None or row.metric is FAILED or not np.isfinite(row.effect):
        return row
    middle, low, high = (float(np.log1p(max(end, -1 + 1e-12))) for end in (row.effect, row.low, row.high))
    low, high = widen_for_starts(middle, low, high, start_sd)
    return replace(row, low=low, high=high)


def _judge(row: ComparisonRow, margin: float) -> ComparisonRow:
    if row.effect is None or row.low is None or row.high is None:
        return row
    bound = max(abs(row.low), abs(row.high))
    significant = row.p_corrected is not None and row.p_corrected < SIGNIFICANCE and not row.low <= 0 <= row.high
    margin = margin if row.metric is not FAILED else FAILED_MARGIN
    if significant and (row.metric is FAILED or abs(row.effect) >= margin):
        better = (row.effect > 0) == row.metric.higher_is_better
        return replace(row, result="faster" if better else "slower", bound=bound)
    if bound <= 2 * margin:
        return replace(row, result="no difference", bound=bound)
    return replace(row, bound=bound, why=row.why or _too_wide(bound))


def _too_wide(bound: float) -> str:
    reach = f"reaches {bound:.0%}" if np.isfinite(bound) else "is unbounded"
    return f"the interval {reach}: more requests or repeats are needed"


def _conclude(
    baseline: Side,
    candidate: Side,
    rows: tuple[ComparisonRow, ...],
    unequal: tuple[SettingDifference, ...],
    margin: float,
) -> Comparison:
    facts: dict[str, Any] = {
        "baseline": baseline.name,
        "candidate": candidate.name,
        "unequal": unequal,
        "margin": margin,
    }
    if any(one.matters for one in unequal):
        withheld = tuple(replace(row, result="unequal_settings", competes=False) for row in rows)
        summary = f"no verdict: the runs have different settings ({mattering_keys(unequal)}); {how_to_resolve(unequal)}"
        return Comparison(rows=withheld, result="unequal_settings", summary=summary, **facts)
    competing = [row for row in rows if row.competes]
    faster, slower, same = (
        [row for row in competing if row.result == result] for result in ("faster", "slower", "no difference")
    )
    if faster or slower:
        result: Result | Literal["mixed"] = "mixed" if faster and slower else "faster" if faster else "slower"
        how = "faster in some metrics and slower in others" if result == "mixed" else result
        largest = _largest((*slower, *faster)).description
        summary = f"{candidate.name} is {how}; largest change: {largest}"
        return Comparison(rows=rows, result=result, summary=summary, **facts)
    if same:
        bound = max(row.bound or 0 for row in same)
        short = len(competing) - len(same)
        rest = f" ({short} of {len(competing)} rows have not enough data)" if short else ""
        summary = f"no difference larger than {bound:.1%}{rest}"
        return Comparison(rows=rows, result="no difference", summary=summary, bound=bound, **facts)
    return Comparison(rows=rows, result="not enough data", summary=_why_undecided(rows), **facts)


def _largest(rows: Iterable[ComparisonRow]) -> ComparisonRow:
    return max(rows, key=lambda row: abs(row.effect or 0))


def _why_undecided(rows: Sequence[ComparisonRow]) -> str:
    excluded = [row for row in rows if not row.competes and row.result in ("faster", "slower")]
    if excluded:
        codes = ", ".join(dict.fromkeys(code for row in excluded for code in row.doubts))
        largest = _largest(excluded)
        return (
            f"no verdict: every level with a difference is doubtful ({codes}); --with-doubtful counts it: "
            f"{largest.description} ({largest.result})"
        )
    reasons = _reasons(rows)
    return f"not enough data: {'; '.join(reasons[:REASONS_MAX])}" if reasons else "not enough data"


def _reasons(rows: Sequence[ComparisonRow]) -> list[str]:
    """Why rows have no result, each reason once; of intervals that are too wide, the widest."""
    wide = [row.bound for row in rows if row.result == "not enough data" and row.bound is not None]
    parts = dict.fromkeys(part for row in rows for part in row.why.split("; ") if part)
    kept = [part for part in parts if part not in {_too_wide(bound) for bound in wide}]
    return [_too_wide(max(wide)), *kept] if wide else kept
