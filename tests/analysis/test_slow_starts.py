"""Starts that are slow for as long as they live are found among equal ones."""

import math
import random

import pytest

from servebench.analysis.slow_starts import find_slow_starts
from servebench.contracts.level import Level

LEVELS = (Level(1), Level(4))


def starts_with(effects, *, noise=0.01, seed=0):
    """Starts of two levels with these effects (logarithms), by their number."""
    rng = random.Random(seed)
    return {
        str(number): {at: 60 * at.load * math.exp(effect + rng.gauss(0, noise)) for at in LEVELS}
        for number, effect in enumerate(effects)
    }


def equal(count, *, deviation=0.02, seed=1):
    rng = random.Random(seed)
    return [rng.gauss(0, deviation) for _ in range(count)]


def test_a_slow_start_is_found_with_its_distance_from_the_others():
    found = find_slow_starts(starts_with([*equal(11), math.log(0.77)]))
    assert found.count == 12
    assert found.slower == {"11": pytest.approx(0.23, abs=0.03)}


def test_several_slow_starts_hide_none_of_each_other():
    found = find_slow_starts(starts_with([*equal(25), -0.28, -0.2, -0.24, -0.19, -0.23]))
    assert list(found.slower) == ["25", "27", "29", "26", "28"]


@pytest.mark.parametrize("deviation", [0.005, 0.03])
def test_equal_starts_are_seldom_called_slow(deviation):
    studies = [starts_with(equal(8, deviation=deviation, seed=seed), seed=seed) for seed in range(100)]
    assert sum(bool(find_slow_starts(one).slower) for one in studies) <= 3


def test_a_start_is_slow_only_if_it_is_slow_at_every_level():
    starts = starts_with([*equal(9), math.log(0.75)])
    starts["9"][LEVELS[1]] /= 0.75
    assert not find_slow_starts(starts).slower


def test_a_fast_start_is_not_slow_and_makes_no_other_slow():
    assert not find_slow_starts(starts_with([*equal(9), 0.3])).slower


def test_few_starts_say_nothing():
    assert find_slow_starts(starts_with([0, 0, 0, -0.5])).slower == {}
    assert find_slow_starts({}).count == 0


def test_starts_that_are_the_same_to_the_last_digit():
    assert not find_slow_starts(starts_with([0] * 6, noise=0)).slower
    assert list(find_slow_starts(starts_with([0] * 5 + [-0.2], noise=0)).slower) == ["5"]


def test_a_level_that_few_starts_have_does_not_count():
    starts = starts_with(equal(6))
    starts["0"][Level(16)] = 1.0
    assert not find_slow_starts(starts).slower
    assert find_slow_starts(starts).count == 6


def test_noisy_levels_weigh_less():
    rng = random.Random(3)
    starts = starts_with([*equal(19), math.log(0.8)])
    for own in starts.values():
        own[Level(16)] = 900 * own[Level(1)] / 60 * math.exp(rng.gauss(0, 0.15))
    starts["19"][Level(16)] = 500.0
    assert list(find_slow_starts(starts).slower) == ["19"]
