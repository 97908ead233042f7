"""Intervals of a share."""

from functools import lru_cache


@lru_cache(maxsize=4096)
def wilson(count: int, of: int, confidence: float = 0.95, *, one_sided: bool = False) -> tuple[float, float]:
    """Return the Wilson score interval of `count` out of `of`; 0 and 1 where `of` is 0.

    Two-sided, both ends together have this confidence; one-sided, each end alone has. Wilson, J. Am. Stat. Assoc. 22
    (1927), as computed by SciPy.
    """
    if of == 0:
        return 0.0, 1.0
    from scipy.stats import binomtest

    level = 2 * confidence - 1 if one_sided else confidence
    found = binomtest(count, of).proportion_ci(confidence_level=level, method="wilson")
    return float(found.low), float(found.high)
