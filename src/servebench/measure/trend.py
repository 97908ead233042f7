"""Detect a drift during the measurement.

A series is cut into BLOCKS parts in order of time, each reduced to one number, because neighbours in a series are not
independent, as the test requires. Then: the trend test of Mann (1945, Econometrica 13) and Kendall (1975,
"Rank Correlation Methods"), which assumes monotony but no distribution, and the slope of Sen (1968, J. Am. Stat.
Assoc. 63), the median of all pairwise slopes, which is robust to outliers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BLOCKS = 20
BLOCKS_MIN = 10
"""With fewer ranks only a perfect order can be significant."""

PER_BLOCK_MIN = 3


@dataclass(frozen=True, slots=True)
class Trend:
    """`change` over the whole series, relative to its median (0.1: ends ten percent higher than it began); `p` is the
    two-sided probability of as strong an order by chance."""

    change: float
    p: float


def mann_kendall(values: Floats) -> Trend | None:
    """Return the trend of values in order of time; None for fewer than BLOCKS_MIN values or a median of 0.

    S is the number of rising pairs minus that of falling ones; without a trend its variance is
    (n(n-1)(2n+5) - sum over ties of t(t-1)(2t+5)) / 18, and (S -+ 1) over its root is standard normal.
    """
    n = values.size
    median = float(np.median(values)) if n else 0.0
    if n < BLOCKS_MIN or median == 0:
        return None
    first, second = np.triu_indices(n, k=1)
    rises = values[second] - values[first]
    score = float(np.sign(rises).sum())
    _, ties = np.unique(values, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    z = (score - math.copysign(1, score)) / math.sqrt(variance) if score and variance > 0 else 0.0
    slope = float(np.median(rises / (second - first)))
    return Trend(change=slope * (n - 1) / abs(median), p=math.erfc(abs(z) / math.sqrt(2)))


def request_trend(at: NDArray[np.int64], values: Floats) -> Trend | None:
    """Return the trend of one value a request over time, from medians of blocks of equal count.

    None for fewer than PER_BLOCK_MIN requests for each of BLOCKS_MIN blocks.
    """
    blocks = min(BLOCKS, values.size // PER_BLOCK_MIN)
    if blocks < BLOCKS_MIN:
        return None
    ordered = values[np.argsort(at, kind="stable")]
    return mann_kendall(np.array([np.median(part) for part in np.array_split(ordered, blocks)]))


def rate_trend(arrival_s: Floats, amounts: Floats, window_s: float) -> Trend | None:
    """Return the trend of an amount a second from its arrivals in a window: sums of BLOCKS equal slices of time."""
    if arrival_s.size < BLOCKS * PER_BLOCK_MIN or window_s <= 0:
        return None
    where = np.minimum((arrival_s / window_s * BLOCKS).astype(np.int64), BLOCKS - 1)
    return mann_kendall(np.bincount(where, weights=amounts, minlength=BLOCKS).astype(np.float64))
