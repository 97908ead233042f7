"""Arrival times compared with their distributions."""

import math
from itertools import pairwise
from statistics import mean, pstdev

import pytest

from servebench.contracts.settings import RampSettings
from servebench.load.plan.schedule import arrivals, ramped_arrivals, stream_starts


def gaps(times):
    return [b - a for a, b in pairwise([0.0, *times])]


def test_constant_arrivals_are_even():
    """The k-th comes at k / rate."""
    assert arrivals("constant", 4.0, 4) == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("kind", "burstiness", "variation"),
    [("poisson", 1.0, 1.0), ("poisson", 9.0, 1.0), ("gamma", 1.0, 1.0), ("gamma", 0.25, 2.0), ("gamma", 16.0, 0.25)],
)
def test_gaps_have_the_right_mean_and_variation(kind, burstiness, variation):
    """Mean 1 / rate; coefficient of variation 1 / sqrt(burstiness), which a Poisson process ignores."""
    found = gaps(arrivals(kind, 20.0, 20_000, burstiness=burstiness))
    error = 4 * variation / math.sqrt(len(found))
    assert mean(found) == pytest.approx(1 / 20, rel=error)
    assert pstdev(found) / mean(found) == pytest.approx(variation, rel=0.06)


@pytest.mark.parametrize(("kind", "burstiness"), [("poisson", 1.0), ("gamma", 0.5), ("gamma", 4.0)])
def test_the_rate_between_the_ends_is_exact(kind, burstiness):
    """As many arrive in the middle half as at the rate, on average; without scaling they would scatter by a sixth."""
    counts = [
        sum(12.5 <= time < 37.5 for time in arrivals(kind, 4.0, 200, burstiness=burstiness, seed=seed))
        for seed in range(400)
    ]
    assert mean(counts) == pytest.approx(100, abs=4 * pstdev(counts) / 20)
    assert pstdev(counts) < 8 / math.sqrt(burstiness)


def test_the_seed_fixes_the_times():
    """The same seed gives the same ascending times; another seed or rate gives others."""
    one = arrivals("poisson", 5.0, 50, seed=1)
    assert one == arrivals("poisson", 5.0, 50, seed=1)
    assert one == sorted(one)
    assert one != arrivals("poisson", 5.0, 50, seed=2)
    assert [time * 5 for time in one] != [time * 6 for time in arrivals("poisson", 6.0, 50, seed=1)]


def test_no_arrivals():
    """A count of 0 gives none."""
    assert arrivals("poisson", 5.0, 0) == []


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (RampSettings(over_s=10.0, shape="linear", start=0.0), [0.0, 5.0, 7.5, 10.0]),
        (RampSettings(over_s=10.0, shape="linear", start=0.5), [0.0, 0.0, 5.0, 10.0]),
        (RampSettings(over_s=10.0, shape="exponential", start=0.25), [0.0, 5.0, 7.92, 10.0]),
        (RampSettings(over_s=10.0, shape="steps", start=0.0, steps=2), [0.0, 5.0, 10.0, 10.0]),
        (RampSettings(over_s=10.0, shape="steps", start=0.25, steps=3), [0.0, 3.33, 6.67, 10.0]),
    ],
)
def test_streams_start_by_the_shape(shape, expected):
    """Four streams over ten seconds: each starts when its share of the level is reached, the first at once."""
    assert stream_starts(4, shape) == pytest.approx(expected, abs=0.01)


SHAPES = [
    RampSettings(over_s=10.0, shape="linear", start=0.0),
    RampSettings(over_s=10.0, shape="linear", start=0.3),
    RampSettings(over_s=10.0, shape="exponential", start=0.05),
    RampSettings(over_s=10.0, shape="steps", start=0.0, steps=4),
    RampSettings(over_s=10.0, shape="steps", start=0.2, steps=5),
]


def density(shape, u):
    """Return the share of the level at `u`, by an independent implementation."""
    if shape.shape == "linear":
        return shape.start + (1 - shape.start) * u
    if shape.shape == "exponential":
        return shape.start ** (1 - u)
    return shape.start + (1 - shape.start) * math.floor(u * shape.steps) / shape.steps


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ramped_arrivals_follow_the_rate(shape):
    """Each tenth of the ramp has as many arrivals as the integral of the rate; after the ramp the rate is full."""
    times = ramped_arrivals(arrivals("constant", 100.0, 3000), shape)
    assert times == sorted(times)
    for tenth in range(10):
        grid = [(tenth + (i + 0.5) / 1000) / 10 for i in range(1000)]
        expected = 1000 * mean(density(shape, u) for u in grid) / 10
        came = sum(tenth <= time < tenth + 1 for time in times)
        assert came == pytest.approx(expected, abs=1.5)
    assert sum(11 <= time < 12 for time in times) == pytest.approx(100, abs=1)
