"""Intervals of a share."""

from functools import lru_cache


@lru_cache(maxsize=4096)
def wilson(count: int, of: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of `count` out of `of`; 0 and 1 where `of` is 0. Both ends together have this confidence.
    Wilson, J. Am. Stat. Assoc. 22 (1927), as computed by SciPy."""
    if of == 0:
        return 0.0, 1.0
    from scipy.stats import binomtest

    found = binomtest(count, of).proportion_ci(confidence_level=confidence, method="wilson")
    return float(found.low), float(found.high)
