"""Correction of p-values for how many questions a comparison asks.

Each metric of each pair of runs is a family of levels. The family is tested first: by its mean over levels, start by start,
or by its clearest level, whichever is clearer (Bonferroni over the two). The families of all pairs share Holm's correction
(Holm 1979), and so do the levels in a family. A row's corrected p-value is the larger of the two, so a level counts only where
its metric does (hierarchical testing: Meinshausen 2008, Biometrika 95). Two equal engines are called different in at most 5%
of comparisons; a difference that all levels share is found almost as if only one question had been asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from servebench.analysis.comparison.model import ComparisonRow, StartValues
from servebench.analysis.comparison.starts import STARTS_MIN, compare_starts


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values with Holm's step-down correction; None is no test and stays None."""
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    found: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        found[index] = largest
    return found


def corrected(comparisons: Sequence[Sequence[ComparisonRow]]) -> list[list[ComparisonRow]]:
    """Return the rows of all comparisons made together with their corrected p-values."""
    families: dict[tuple[int, str], list[int]] = {}
    for number, rows in enumerate(comparisons):
        for index, row in enumerate(rows):
            if row.p is not None:
                families.setdefault((number, row.metric.name), []).append(index)
    found = [list(rows) for rows in comparisons]
    first = holm([_family_p([found[number][i] for i in own]) for (number, _), own in families.items()])
    for ((number, _), own), family_p in zip(families.items(), first, strict=True):
        rows = found[number]
        for index, p in zip(own, holm([rows[i].p for i in own]), strict=True):
            assert p is not None
            assert family_p is not None
            rows[index] = replace(rows[index], p_corrected=max(p, family_p))
    return found


def _family_p(rows: Sequence[ComparisonRow]) -> float:
    """The p-value of "no level of this metric differs"."""
    least = min(row.p for row in rows if row.p is not None)
    if len(rows) == 1:
        return least
    values = [row.starts for row in rows if row.starts is not None]
    sizes = {(one.baseline.size, one.candidate.size, one.paired) for one in values}
    clearest = len(rows) * least
    if len(values) < len(rows) or len(sizes) > 1 or min(values[0].baseline.size, values[0].candidate.size) < STARTS_MIN:
        return min(1.0, clearest)
    means = StartValues(
        baseline=np.mean([one.baseline for one in values], axis=0),
        candidate=np.mean([one.candidate for one in values], axis=0),
        paired=values[0].paired,
    )
    return min(1.0, 2 * min(compare_starts(means).p, clearest))
