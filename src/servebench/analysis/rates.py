"""The error of a rate over a window, from the slow part of its spectrum."""

from __future__ import annotations

import numpy as np

from servebench.util.arrays import Floats

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
