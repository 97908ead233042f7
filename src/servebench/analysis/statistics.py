"""Confidence intervals of a point's numbers: bootstrap intervals over requests.

The interval is the percentile interval (Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13): the
quantiles of the statistic over resamples. Gaps between tokens of one request are not independent, so whole requests are
resampled with all their gaps (the cluster bootstrap: Davison and Hinkley 1997, part 3.8). A throughput is one series in
time, not many independent values: its error comes from the slow part of its spectrum (`rates.rate_error`).
No interval covers what the sample never saw: a p99 from few requests stays too narrow, which has a warning of its own.

From LARGE requests on, resampling is replaced by its limit: the mean of a resample is normal with the standard error
of the mean, and a percentile of a resample is an order statistic whose rank is binomial (Efron 1979, Ann. Stat. 7, part 3).
For values pooled over requests the mean is a ratio of two sums over requests (linearised: Cochran 1977, "Sampling Techniques",
part 6.4), and the error of the rank is that of the share of values above the percentile, again a ratio (Woodruff 1952,
J. Am. Stat. Assoc. 47).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.rates import rate_interval
from servebench.measure.points import PointSample
from servebench.util.percentile import percentile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Interval = tuple[float, float]

RESAMPLES = 1000
CONFIDENCE = 0.95
Z_95 = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
LARGE = 2_000
"""Requests from which on the limit of the bootstrap replaces it: the difference is far below the interval's own error."""
GRID_FROM, GRID = 4096, 128
"""From how many values the tail of pooled resamples is weighed on a grid of ranks, and how fine that is."""
_BATCH = 2_000_000
"""How many resampled values are held at once, so that memory stays bounded."""


def headline_intervals(
    sample: PointSample, *, resamples: int = RESAMPLES, confidence: float = CONFIDENCE, seed: int = 0
) -> dict[str, Interval | None]:
    """Return the intervals of a point's headline numbers by column; None where there is too little to resample.

    The same sample and seed give the same intervals.
    """
    how = {"resamples": resamples, "seed": seed}

    def requests(values: Floats, statistic: Statistic) -> Interval | None:
        return bootstrap_interval(values, statistic, confidence=confidence, **how)

    def gaps(percent: float | None) -> Interval | None:
        return clustered_interval(sample.itl_ms, sample.itl_counts, percent, confidence=confidence, **how)

    throughput = None
    if sample.arrival_tokens is not None:
        throughput = rate_interval(sample.arrival_s, sample.arrival_tokens, sample.window_s, confidence=confidence)
    return {
        "output_throughput_tok_s": throughput,
        "ttft_ms_mean": requests(sample.ttft_ms, mean),
        "ttft_ms_p50": requests(sample.ttft_ms, Percentile(50)),
        "ttft_ms_p99": requests(sample.ttft_ms, Percentile(99)),
        "itl_ms_mean": gaps(None),
        "itl_ms_p99": gaps(99),
        "tpot_ms_mean": requests(sample.tpot_ms, mean),
        "e2e_ms_mean": requests(sample.e2e_ms, mean),
    }


Statistic = Callable[[Floats], Floats]
"""Reduces the last axis: one number for each row of resampled values."""


def mean(rows: Floats) -> Floats:
    """Return the mean of each row."""
    found: Floats = rows.mean(axis=-1)
    return found


@dataclass(frozen=True)
class Percentile:
    """A statistic: a percentile of each row."""

    percent: float

    def __call__(self, rows: Floats) -> Floats:
        """Return the percentile of the last axis."""
        return percentile(rows, self.percent)


def bootstrap_interval(
    values: Floats,
    statistic: Statistic,
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Interval | None:
    """Return the percentile interval of a statistic of independent values (one per request); None for fewer than two."""
    if values.size < 2:
        return None
    if values.size >= LARGE and (statistic is mean or isinstance(statistic, Percentile)):
        return _limit(values, statistic, confidence)
    rng = np.random.default_rng(seed)
    found = [
        statistic(values[rng.integers(0, values.size, size=(rows, values.size))])
        for rows in _batches(resamples, values.size)
    ]
    return _quantiles(np.concatenate(found), confidence)


def _limit(values: Floats, statistic: Statistic, confidence: float) -> Interval:
    """The limit of the bootstrap interval for many values."""
    z, n = NormalDist().inv_cdf((1 + confidence) / 2), values.size
    if not isinstance(statistic, Percentile):
        middle, error = float(values.mean()), float(values.std(ddof=1)) / n**0.5
        return middle - z * error, middle + z * error
    share = statistic.percent / 100
    reach = z * (share * (1 - share) / n) ** 0.5
    low, high = np.quantile(values, np.clip([share - reach, share + reach], 0, 1)).tolist()
    return low, high


def clustered_interval(
    values: Floats,
    counts: Ints,
    percent: float | None,
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Interval | None:
    """Return the interval of the mean (`percent` None) or a percentile of values pooled over requests.

    Requests are resampled with all their values: `values` lie request after request, `counts` of them for each. Percentiles
    of resamples are the inverse of the distribution function, without interpolation; for many values, interpolated between
    ranks a 128th of the tail apart. From LARGE requests on the limit replaces resampling. None for fewer than two
    requests that have values.
    """
    counts = counts[counts > 0]
    if counts.size < 2:
        return None
    rng = np.random.default_rng(seed)
    weights = counts.astype(np.float64)
    if counts.size >= LARGE:
        return _clustered_limit(values, weights, percent, confidence)
    found = []
    tail = None if percent is None else _Tail.of(values, counts, percent)
    sums = np.add.reduceat(values, np.cumsum(counts) - counts) if tail is None else None
    for rows in _batches(resamples, counts.size):
        # how often each request is drawn: a multinomial, but faster
        picks = rng.integers(0, counts.size, size=(rows, counts.size)) + counts.size * np.arange(rows)[:, None]
        drawn = np.bincount(picks.ravel(), minlength=rows * counts.size).reshape(rows, -1).astype(np.float64)
        totals = drawn @ weights
        if sums is not None:
            found.append(drawn @ sums / totals)
        elif tail is not None:
            found.append(tail.percentiles(drawn, totals))
    return _quantiles(np.concatenate(found), confidence)


def _clustered_limit(values: Floats, counts: Floats, percent: float | None, confidence: float) -> Interval:
    """The limit of the interval for many requests with all their values."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    starts = (np.cumsum(counts) - counts).astype(np.int64)

    def error(sums: Floats) -> float:
        """The standard error of the ratio of these sums to the counts."""
        residuals = sums - sums.sum() / counts.sum() * counts
        return float(residuals.std(ddof=1)) * math.sqrt(counts.size) / float(counts.sum())

    if percent is None:
        sums = np.add.reduceat(values, starts)
        middle, reach = float(sums.sum() / counts.sum()), z * error(sums)
        return middle - reach, middle + reach
    share = percent / 100
    above = (values > np.quantile(values, share)).astype(np.float64)
    reach = z * error(np.add.reduceat(above, starts))
    low, high = np.quantile(values, np.clip([share - reach, share + reach], 0, 1)).tolist()
    return low, high


@dataclass(frozen=True)
class _Tail:
    """The largest pooled values, highest first, with the request that each belongs to. `grid` are the ranks at which weights
    are summed where there are too many values to keep each sum."""

    values: Floats
    owners: Ints
    percent: float
    complete: bool
    grid: Ints | None
    parent: tuple[Floats, Ints]

    @classmethod
    def of(cls, values: Floats, counts: Ints, percent: float, depth: int | None = None) -> _Tail:
        """Select as many values as the percentile needs: a few percent for a p99."""
        if depth is None:
            depth = max(100, int(4 * values.size * (1 - percent / 100)))
        depth = min(values.size, depth)
        top = np.argpartition(values, values.size - depth)[values.size - depth :]
        top = top[np.argsort(values[top])[::-1]]
        owners = np.searchsorted(np.cumsum(counts), top, side="right")
        grid = np.linspace(0, depth, GRID + 1).round().astype(np.int64) if depth > GRID_FROM else None
        return cls(values[top], owners, percent, depth == values.size, grid, (values, counts))

    def percentiles(self, drawn: Floats, totals: Floats) -> Floats:
        """Return the percentile of each resample: the inverse of its distribution function (on the grid, between ranks)."""
        beyond = totals * (100 - self.percent) / 100
        if self.grid is None:
            weights = np.cumsum(drawn[:, self.owners], axis=1)
        else:
            # row by row: with a matrix product BLAS would use all cores, which the engine needs
            sums = [np.add.reduceat(row[self.owners], self.grid[:-1]) for row in drawn]
            weights = np.cumsum(np.array(sums), axis=1)
        hit = weights > beyond[:, None]
        if not self.complete and not hit.any(axis=1).all():
            return _Tail.of(*self.parent, self.percent, 2 * self.values.size).percentiles(drawn, totals)
        at = hit.argmax(axis=1)
        if self.grid is None:
            found: Floats = self.values[at]
            return found
        after = weights[np.arange(at.size), at]
        before = np.where(at > 0, weights[np.arange(at.size), np.maximum(at - 1, 0)], 0.0)
        share = (beyond - before) / np.maximum(after - before, 1)
        rank = self.grid[at] + share * (self.grid[at + 1] - self.grid[at])
        between: Floats = self.values[np.minimum(rank.astype(np.int64), self.values.size - 1)]
        return between


def _batches(rows: int, width: int) -> list[int]:
    """The sizes of batches of at most _BATCH values."""
    step = max(1, _BATCH // max(width, 1))
    return [min(step, rows - start) for start in range(0, rows, step)]


def _quantiles(found: Floats, confidence: float) -> Interval:
    tail = (1 - confidence) / 2
    low, high = np.quantile(found, [tail, 1 - tail]).tolist()
    return low, high
