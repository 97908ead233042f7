"""The tests by which MLPerf Endpoints tells a steady series from one that drifts or steps, at the level ALPHA."""

import math

import numpy as np

from servebench.util.arrays import Floats

VALUES_MIN = 4
"""The fewest super-passes that are tested (`MIN_TREND_N` of the rules)."""
ALPHA = 0.05


def trend(values: Floats) -> str:
    """Return where a series goes (up, down or flat) by the test of Mann and Kendall with the variance of Hamed and Rao (1998, J.
    Hydrology 204), which grows by the significant autocorrelations of the ranks. Fewer than VALUES_MIN values are flat."""
    n = values.size
    score = float(np.triu(np.sign(values[None, :] - values[:, None]), 1).sum())
    if n < VALUES_MIN or score == 0:
        return "flat"
    _, ties = np.unique(values, return_counts=True)
    variance = float(n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18
    ranks = values.argsort(kind="stable").argsort(kind="stable") - (n - 1) / 2
    lags = np.arange(1, n)
    correlation = np.array([ranks[lag:] @ ranks[:-lag] for lag in lags]) / (ranks @ ranks)
    weights = (n - lags) * (n - lags - 1) * (n - lags - 2) * (np.abs(correlation) > 1.96 / math.sqrt(n))
    factor = 1 + 2 / (n * (n - 1) * (n - 2)) * float(weights @ correlation)
    z = (abs(score) - 1) / math.sqrt(variance * (factor if factor > 0 else 1.0))
    if math.erfc(z / math.sqrt(2)) >= ALPHA:
        return "flat"
    return "up" if score > 0 else "down"


def steps(values: Floats) -> bool:
    """Return whether a series steps to another level by Pettitt's test (1979, J. R. Stat. Soc. C 28)."""
    n = values.size
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (sizes.cumsum() - (sizes - 1) / 2)[group]
    largest = float(np.abs(2 * ranks.cumsum()[:-1] - np.arange(1, n) * (n + 1)).max())
    return 2 * math.exp(-6 * largest**2 / (n**3 + n**2)) < ALPHA
