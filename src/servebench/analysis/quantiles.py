"""Quantiles of distributions. SciPy is imported where they are computed, so that commands that need none start fast."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from servebench.util.arrays import Floats

TINY = 1e-300
STEPS_MAX = 200


def normal_shares(values: Floats) -> Floats:
    """Return the share of the standard normal distribution below each value."""
    from scipy.special import ndtr

    return np.asarray(ndtr(values), dtype=np.float64)


@lru_cache(maxsize=1024)
def beta_quantile(a: float, b: float, share: float) -> float:
    """Return the quantile of the beta distribution."""
    from scipy.special import betaincinv

    return float(betaincinv(a, b, share))


def root(
    at: Callable[[float], tuple[float, float]],
    low: float,
    high: float,
    here: float,
    *,
    precision: float,
    scale: float,
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
