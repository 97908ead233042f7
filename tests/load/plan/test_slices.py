"""When the load goes from one engine to the other."""

import math
from itertools import pairwise

import pytest

from servebench.config import compose_jobs
from servebench.contracts.level import Level
from servebench.load.plan.slices import (
    LEAD_S_MIN,
    MEASURED_S,
    SLICES_MIN,
    AddedStarts,
    Rotation,
    plan_slices,
    seconds_in_slices,
)
from servebench.registry.registry import registry


@pytest.mark.parametrize(("engines", "measured_s", "answer_s"), [(2, 20.0, 0.1), (2, 20.0, 1.5), (3, 60.0, 0.5)])
def test_slices_never_overlap_and_measure_long_enough(engines, measured_s, answer_s):
    plan = plan_slices(engines, measured_s, answer_s, "seed")
    assert {len(own) for own in plan.slices} == {len(plan.slices[0])}
    assert len(plan.slices[0]) >= SLICES_MIN
    ordered = sorted(one for own in plan.slices for one in own)
    # the last requests of one have ended before the next has load
    assert all(before[1] + plan.drain_s <= after[0] + 1e-9 for before, after in pairwise(ordered))
    assert plan.drain_s >= answer_s
    assert plan.lead_s >= max(LEAD_S_MIN, answer_s)
    for own in plan.slices:
        assert sum(closes - opens - plan.lead_s for opens, closes in own) >= measured_s - 1e-9


def test_each_round_has_an_order_of_its_own():
    first, second = plan_slices(2, 60.0, 0.1, "a").slices
    assert {a < b for a, b in zip(first, second, strict=True)} == {True, False}
    assert plan_slices(2, 60.0, 0.1, "a") == plan_slices(2, 60.0, 0.1, "a") != plan_slices(2, 60.0, 0.1, "b")


def test_each_slice_has_requests_for_twice_the_rate_of_the_warm_up():
    plan = plan_slices(2, 20.0, 0.1, "seed", 3.0)
    opens_s, closes_s = plan.slices[0][0]
    assert plan.requests == math.ceil(2 * 3.0 * (closes_s - opens_s))
    assert plan_slices(2, 20.0, 0.1, "seed").requests == 0


def test_long_answers_are_not_worth_slices():
    assert plan_slices(2, 20.0, 10.0, "seed") is None


@pytest.mark.parametrize(("measured_s", "seconds"), [(60.0, 15 * 4.9), (8.0, 5 * 4.9), (2.0, 2.0)])
def test_how_long_an_engine_has_the_load(measured_s, seconds):
    """At least five slices, with the beginning and the end of each; too short a point is not worth slices."""
    assert seconds_in_slices(measured_s) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("levels", "start_s", "slices", "each_s"),
    [
        # starts that cost little are better added than made longer
        (1, 2.0, 2, 6.0),
        (1, 90.0, 5, 6.0),
        (2, 2.0, 2, 5.0),
        # the levels of several starts show how slices scatter
        (3, 2.0, 1, MEASURED_S),
        (4, 2.0, 1, MEASURED_S),
        (4, 300.0, 3, MEASURED_S),
    ],
)
def test_starts_that_are_added_have_as_many_slices_as_are_best(levels, start_s, slices, each_s):
    added = AddedStarts(levels=levels, start_s=start_s)
    plan = plan_slices(2, 20.0, 0.5, "seed", until=True, added=added)
    assert len(plan.slices[0]) == slices
    opens_s, closes_s = plan.slices[0][0]
    assert closes_s - opens_s - plan.lead_s == pytest.approx(each_s)
    assert len(plan_slices(2, 20.0, 0.5, "seed", added=added).slices[0]) == SLICES_MIN


@pytest.mark.parametrize(
    ("users", "answer_s", "slices", "each_s"),
    [
        (None, 0.5, 1, 4.0),
        (8, 0.5, 1, 4.0),
        # for at least three answers, and a tenth more
        (8, 1.5, 1, 1.5 * 3.3),
        (8, 3.0, 1, 3.0 * 3.3),
        (4, 0.9, 1, 0.9 * 4.75),
        (2, 0.5, 1, 0.5 * 8.5),
        (1, 0.5, 1, 0.5 * 16),
        (1, 1.0, 3, 1.0 * 6),
        (1, 2.0, 4, 2.0 * 4.75),
    ],
)
def test_a_level_of_an_added_start_has_requests_enough(users, answer_s, slices, each_s):
    """By the answers of the slowest engine; longer slices cost less than more of them, up to twice as long ones."""
    added = AddedStarts(levels=4, start_s=2.0, users=users)
    plan = plan_slices(2, 20.0, answer_s, "seed", 30.0, until=True, added=added)
    (opens_s, closes_s), *others = plan.slices[0]
    assert 1 + len(others) == slices
    assert closes_s - opens_s - plan.lead_s == pytest.approx(each_s)


@pytest.mark.parametrize(
    ("until", "concurrency", "levels"), [("decided", [1, 4], 2), ("gate", [1, 4], None), (None, [1, 4], None)]
)
def test_only_a_study_that_asks_for_the_mean_of_levels_has_fewer_slices(until, concurrency, levels):
    words = ["-m", "engine=vllm,sglang", "launch=simulated", f"load.concurrency={concurrency}"]
    words += [f"study.until={until}"] if until else ["study.starts=3"]
    found = AddedStarts.of(compose_jobs(words, registry())[0].settings, 9.0)
    assert found == (None if levels is None else AddedStarts(levels=levels, start_s=9.0))


def levels(*users):
    return tuple(map(Level, users))


@pytest.mark.parametrize(
    ("users", "start_s", "level_s", "each"),
    [
        # a start that takes no longer than a level or two is worth more than the rest of its levels
        ((1, 2, 4, 8), 0.0, 13.0, 2),
        ((1, 2, 4, 8), 7.0, 13.0, 2),
        ((1, 2, 4, 8), 40.0, 13.0, 4),
        ((1, 2, 4, 8), 600.0, 13.0, 4),
        ((1, 2, 4, 8, 16, 32, 64, 128), 40.0, 13.0, 4),
        ((1, 2, 4), 7.0, 13.0, 2),
        ((1, 2, 4), 60.0, 13.0, 3),
        # two levels show less of how slices scatter
        ((1, 8), 0.0, 13.0, 2),
        ((4,), 0.0, 13.0, 1),
    ],
)
def test_a_start_that_costs_little_has_few_of_the_levels(users, start_s, level_s, each):
    assert Rotation.of(levels(*users), start_s, level_s) == Rotation(levels(*users), each)


@pytest.mark.parametrize(("count", "each"), [(4, 2), (3, 2), (5, 2), (8, 2), (8, 4), (6, 4), (4, 4), (1, 1)])
def test_all_levels_come_alike_often(count, each):
    own = levels(*range(1, count + 1))
    rotation = Rotation.of(reversed(own), 1e9, 1.0)
    assert rotation.levels == own
    rotation = Rotation(own, each)
    assert rotation.of_start(0) == set(own)
    starts = [rotation.of_start(start) for start in range(1, count + 1)]
    assert {len(one) for one in starts} == {each}
    assert {sum(level in one for one in starts) for level in own} == {each}
