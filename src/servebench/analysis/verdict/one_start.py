"""What single starts of two engines may differ by, for leads that rest on nothing else: the only bound that is not measured."""

from __future__ import annotations

import math
from functools import cache

from servebench.contracts.estimate import CONFIDENCE

START_SD, START_FREEDOM = 0.0175, 2
"""The standard deviation by which starts of one engine usually differ, and the degrees of freedom with which it is known."""


@cache
def starts_may_differ() -> float:
    """Return by how much one start each of two equal engines may differ, as a share: the limit of a 95% interval when no
    more is known of their spread than START_SD."""
    from scipy.special import stdtrit

    return math.expm1(float(stdtrit(START_FREEDOM, (1 + CONFIDENCE) / 2)) * 2**0.5 * START_SD)


def one_start_bound(reach: float) -> float:
    """Return by how much one start each of two equal engines may differ, as a share, where the data leave `reach` open (a
    logarithm)."""
    return math.expm1(math.hypot(reach, math.log1p(starts_may_differ())))


def exceeds_starts(lead: float, low: float) -> bool:
    """Return whether a lead of one start each, a logarithm with the lower end of its interval, is more than two starts of one
    engine may differ by."""
    return math.expm1(lead) > one_start_bound(lead - low)
