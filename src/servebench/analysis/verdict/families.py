"""Correction of p-values for how many questions a comparison asks.

Each metric of a pair of runs is a family of levels. Any set of levels is tested by its mean over the levels, start by start
(levels whose starts rest on many requests weigh more), or by its clearest level, whichever is clearer (Bonferroni over the
two). A level counts where every set that holds it differs: closed testing (Marcus, Peritz and Gabriel 1976, Biometrika 63), in
which levels that differ alike support each other. So do metrics: a slower start is slower in all of them, so a set of metrics
is tested by Cauchy's combination of their p-values, which holds for tests that depend on each other (Liu and Xie 2020, J. Am.
Stat. Assoc. 115). The pairs share Holm's correction (Holm 1979). A row's corrected p-value is the largest of the three: a level
counts only where its metric does, and a metric only where its pair does (hierarchical testing: Meinshausen 2008, Biometrika
95). Two equal engines are called different in at most 5% of comparisons; a difference that levels and metrics share is found
almost as if only one question had been asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.statistics import Floats
from servebench.analysis.verdict.model import StartValues
from servebench.analysis.verdict.starts import STARTS_MIN, p_values_of_means

SPREAD_SD = 0.01
"""By how much starts are taken to differ where levels are weighed: only the power depends on it."""
CLOSED_LEVELS_MAX = 10
"""The most levels whose sets are all tested; more are corrected by Holm's rule."""


@dataclass(frozen=True)
class Asked:
    """A question: its metric, its own p-value (None for no test), and the values that it rests on."""

    metric: str
    p: float | None
    values: StartValues | None = None


MeanTest = Callable[[Sequence[StartValues], Floats], Floats]
"""Returns the p-value of the mean over each subset of levels: `starts.p_values_of_means`, or another test's."""


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values with Holm's step-down correction; None is no test and stays None."""
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    found: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        found[index] = largest
    return found


def corrected(
    comparisons: Sequence[Sequence[Asked]], means: MeanTest = p_values_of_means, weight: float = 0.5
) -> list[list[float | None]]:
    """Return the corrected p-values of the questions of all comparisons that are made together; None is no test and stays None.

    `weight` is the share of the error that is spent on the means of levels, `means` their test. A p-value of 0 is that of a
    question that an earlier look has found to differ: every set that holds it differs, too (closed tests in a group-sequential
    design: Tang and Geller 1999, Biometrics 55).
    """
    families: dict[tuple[int, str], list[int]] = {}
    for number, asked in enumerate(comparisons):
        for index, one in enumerate(asked):
            if one.p is not None:
                families.setdefault((number, one.metric), []).append(index)
    found: list[list[float | None]] = [[None] * len(asked) for asked in comparisons]
    levels = {key: _level_ps([comparisons[key[0]][i] for i in own], means, weight) for key, own in families.items()}
    metrics = _metric_ps({key: whole for key, (whole, _) in levels.items()})
    for key, own in families.items():
        for index, p in zip(own, levels[key][1], strict=True):
            found[key[0]][index] = max(p, metrics[key])
    return found


def _metric_ps(wholes: Mapping[tuple[int, str], float]) -> dict[tuple[int, str], float]:
    """Return the p-value of each metric of each pair, corrected for the number of metrics and of pairs."""
    pairs: dict[int, list[tuple[int, str]]] = {}
    for key in wholes:
        pairs.setdefault(key[0], []).append(key)
    ps = {number: np.array([wholes[key] for key in keys]) for number, keys in pairs.items()}
    of_pair = dict(zip(pairs, holm([float(cauchy_combination(own[None, :])[0]) for own in ps.values()]), strict=True))
    found = {}
    for number, keys in pairs.items():
        inside = _subsets(len(keys))
        combined = cauchy_combination(np.where(inside, ps[number], np.nan))
        for key, p in zip(keys, np.where(inside, combined[:, None], 0.0).max(axis=0), strict=True):
            found[key] = max(float(p), of_pair[number] or 0.0)
    return found


def cauchy_combination(ps: Floats) -> Floats:
    """Return the p-value of each row of p-values, NaN left out (Liu and Xie 2020, equation 1).

    A p-value above 0.5 counts as 0.5: one near 1, as of a metric that does not differ, would outweigh any that is small.
    """
    clipped = np.clip(ps, 1e-15, 0.5)
    found: Floats = 0.5 - np.arctan(np.nanmean(np.tan((0.5 - clipped) * np.pi), axis=1)) / np.pi
    return found


def _subsets(count: int) -> NDArray[np.bool_]:
    """Return all sets of `count` things but the empty one, a row for each; the last is the whole."""
    found: NDArray[np.bool_] = (np.arange(1, 1 << count)[:, None] >> np.arange(count)) & 1 == 1
    return found


def _level_ps(asked: Sequence[Asked], means: MeanTest, weight: float) -> tuple[float, list[float]]:
    """Return the p-value of "no level of this metric differs", and that of each level, corrected for the number of levels."""
    unknown = [one for one in asked if one.p]
    if len(unknown) == len(asked):
        return _closed_ps(asked, means, weight)
    ps = iter(_closed_ps(unknown, means, weight)[1] if unknown else [])
    return 0.0, [next(ps) if one.p else 0.0 for one in asked]


def _closed_ps(asked: Sequence[Asked], means: MeanTest, weight: float) -> tuple[float, list[float]]:
    own = np.array([one.p for one in asked], dtype=np.float64)
    count = len(asked)
    if count > CLOSED_LEVELS_MAX:
        corrected_ps = [p for p in holm(own.tolist()) if p is not None]
        return min(corrected_ps), corrected_ps
    inside = _subsets(count)
    sizes = inside.sum(axis=1)
    ps = sizes * np.where(inside, own, np.inf).min(axis=1)
    values = [one.values for one in asked if one.values is not None]
    if _have_means(values, count):
        weights = inside / (np.array([one.error for one in values]) ** 2 + SPREAD_SD**2)
        of_means = means(values, weights / weights.sum(axis=1, keepdims=True))
        ps = np.where(sizes == 1, ps, np.minimum(ps / (1 - weight), of_means / weight))
    ps = np.minimum(ps, 1.0)
    return float(ps[-1]), np.where(inside, ps[:, None], 0.0).max(axis=0).tolist()


def _have_means(values: Sequence[StartValues], count: int) -> bool:
    """Whether all levels have the same starts, and enough of them for a test."""
    sizes = {(one.baseline.size, one.candidate.size, one.paired) for one in values}
    return len(values) == count and len(sizes) == 1 and min(min(a, b) for a, b, _ in sizes) >= STARTS_MIN
