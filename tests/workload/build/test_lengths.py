"""Token counts drawn from a distribution."""

import random
import statistics

import pytest

from servebench.contracts.settings import LengthSettings
from servebench.workload.build.lengths import mean_length, sample_lengths

COUNT = 20_000


def drawn(spec, count=COUNT, seed=1):
    return sample_lengths(spec, count, random.Random(seed))


@pytest.mark.parametrize("spec", [7, LengthSettings(mean=7), LengthSettings(kind="fixed", mean=7.2)])
def test_fixed(spec):
    """A number, and the kind fixed, give that number each time."""
    assert drawn(spec, 5) == [7] * 5


def test_uniform():
    """Every whole number between the limits comes, the limits too, and about equally often."""
    got = drawn(LengthSettings(kind="uniform", min=3, max=6))
    assert set(got) == {3, 4, 5, 6}
    assert all(abs(got.count(value) / COUNT - 0.25) < 0.02 for value in (3, 4, 5, 6))


@pytest.mark.parametrize("kind", ["normal", "lognormal"])
@pytest.mark.parametrize(("mean", "stdev"), [(500, 50), (500, 250), (2000, 100)])
def test_moments(kind, mean, stdev):
    """`mean` and `stdev` are those of the count itself, for lognormal too, where nothing is clipped."""
    got = drawn(LengthSettings(kind=kind, mean=mean, stdev=stdev))  # type: ignore[arg-type]
    # five standard errors of a mean of 20,000 draws; normal of 500 and 250 loses 2.3 % of its draws to the limit of 1
    assert statistics.fmean(got) == pytest.approx(mean, abs=5 * stdev / COUNT**0.5 + (3 if kind == "normal" else 0))
    assert statistics.stdev(got) == pytest.approx(stdev, rel=0.05)


def test_lognormal_is_skewed_and_its_logarithm_normal():
    """The median is exp(mu) = mean / sqrt(1 + (stdev / mean)^2)."""
    got = drawn(LengthSettings(kind="lognormal", mean=1000, stdev=1000))
    assert statistics.median(got) == pytest.approx(1000 / 2**0.5, rel=0.03)


@pytest.mark.parametrize("kind", ["normal", "lognormal"])
def test_limits(kind):
    """Draws are clipped to `min` and `max`, and both are reached."""
    got = drawn(LengthSettings(kind=kind, mean=100, stdev=80, min=60, max=140))  # type: ignore[arg-type]
    assert (min(got), max(got)) == (60, 140)


def test_never_below_one():
    """A count is at least 1, also of a normal that reaches below zero."""
    got = drawn(LengthSettings(kind="normal", mean=2, stdev=10))
    assert min(got) == 1


@pytest.mark.parametrize("kind", ["normal", "lognormal"])
def test_no_spread(kind):
    """A stdev of zero is the mean each time."""
    assert drawn(LengthSettings(kind=kind, mean=64, stdev=0), 4) == [64] * 4  # type: ignore[arg-type]


def test_seeded():
    """The same generator gives the same counts, another one others."""
    spec = LengthSettings(kind="lognormal", mean=500, stdev=100)
    assert drawn(spec, 50) == drawn(spec, 50)
    assert drawn(spec, 50) != drawn(spec, 50, seed=2)


@pytest.mark.parametrize(
    "spec",
    [
        LengthSettings(kind="uniform", min=3, max=10),
        LengthSettings(kind="normal", mean=64, stdev=40, min=2, max=200),
        LengthSettings(kind="normal", mean=2, stdev=10),
        LengthSettings(kind="lognormal", mean=64, stdev=128, max=1500),
    ],
    ids=str,
)
def test_mean_length_is_that_of_many_draws(spec):
    """With what is clipped, to within five standard errors of 20,000 draws."""
    got = drawn(spec)
    assert mean_length(spec) == pytest.approx(statistics.fmean(got), abs=5 * statistics.stdev(got) / COUNT**0.5)


@pytest.mark.parametrize("spec", [None, 7, LengthSettings(mean=7), LengthSettings(kind="normal", mean=7, stdev=0)])
def test_mean_length_of_equal_or_unknown_lengths_is_none(spec):
    assert mean_length(spec) is None
