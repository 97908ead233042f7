"""When the load goes from one engine to the other."""

import math
from itertools import pairwise

import pytest

from servebench.load.plan.slices import LEAD_S_MIN, SLICES_MIN, plan_slices, seconds_in_slices


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
