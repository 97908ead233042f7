"""Quantiles that every run needs. SciPy has the same functions; to import it takes half a second of CPU, more than all that a run
of a hundred thousand events needs them for. Comparisons, which need more of SciPy, use it."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from servebench.util.arrays import Floats

TINY = 1e-300
PRECISION = 1e-15
STEPS_MAX = 200
_erfc = np.frompyfunc(math.erfc, 1, 1)


def normal_shares(values: Floats) -> Floats:
    """Return the share of the standard normal distribution below each value."""
    return 0.5 * np.asarray(_erfc(-values / math.sqrt(2)), dtype=np.float64)


@lru_cache(maxsize=1024)
def beta_quantile(a: float, b: float, share: float) -> float:
    """Return the quantile of the beta distribution."""

    def below(here: float) -> tuple[float, float]:
        return beta_share(a, b, here) - share, math.exp(_log_front(a, b, here)) / (here * (1 - here))

    return root(below, 0.0, 1.0, a / (a + b), precision=PRECISION)


def root(
    at: Callable[[float], tuple[float, float]],
    low: float,
    high: float,
    here: float,
    *,
    precision: float,
    scale: float = 0.0,
) -> float:
    """Return where a rising function is 0 between low and high: by Newton's method from `here`, and by halves where that leaves
    the bracket. `at` returns value and slope; `precision` is relative to the result, or to `scale` if that is more."""
    for _ in range(STEPS_MAX):
        value, slope = at(here)
        low, high = (here, high) if value < 0 else (low, here)
        step = value / slope if slope > TINY else math.inf
        found = here - step if low < here - step < high else (low + high) / 2
        enough = precision * max(scale, abs(found))
        if abs(found - here) <= enough or high - low <= enough:
            return found
        here = found
    return here


def beta_share(a: float, b: float, x: float) -> float:
    """Return the share of the beta distribution below x, strictly between 0 and 1."""
    front = math.exp(_log_front(a, b, x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _log_front(a: float, b: float, x: float) -> float:
    return math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, by the method of Lentz (DLMF 8.17.22)."""
    upper, lower = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or TINY)
    found = lower
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            # one more than a number is never as near to 0 as TINY, but may be 0
            lower = 1 / ((1 + term * lower) or TINY)
            upper = (1 + term / upper) or TINY
            found *= upper * lower
        if abs(upper * lower - 1) < PRECISION:
            break
    return found
