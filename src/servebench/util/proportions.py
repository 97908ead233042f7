"""Shares of a count, and how far they can be trusted."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist


def wilson(count: int, of: int, confidence: float = 0.95, *, one_sided: bool = False) -> tuple[float, float]:
    """The Wilson score interval of a share; 0 and 1 where there is nothing to count.

    Two-sided, both ends together have this confidence; one-sided, each end alone has. Wilson, J. Am. Stat. Assoc. 22
    (1927): (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n).
    """
    if of == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(confidence if one_sided else (1 + confidence) / 2)
    share, square = count / of, z * z / of
    middle = share + square / 2
    reach = sqrt(square * share * (1 - share) + square * square / 4)
    return max(0.0, (middle - reach) / (1 + square)), min(1.0, (middle + reach) / (1 + square))
