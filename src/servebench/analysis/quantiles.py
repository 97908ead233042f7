"""Quantiles of distributions. SciPy is imported where they are computed, so that commands that need none start fast."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from servebench.util.arrays import Floats

TINY = 1e-300
STEPS_MAX = 200
REACH = 9.0
"""A quantile of a mixture is looked for this many standard deviations to each side."""


@lru_cache(maxsize=1024)
def beta_quantile(a: float, b: float, share: float) -> float:
    """Return the quantile of the beta distribution."""
    from scipy.special import betaincinv

    return float(betaincinv(a, b, share))


@dataclass(frozen=True)
class Mixture:
    """A mixture of normal distributions: what is known of a value."""

    weights: Floats
    means: Floats
    sds: Floats

    def below(self, value: float) -> float:
        """Return the probability of less than a value."""
        from scipy.special import ndtr

        return float(self.weights @ ndtr((value - self.means) / self.sds))

    def quantile(
        self, share: float, *, start: float | None = None, precision: float = 1e-7, scale: float | None = None
    ) -> float:
        """Return the value below which this share of the probability is: by Newton's method from `start` (the mean, unless it is
        given), and by halves where that leaves the bracket. `precision` is relative to the result, or to `scale` (the least
        deviation) if that is more."""
        from scipy.special import ndtr

        low, high = float((self.means - REACH * self.sds).min()), float((self.means + REACH * self.sds).max())
        here = float(self.weights @ self.means) if start is None else min(max(start, low), high)
        least = float(self.sds.min()) if scale is None else scale
        for _ in range(STEPS_MAX):
            away = (here - self.means) / self.sds
            value = float(self.weights @ ndtr(away)) - share
            slope = float(self.weights @ (np.exp(-0.5 * away**2) / self.sds)) / math.sqrt(2 * math.pi)
            low, high = (here, high) if value < 0 else (low, here)
            step = value / slope if slope > TINY else math.inf
            found = here - step if low < here - step < high else (low + high) / 2
            enough = precision * max(least, abs(found))
            if abs(found - here) <= enough or high - low <= enough:
                return found
            here = found
        return here

    @property
    def p(self) -> float:
        """The two-sided p-value of 0."""
        share = self.below(0.0)
        return min(1.0, 2 * min(share, 1 - share))
