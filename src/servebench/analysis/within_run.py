"""Intervals of what one start of an engine shows: from the slow waves of its requests and slices of time.

Requests of one time share the engine's steps, and the engine's speed wanders, so they are not independent. The error of a
mean over them, in the order sent, comes from the slow part of their spectrum (`slow_power`). A percentile's interval
is that of the share of values below it (Woodruff 1952, J. Am. Stat. Assoc. 47), with the same error. That
misses waves that are slower than a window. Of one window or two the intervals of their points allow for these (`serial`); more
windows show them, by how much they differ. The interval is the wider of the two.
"""

from collections.abc import Sequence

import numpy as np

from servebench.analysis.estimate import POINTS_MIN, Reach, in_quadrature, student, student_interval
from servebench.contracts.estimate import Interval
from servebench.util.arrays import Floats, percentile

SLOW_WAVES = 3
"""How many of the slowest waves over a window estimate the error of its rate: fewer follow slow wandering better, more give
a shorter interval. With 3, simulated engines were covered in 87 to 99 of 100 windows of ten requests per stream, by intervals
up to 1.3 times as long as with the true error known; wandering slower than a third of a window is not seen."""


VALUES_MIN = 4 * SLOW_WAVES
"""The fewest requests, or slices of time, of a start: its slow waves need four values each."""


def slow_power(values: Floats) -> float:
    """Return the variance of the sum of values in order that may depend on those before them: the mean of the periodogram at the
    SLOW_WAVES lowest frequencies. It has two degrees of freedom for each of them (the equal-weighted periodogram: Lazarus, Lewis,
    Stock and Watson 2018, J. Bus. Econ. Stat. 36).

    Slices of time depend on each other: streams in step make bursts that return with each round of requests and cancel out over
    the window, and an engine that wanders is slow for many slices together.
    """
    return float(np.mean(np.abs(np.fft.rfft(values)[1 : SLOW_WAVES + 1]) ** 2))


def statistic(values: Floats, percent: float | None) -> float:
    """Return the mean (`percent` None) or a percentile of values, infinite ones included."""
    return float(values.mean()) if percent is None else float(percentile(values, percent))


def log_interval(parts: Sequence[Floats], percent: float | None, shown: Sequence[Reach] = ()) -> Interval | None:
    """Return the ends of the 95% interval of a statistic's logarithm over windows of one start; None without enough data.

    `parts` are the values of each window in order: rates in slices of time for a mean, latencies of requests otherwise. `shown`
    are the reaches of the windows' points, which allow for waves that are slower than a window.
    """
    within = _mean_interval(parts) if percent is None else _percentile_interval(parts, percent)
    between = None
    if len(parts) >= POINTS_MIN:
        values = [statistic(part, percent) for part in parts]
        between = student_interval(np.log(values).tolist()) if all(0 < one < np.inf for one in values) else None
    elif len(shown) == len(parts):
        between = in_quadrature(shown)
    if within is None or between is None:
        return within
    return min(within[0], between[0]), max(within[1], between[1])


def _mean_interval(parts: Sequence[Floats]) -> Interval | None:
    """By the rates in equal slices of each window; None where one has too few slices or a total of 0."""
    if not parts or any(one.size < VALUES_MIN or one.sum() <= 0 for one in parts):
        return None
    middle = float(np.log(np.concatenate(parts).mean()))
    error = sum(slow_power(one) / one.size**2 for one in parts) ** 0.5 / sum(float(one.mean()) for one in parts)
    half = error * student(2 * SLOW_WAVES * len(parts))
    return middle - half, middle + half


def _percentile_interval(parts: Sequence[Floats], percent: float) -> Interval | None:
    values = np.concatenate(parts)
    middle, share = statistic(values, percent), percent / 100
    known = [part for part in parts if part.size >= VALUES_MIN]
    if not known or values.size != sum(part.size for part in known):
        return None
    # the variance of the mean of each part's indicator, weighted by how many values it has
    below = [(part <= middle).astype(np.float64) for part in known]
    least = values.size * share * (1 - share)
    error = max(sum(slow_power(part - part.mean()) for part in below), least) ** 0.5 / values.size
    half = error * student(2 * SLOW_WAVES * len(known))
    if share - half < 0 or share + half > 1:
        return None
    with np.errstate(divide="ignore"):
        low, high = (float(np.log(percentile(values, 100 * (share + reach)))) for reach in (-half, half))
    return low, high
