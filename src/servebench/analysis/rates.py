"""The error of a rate over a window, from the slow part of its spectrum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from servebench.util.arrays import Floats

SLOW_WAVES = 3
"""How many of the slowest waves over a window estimate the error of its rate: fewer follow slow wandering better, more give
a shorter interval. With 3, simulated engines were covered in 87 to 99 of 100 windows of ten requests per stream, by intervals
up to 1.3 times as long as with the true error known; wandering slower than a third of a window is not seen."""


VALUES_MIN = 4 * SLOW_WAVES
"""The fewest requests, or slices of time, of a start: its slow waves need four values each."""


@dataclass(frozen=True, slots=True)
class RateError:
    """The standard error of a rate as a share of it, and its degrees of freedom."""

    share: float
    freedom: float


def slow_power(values: Floats) -> float:
    """Return the variance of the sum of values in order that may depend on those before them: the mean of the periodogram at the
    SLOW_WAVES lowest frequencies. It has two degrees of freedom for each of them."""
    return float(np.mean(np.abs(np.fft.rfft(values)[1 : SLOW_WAVES + 1]) ** 2))


def pooled_rate_error(slices: Sequence[Floats]) -> RateError | None:
    """Estimate the error of the mean rate of several windows from the amounts in equal slices of each, in order.

    The slices depend on each other: streams in step make bursts that return with each round of requests and cancel out over
    the window, and an engine that wanders is slow for many slices together. The variance of the mean is the spectrum of
    the series at frequency zero, taken as the mean of the periodogram at the SLOW_WAVES lowest frequencies of the window; it
    has two degrees of freedom each (the equal-weighted periodogram: Lazarus, Lewis, Stock and Watson 2018, J. Bus. Econ.
    Stat. 36). None where a window has too few slices or a total of 0.
    """
    if not slices or any(one.size < VALUES_MIN or one.sum() <= 0 for one in slices):
        return None
    square = sum(slow_power(one) / one.size**2 for one in slices)
    return RateError(square**0.5 / sum(float(one.mean()) for one in slices), 2.0 * SLOW_WAVES * len(slices))
