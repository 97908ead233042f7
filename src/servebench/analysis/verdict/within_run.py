"""Intervals of what one start of an engine shows: from the slow waves of its requests and slices of time.

Requests of one time share the engine's steps, and the engine's speed wanders, so they are not independent. The error of a
mean over them, in the order sent, comes from the slow part of their spectrum (`rates.rate_error`). A percentile's interval
is that of the share of values below it (Woodruff 1952, J. Am. Stat. Assoc. 47), with the same error. That
misses waves that are slower than a window. Of one window or two the intervals of their points allow for these (`serial`); more
windows show them, by how much they differ. The interval is the wider of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from servebench.analysis.rates import SLOW_WAVES, VALUES_MIN, pooled_rate_error, slow_power
from servebench.analysis.statistics import Floats, Interval
from servebench.contracts.estimate import CONFIDENCE
from servebench.contracts.point_row import PointRow
from servebench.util.percentile import percentile

WINDOWS_MIN = 3
"""Two windows say almost nothing of how much windows differ."""
LEAST = 1e-3
"""An interval down to nothing is taken to end at this share of its value: it has to have a logarithm."""
Shown = tuple[float, float, float]
"""A value of a point and the ends of its interval."""


def statistic(values: Floats, percent: float | None) -> float:
    """Return the mean (`percent` None) or a percentile of values, infinite ones included."""
    return float(values.mean()) if percent is None else float(percentile(values, percent))


def log_interval(parts: Sequence[Floats], percent: float | None, shown: Sequence[Shown] = ()) -> Interval | None:
    """Return the ends of the 95% interval of a statistic's logarithm over windows of one start; None without enough data.

    `parts` are the values of each window in order: rates in slices of time for a mean, latencies of requests otherwise. `shown`
    are the intervals of the windows' points, which allow for waves that are slower than a window.
    """
    within = _mean_interval(parts) if percent is None else _percentile_interval(parts, percent)
    if len(parts) >= WINDOWS_MIN:
        between = _interval_between([statistic(part, percent) for part in parts])
    else:
        between = _interval_shown(shown) if len(shown) == len(parts) else None
    if within is None or between is None:
        return within
    return min(within[0], between[0]), max(within[1], between[1])


def shown_intervals(rows: Iterable[PointRow], column: str) -> list[Shown]:
    """Return the value of a column and its interval in each row that has one, all positive and finite."""
    found = []
    for row in rows:
        value, low, high = (row.get(f"{column}{end}") for end in ("", "_low", "_high"))
        if value is not None and low is not None and high is not None and 0 < value <= high < np.inf:
            found.append((value, max(low, LEAST * value), high))
    return found


def _interval_shown(shown: Sequence[Shown]) -> Interval:
    """Return the interval of the mean logarithm of windows: their own ends in quadrature."""
    value, low, high = np.log(np.array(shown)).T
    middle = float(value.mean())
    below, above = (float(np.hypot.reduce(reach)) / value.size for reach in (value - low, high - value))
    return middle - below, middle + above


def _interval_between(values: Sequence[float]) -> Interval | None:
    """Return the interval of the mean logarithm of windows that stand for themselves (Student's t); None for too few of them, or
    where one has no finite logarithm."""
    if len(values) < WINDOWS_MIN or not all(0 < value < np.inf for value in values):
        return None
    logs = np.log(values)
    half = float(logs.std(ddof=1)) / logs.size**0.5 * _student(logs.size - 1)
    return float(logs.mean()) - half, float(logs.mean()) + half


def _student(freedom: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _mean_interval(parts: Sequence[Floats]) -> Interval | None:
    error = pooled_rate_error(parts)
    if error is None:
        return None
    middle = float(np.log(np.concatenate(parts).mean()))
    half = error.share * _student(error.freedom)
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
    half = error * _student(2 * SLOW_WAVES * len(known))
    if share - half < 0 or share + half > 1:
        return None
    with np.errstate(divide="ignore"):
        low, high = (float(np.log(percentile(values, 100 * (share + reach)))) for reach in (-half, half))
    return low, high
