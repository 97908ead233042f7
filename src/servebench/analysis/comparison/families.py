"""Correction of p-values for how many questions a comparison asks.

Each metric of each pair of runs is a family of levels. Any set of levels is tested by its mean over the levels, start by start,
or by its clearest level, whichever is clearer (Bonferroni over the two). A level counts where every set that holds it differs:
closed testing (Marcus, Peritz and Gabriel 1976, Biometrika 63), in which levels that differ alike support each other. The
families of all pairs share Holm's correction (Holm 1979) of their whole sets. A row's corrected p-value is the larger of the
two, so a level counts only where its metric does (hierarchical testing: Meinshausen 2008, Biometrika 95). Two equal engines
are called different in at most 5% of comparisons; a difference that all levels share is found almost as if only one question
had been asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from servebench.analysis.comparison.model import ComparisonRow, StartValues
from servebench.analysis.comparison.starts import STARTS_MIN, p_values_of_means

CLOSED_LEVELS_MAX = 10
"""The most levels whose sets are all tested; more are corrected by Holm's rule."""


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
    levels = [_level_ps([found[number][i] for i in own]) for (number, _), own in families.items()]
    first = holm([whole for whole, _ in levels])
    for ((number, _), own), (_, ps), family_p in zip(families.items(), levels, first, strict=True):
        for index, p in zip(own, ps, strict=True):
            found[number][index] = replace(found[number][index], p_corrected=max(p, family_p or 0.0))
    return found


def _level_ps(rows: Sequence[ComparisonRow]) -> tuple[float, list[float]]:
    """The p-value of "no level of this metric differs", and that of each level, corrected for the number of levels."""
    own = np.array([row.p for row in rows], dtype=np.float64)
    count = len(rows)
    if count > CLOSED_LEVELS_MAX:
        corrected_ps = [p for p in holm(own.tolist()) if p is not None]
        return min(corrected_ps), corrected_ps
    inside = (np.arange(1, 1 << count)[:, None] >> np.arange(count)) & 1 == 1
    sizes = inside.sum(axis=1)
    ps = sizes * np.where(inside, own, np.inf).min(axis=1)
    values = [row.starts for row in rows if row.starts is not None]
    if _have_means(values, count):
        means = p_values_of_means(values, inside / sizes[:, None])
        ps = np.where(sizes == 1, ps, 2 * np.minimum(ps, means))
    ps = np.minimum(ps, 1.0)
    return float(ps[-1]), np.where(inside, ps[:, None], 0.0).max(axis=0).tolist()


def _have_means(values: Sequence[StartValues], count: int) -> bool:
    """Whether all levels have the same starts, and enough of them for a test."""
    sizes = {(one.baseline.size, one.candidate.size, one.paired) for one in values}
    return len(values) == count and len(sizes) == 1 and min(min(a, b) for a, b, _ in sizes) >= STARTS_MIN
