"""Arrival times, against what their distributions promise."""

import math
from itertools import pairwise
from statistics import mean, pstdev

import pytest

from servebench.load.pacers import arrivals


def gaps(times):
    return [b - a for a, b in pairwise([0.0, *times])]


def test_constant_arrivals_are_even():
    """The k-th at k / rate."""
    assert arrivals("constant", 4.0, 4) == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("kind", "burstiness", "variation"),
    [("poisson", 1.0, 1.0), ("poisson", 9.0, 1.0), ("gamma", 1.0, 1.0), ("gamma", 0.25, 2.0), ("gamma", 16.0, 0.25)],
)
def test_gaps_have_the_mean_and_the_variation_asked(kind, burstiness, variation):
    """Mean 1 / rate; coefficient of variation 1 / sqrt(burstiness), which a Poisson process does not look at."""
    found = gaps(arrivals(kind, 20.0, 20_000, burstiness=burstiness))
    error = 4 * variation / math.sqrt(len(found))
    assert mean(found) == pytest.approx(1 / 20, rel=error)
    assert pstdev(found) / mean(found) == pytest.approx(variation, rel=0.06)


def test_the_seed_fixes_the_times():
    """Same seed, same times, in rising order; another seed or rate, others."""
    one = arrivals("poisson", 5.0, 50, seed=1)
    assert one == arrivals("poisson", 5.0, 50, seed=1)
    assert one == sorted(one)
    assert one != arrivals("poisson", 5.0, 50, seed=2)
    assert [time * 5 for time in one] != [time * 6 for time in arrivals("poisson", 6.0, 50, seed=1)]


def test_no_arrivals():
    """None asked, none given."""
    assert arrivals("poisson", 5.0, 0) == []
