"""Which level a search measures next and what it concludes, for engines that are functions of the level."""

from __future__ import annotations

import random

import numpy as np
import pytest

from servebench.contracts.settings import SearchSettings
from servebench.load.plan.search import (
    Probe,
    Search,
    judge_slo,
    knee_bracket,
    next_for_knee,
    next_in_bracket,
    requests_needed,
    split_bracket,
)
from servebench.measure.points import design_effect
from servebench.util.proportions import wilson


def settings(**keys):
    return SearchSettings(**{"goal": "slo", "upper": 64.0, **keys})


@pytest.mark.parametrize(("attainment", "requests"), [(0.99, 268), (0.9, 25), (0.5, 3)])
def test_requests_needed_is_the_minimum(attainment, requests):
    """That many good requests prove the attainment, one fewer does not."""
    assert requests_needed(attainment, 0.95) == requests
    assert (
        wilson(requests, requests, 0.95, one_sided=True)[0]
        >= attainment
        > wilson(requests - 1, requests - 1, 0.95, one_sided=True)[0]
    )


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([(268, 268)], True),
        ([(50, 50)], None),
        ([(40, 50)], False),
        ([(134, 134), (134, 134)], True),
        ([(0, 0)], None),
    ],
)
def test_judge_slo(counts, expected):
    """Met, missed or undecided, from the pooled counts."""
    probes = [Probe(point="p", level=1, good=good, judged=judged) for good, judged in counts]
    assert judge_slo(probes, 0.99, 0.95) is expected


def test_an_unusable_point_is_not_counted():
    """After a clock step requests are neither good nor bad."""
    probes = [Probe(point="p", level=1, good=0, judged=300, usable=False)]
    assert judge_slo(probes, 0.99, 0.95) is None


@pytest.mark.parametrize(
    ("low", "high", "whole", "expected"),
    [
        (4, 8, True, 6),
        (4, 5, True, None),
        (1, 3, True, 2),
        (100, 104, True, None),
        (1, 2, False, 1.414),
        (2, 2.05, False, None),
    ],
)
def test_split_bracket(low, high, whole, expected):
    """The middle in the logarithm, strictly inside; None for a narrow bracket."""
    assert split_bracket(low, high, whole=whole, tolerance=0.05) == expected


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        ({}, 1),
        ({1: False}, None),
        ({1: None}, None),
        ({1: True}, 2),
        ({1: True, 2: True, 4: True, 8: True, 16: True, 32: True}, 64),
        ({1: True, 50: True}, 64),
        ({1: True, 64: True}, None),
        ({1: True, 2: True, 4: False}, 3),
        ({1: True, 2: True, 4: None}, 3),
        ({1: True, 2: True, 3: True, 4: False}, None),
    ],
)
def test_next_in_bracket(judged, expected):
    """Doubled until a level is missed or the bound is met, then bisected."""
    assert next_in_bracket(judged, settings()) == expected


@pytest.mark.parametrize(
    ("throughput", "expected"),
    [
        ({}, 1),
        ({1: 10}, 2),
        ({1: 10, 2: 20, 4: 40, 8: 80, 16: 81}, 32),
        ({1: 10, 2: 20, 4: 40, 8: 80, 16: 81, 32: 80}, 6),
        ({1: 10, 2: 20, 4: 40, 6: 60, 7: 70, 8: 80, 16: 81, 32: 80}, None),
        ({1: 10, 2: 20, 4: 40, 8: 80, 16: 160, 32: 320, 64: 640}, 45),
        ({1: 10, 2: 10, 4: 10}, None),
    ],
)
def test_next_for_knee(throughput, expected):
    """Doubled until two doublings bring nothing, then bisected below the knee."""
    assert next_for_knee(throughput, settings(goal="saturation")) == expected


def test_the_knee_is_the_first_level_with_nearly_all():
    """At 95%, 96 of 100 is enough and 94 is not."""
    assert knee_bracket({1: 50, 2: 94, 4: 96, 8: 100}, 0.95) == (2, 4)


def searched(search, engine, attainment=0.99):
    """Run a search against `engine(level) -> (good, judged, tok/s, kept_up)`."""
    work = Search(search, attainment)
    while (following := work.next_level()) is not None:
        level, repeat = following
        assert search.lower <= level <= search.upper
        good, judged, throughput, kept_up = engine(level)
        work.add(
            Probe(
                point=f"{level:g}-{repeat}",
                level=level,
                good=good,
                judged=judged,
                throughput_tok_s=throughput,
                kept_up=kept_up,
            )
        )
    return work.answer()


def steps_at(limit, judged=300):
    return lambda level: (judged if level <= limit else judged // 2, judged, min(level, limit) * 10.0, 1.0)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 11, 31, 33, 47, 63])
def test_the_highest_concurrency_is_found(limit):
    """For each limit of the engine the result is below it, within the tolerance."""
    answer = searched(settings(tolerance=0.001), steps_at(limit))
    assert (answer.outcome, answer.level) == ("found", limit)
    assert answer.bracket == (limit, limit + 1)
    assert f"concurrency {limit} is the highest" in answer.said


@pytest.mark.parametrize(
    ("limit", "judged", "outcome", "level"),
    [(0.5, 300, "never_met", None), (1000, 300, "always_met", 64), (1000, 20, "not_enough_data", None)],
)
def test_the_other_outcomes(limit, judged, outcome, level):
    """Not even the lower bound; the whole range; too few requests."""
    answer = searched(settings(), steps_at(limit, judged))
    assert (answer.outcome, answer.level) == (outcome, level)


def test_an_undecided_level_is_measured_again_and_never_met():
    """Three points with too few requests, then the search ends."""
    answer = searched(settings(), steps_at(1000, 20))
    assert [probe.level for probe in answer.probes] == [1.0, 1.0, 1.0]


def test_a_rate_is_found_to_the_tolerance():
    """Rates need not be whole."""
    answer = searched(settings(of="rate", lower=0.5, tolerance=0.02), steps_at(7.3))
    assert answer.level is not None
    assert answer.level <= 7.3 <= answer.bracket[1]
    assert answer.bracket[1] <= answer.level * 1.02


def test_saturation_of_a_rate():
    """The engine keeps up with 10 a second."""
    search = settings(goal="saturation", of="rate")
    answer = searched(search, lambda rate: (0, 0, None, min(1.0, 10 / rate)))
    assert answer.outcome == "found"
    assert 10 / 0.95 / 1.05 <= answer.level <= 10 / 0.95
    assert answer.confidence is None


@pytest.mark.parametrize(
    ("limit", "outcome", "level"), [(20, "found", 19), (4, "found", 4), (1000, "always_met", 64), (1, "found", 1)]
)
def test_saturation_of_a_concurrency(limit, outcome, level):
    """The smallest concurrency with 95% of the highest throughput seen."""
    answer = searched(settings(goal="saturation", tolerance=0.001), steps_at(limit))
    assert (answer.outcome, answer.level) == (outcome, level)


def test_an_engine_that_answers_nothing_ends_a_saturation_search():
    """The search does not hang at a level without throughput."""
    answer = searched(settings(goal="saturation"), lambda level: (0, 0, None, None))
    assert answer.outcome == "not_enough_data"
    assert len(answer.probes) == 3


def test_max_probes_ends_the_search_with_a_caveat():
    """The result has the bracket so far and the reason why it is wide."""
    answer = searched(settings(max_probes=3), steps_at(3))
    assert (answer.outcome, answer.bracket) == ("found", (2, 4))
    assert any("max_probes=3" in caveat for caveat in answer.caveats)


def test_a_noisy_engine():
    """The probability of a good request falls with the level; the level found truly meets the SLO."""
    rng = random.Random(7)
    for _ in range(50):
        truth = {level: 1 - level / 400 for level in range(1, 65)}
        engine = lambda level, truth=truth: (sum(rng.random() < truth[level] for _ in range(400)), 400, 1.0, 1.0)  # noqa: E731
        answer = searched(settings(), engine, attainment=0.9)
        assert answer.outcome == "found"
        assert truth[answer.level] >= 0.88


def test_warnings_of_the_points_are_caveats():
    """The result lists the warnings of its points."""
    work = Search(settings(), 0.99)
    work.add(Probe(point="p", level=1, good=1, judged=300, doubts=("client_bound",)))
    assert work.answer().caveats == ("client_bound at 1",)
    assert work.answer(interrupted=True).caveats[-1].startswith("the search was interrupted")


@pytest.mark.parametrize("burst", [1, 4, 16])
def test_failures_in_bursts_do_not_pass_for_a_met_slo(burst):
    """2% of the requests fail at every level and 99% must be good: no level qualifies, and searches say so."""
    rng = np.random.default_rng(burst)

    def engine(level):
        starts = rng.random(300) < 0.02 / burst
        good = [not starts[max(0, at - burst + 1) : at + 1].any() for at in range(300)]
        return sum(good), 300, 1.0, 1.0, design_effect(good)

    found = 0
    for _ in range(100):
        work = Search(settings(), 0.99)
        while (following := work.next_level()) is not None:
            good, judged, *_, effect = engine(following[0])
            work.add(Probe(point="p", level=following[0], good=good, judged=judged, design_effect=effect))
        found += work.answer().outcome in ("found", "always_met")
    assert found <= 11  # 5% and three standard errors of 100 searches


@pytest.mark.parametrize(
    ("good", "effect"),
    [
        ([True] * 5, None),
        ([False] + [True] * 9, 1.0),
        ([False, True, True, False] + [True] * 6, 2.0),
        ([False] * 4, 4.0),
    ],
)
def test_the_design_effect_is_the_mean_size_of_a_bad_requests_burst(good, effect):
    assert design_effect(good) == effect
