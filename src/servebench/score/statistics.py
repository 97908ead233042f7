"""How sure a number is: bootstrap intervals that resample what is independent, requests or stretches of time.

The interval is the percentile interval (Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13): the
quantiles of the statistic over resamples. Gaps between tokens of one request are not independent, so whole requests are
resampled with all their gaps (the cluster bootstrap: Davison and Hinkley 1997, part 3.8). A throughput is resampled in
blocks of time (Künsch 1989), wrapped around at the window's end so that no part counts less (Politis and Romano 1992).
No interval tells of what the sample never saw: a p99 from few requests stays too narrow, which is a doubt of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Interval = tuple[float, float]

RESAMPLES = 1000
CONFIDENCE = 0.95
SLICES_MIN = 20
SLICES = 60
"""Into how many equal slices of time a window is cut: enough to resample, few enough for each to hold many events."""

_BATCH = 2_000_000
"""How many resampled values are held at once, so that memory stays bounded."""


class Sample(Protocol):
    """What a point offers for its intervals; the fields are those of `measure.points.PointSample`."""

    @property
    def ttft_ms(self) -> Floats:
        """One a request."""
        ...

    @property
    def tpot_ms(self) -> Floats:
        """One a request."""
        ...

    @property
    def e2e_ms(self) -> Floats:
        """One a request."""
        ...

    @property
    def itl_ms(self) -> Floats:
        """All gaps, request after request."""
        ...

    @property
    def itl_counts(self) -> Ints:
        """Gaps of each request."""
        ...

    @property
    def arrival_s(self) -> Floats:
        """Events inside the window, seconds from its start."""
        ...

    @property
    def arrival_tokens(self) -> Floats | None:
        """Tokens of each of those events."""
        ...

    @property
    def window_s(self) -> float:
        """The window's length."""
        ...


def headline_intervals(
    sample: Sample, *, resamples: int = RESAMPLES, confidence: float = CONFIDENCE, seed: int = 0
) -> dict[str, Interval | None]:
    """Intervals of a point's headline numbers by column name; None where there is too little to resample.

    The same sample and seed give the same intervals.
    """
    how = {"resamples": resamples, "seed": seed}

    def requests(values: Floats, statistic: Statistic) -> Interval | None:
        return bootstrap_interval(values, statistic, confidence=confidence, **how)

    def gaps(percent: float | None) -> Interval | None:
        return clustered_interval(sample.itl_ms, sample.itl_counts, percent, confidence=confidence, **how)

    throughput = None
    if sample.arrival_tokens is not None:
        throughput = rate_interval(
            sample.arrival_s, sample.arrival_tokens, sample.window_s, confidence=confidence, **how
        )
    return {
        "output_throughput_tok_s": throughput,
        "ttft_ms_mean": requests(sample.ttft_ms, mean),
        "ttft_ms_p50": requests(sample.ttft_ms, percentile(50)),
        "ttft_ms_p99": requests(sample.ttft_ms, percentile(99)),
        "itl_ms_mean": gaps(None),
        "itl_ms_p99": gaps(99),
        "tpot_ms_mean": requests(sample.tpot_ms, mean),
        "e2e_ms_mean": requests(sample.e2e_ms, mean),
    }


Statistic = Callable[[Floats], Floats]
"""Reduces the last axis: one number for each row of resampled values."""


def mean(rows: Floats) -> Floats:
    """The mean of each row."""
    found: Floats = rows.mean(axis=-1)
    return found


def percentile(percent: float) -> Statistic:
    """A statistic: that percentile of each row, interpolated linearly."""

    def of_rows(rows: Floats) -> Floats:
        return np.asarray(np.percentile(rows, percent, axis=-1), dtype=np.float64)

    return of_rows


def bootstrap_interval(
    values: Floats,
    statistic: Statistic,
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Interval | None:
    """The percentile interval of a statistic of independent values (one a request). None for fewer than two."""
    if values.size < 2:
        return None
    rng = np.random.default_rng(seed)
    found = [
        statistic(values[rng.integers(0, values.size, size=(rows, values.size))])
        for rows in _batches(resamples, values.size)
    ]
    return _quantiles(np.concatenate(found), confidence)


def clustered_interval(
    values: Floats,
    counts: Ints,
    percent: float | None,
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Interval | None:
    """The interval of the mean (`percent` None) or a percentile of values pooled over requests, requests resampled.

    `values` lie request after request, `counts` of them for each. Percentiles of resamples are the inverse of the
    distribution function, without interpolation. None for fewer than two requests that have values.
    """
    counts = counts[counts > 0]
    if counts.size < 2:
        return None
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(counts.size, np.full(counts.size, 1 / counts.size), size=resamples).astype(np.float64)
    totals = drawn @ counts
    if percent is None:
        sums = np.add.reduceat(values, np.cumsum(counts) - counts)
        return _quantiles(drawn @ sums / totals, confidence)
    return _quantiles(_pooled_percentiles(values, counts, percent, drawn, totals), confidence)


def _pooled_percentiles(values: Floats, counts: Ints, percent: float, drawn: Floats, totals: Floats) -> Floats:
    """That percentile of the pooled values in each resample; `drawn` says how often each request was drawn.

    Only the top of the sorted values is weighed, as deep as the percentile needs: a p99 looks at a few percent.
    """
    order = np.argsort(values)[::-1]
    owners = np.repeat(np.arange(counts.size), counts)[order]
    above = totals * (100 - percent) / 100
    depth = int(min(values.size, max(100, 4 * values.size * (1 - percent / 100))))
    while True:
        found = np.full(totals.size, np.nan)
        start = 0
        for rows in _batches(totals.size, depth):
            weights = np.cumsum(drawn[start : start + rows, owners[:depth]], axis=1)
            beyond = weights > above[start : start + rows, None]
            hit = beyond.any(axis=1)
            found[start : start + rows][hit] = values[order[np.argmax(beyond[hit], axis=1)]]
            start += rows
        if depth == values.size or not np.isnan(found).any():
            return found
        depth = min(values.size, 2 * depth)


def rate_interval(
    arrival_s: Floats,
    amounts: Floats,
    window_s: float,
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Interval | None:
    """The interval of `amounts` a second over a window, from `arrival_s` (seconds from its start).

    The window is cut into SLICES equal slices (fewer, but at least SLICES_MIN, when there are few events); circular
    blocks of neighbouring slices are resampled, as long as the cube root of their number (Hall, Horowitz and Jing
    1995). None for fewer than two events or a window without length.
    """
    if arrival_s.size < 2 or window_s <= 0:
        return None
    slices = int(np.clip(arrival_s.size // 10, SLICES_MIN, SLICES))
    where = np.minimum((arrival_s / window_s * slices).astype(np.int64), slices - 1)
    sums = np.bincount(where, weights=amounts, minlength=slices)
    length = int(np.ceil(slices ** (1 / 3)))
    blocks = -(-slices // length)
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, slices, size=(resamples, blocks, 1))
    picked = ((starts + np.arange(length)) % slices).reshape(resamples, -1)[:, :slices]
    return _quantiles(sums[picked].sum(axis=1) / window_s, confidence)


def _batches(rows: int, width: int) -> list[int]:
    """Rows cut into batches of at most _BATCH values."""
    step = max(1, _BATCH // max(width, 1))
    return [min(step, rows - start) for start in range(0, rows, step)]


def _quantiles(found: Floats, confidence: float) -> Interval:
    tail = (1 - confidence) / 2
    low, high = np.quantile(found, [tail, 1 - tail]).tolist()
    return low, high
