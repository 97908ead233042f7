"""The tests by which MLPerf Endpoints tells a steady series from one that drifts or steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from servebench.util.arrays import Floats

VALUES_MIN = 4
"""The fewest super-passes that a trend is tested over (`MIN_TREND_N` of the rules)."""
ALPHA = 0.05
_Z95 = 1.96

Direction = Literal["up", "down", "flat"]


@dataclass(frozen=True, slots=True)
class LevelStep:
    """The likeliest place of a step, as the number of values before it, and the p-value that there is none."""

    before: int
    p: float


def trend(values: Floats) -> Direction:
    """Return where a series goes at ALPHA by the test of Mann and Kendall with the variance of Hamed and Rao (1998, J. Hydrology
    204): it is scaled by what the significant autocorrelations of the ranks leave of the number of values. Fewer than VALUES_MIN
    values are flat."""
    count = values.size
    if count < VALUES_MIN:
        return "flat"
    score = float(np.triu(np.sign(values[None, :] - values[:, None]), 1).sum())
    _, ties = np.unique(values, return_counts=True)
    variance = float(count * (count - 1) * (2 * count + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18
    if score == 0 or variance <= 0:
        return "flat"
    z = (abs(score) - 1) / math.sqrt(variance * _autocorrelation_factor(values))
    if math.erfc(z / math.sqrt(2)) >= ALPHA:
        return "flat"
    return "up" if score > 0 else "down"


def _autocorrelation_factor(values: Floats) -> float:
    count = values.size
    ranks = values.argsort(kind="stable").argsort(kind="stable") - (count - 1) / 2
    lags = np.arange(1, count)
    correlation = np.array([ranks[lag:] @ ranks[:-lag] for lag in lags]) / (ranks @ ranks)
    weighted = (count - lags) * (count - lags - 1) * (count - lags - 2) * correlation
    counted = weighted[np.abs(correlation) > _Z95 / math.sqrt(count)].sum()
    factor = 1 + 2 / (count * (count - 1) * (count - 2)) * float(counted)
    return factor if factor > 0 else 1.0


def relative_change(values: Floats) -> float:
    """Return by what share of the median the fitted line of a series changes from its first to its last value."""
    slope = float(np.polyfit(np.arange(values.size), values, 1)[0])
    return slope * (values.size - 1) / (float(np.median(values)) or math.inf)


def variation(values: Floats) -> float:
    """Return the coefficient of variation (of the population); 0 for fewer than two values or a mean of 0."""
    mean = abs(float(values.mean())) if values.size > 1 else 0.0
    return float(values.std()) / mean if mean else 0.0


def level_step(values: Floats) -> LevelStep:
    """Return where a series steps by Pettitt's test (1979, J. R. Stat. Soc. C 28), with its approximate p-value."""
    count = values.size
    if count < VALUES_MIN:
        return LevelStep(0, 1.0)
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (sizes.cumsum() - (sizes - 1) / 2)[group]
    before = np.arange(1, count)
    sums = np.abs(2 * ranks.cumsum()[:-1] - before * (count + 1))
    largest = float(sums.max())
    return LevelStep(int(before[sums.argmax()]), min(1.0, 2 * math.exp(-6 * largest**2 / (count**3 + count**2))))
