"""Which level a search measures next and what it concludes, for engines that are functions of the level."""

from __future__ import annotations

import numpy as np
import pytest

from servebench.contracts.settings import SearchSettings
from servebench.load.plan.search import (
    Probe,
    Search,
    knee_bracket,
    next_for_knee,
    next_in_bracket,
    requests_needed,
    saturated_rate,
    split_bracket,
    sure_knee_bracket,
)
from servebench.load.plan.slo_curve import crossing
from servebench.measure.points import design_effect
from servebench.util.proportions import wilson


def settings(**keys):
    return SearchSettings(**{"goal": "slo", "upper": 64.0, **keys})


@pytest.mark.parametrize(("attainment", "requests"), [(0.99, 268), (0.9, 25), (0.5, 3)])
def test_requests_needed_is_the_minimum(attainment, requests):
    """That many good requests prove the attainment, one fewer does not."""
    assert requests_needed(attainment, 0.95) == requests
    # each end of a 90% interval alone has 95%
    assert wilson(requests, requests, 0.9)[0] >= attainment > wilson(requests - 1, requests - 1, 0.9)[0]


def at(level, bad, judged, effect=1.0):
    return Probe(point="p", level=level, good=judged - bad, judged=judged, design_effect=effect if bad else None)


@pytest.mark.parametrize(
    ("probes", "low", "high"),
    [
        # a cliff between 17 and 18, and enough requests to exclude bursts
        ([at(17, 0, 4000), at(18, 2000, 4000)], 17, 18),
        # 2% are bad at every level
        ([at(4, 40, 2000), at(16, 40, 2000), at(32, 600, 2000)], 0, 0),
        # 50 good requests say little
        ([at(16, 0, 50), at(32, 50, 50)], 0, 32),
    ],
)
def test_the_curve_crosses_where_too_many_requests_become_bad(probes, low, high):
    """Within the bounds of what the counts say, with 95% confidence on each side."""
    found = crossing(probes, 0.99, 0.95)
    assert low * 0.98 <= found.low <= found.middle <= found.high <= high * 1.1
    if low == 0:
        assert found.low == 0


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


@pytest.mark.parametrize(
    ("scatter", "repeats", "expected"),
    [(0.001, 2, (2, 4)), (0.02, 2, (1, 8)), (0.02, 200, (2, 4)), (0.02, 1, (None, None))],
)
def test_the_knee_has_a_bracket_with_confidence(scatter, repeats, expected):
    """Levels are certainly below the knee, or not, as far as the scatter of repeated points shows it."""
    around = [1 - scatter, 1 + scatter] * (repeats // 2) or [1.0]
    levels = {level: [value * one for one in around] for level, value in {1: 50, 2: 94, 4: 97, 8: 100}.items()}
    assert sure_knee_bracket(levels, 0.95, 0.95) == expected


def test_what_an_overloaded_engine_completes():
    """At least four points that it did not keep up with, not those far above the lowest."""
    probes = [
        Probe(point="p", level=v, kept_up=k, completed_req_s=c)
        for v, k, c in [
            (8, 1.0, 8.0),
            (12, 0.9, 10.1),
            (14, 0.8, 9.9),
            (12, 0.9, 10.0),
            (13, 0.85, 10.0),
            (32, 0.3, 5.0),
        ]
    ]
    low, high = saturated_rate(probes, 0.95, 0.95)
    assert low == pytest.approx(10 - 2.353 * 0.0816 / 2, abs=0.001)
    assert high == pytest.approx(10 + 2.353 * 0.0816 / 2, abs=0.001)
    assert saturated_rate(probes[:4], 0.95, 0.95) is None


def searched(search, engine, attainment=0.99):
    """Run a search against `engine(level, requests)`, which returns the values of a probe."""
    work = Search(search, attainment)
    while (following := work.next_probe()) is not None:
        assert search.lower <= following.level <= search.upper
        found = engine(following.level, following.requests)
        work.add(Probe(point=f"{following.level:g}-{following.repeat}", level=following.level, **found))
    return work.answer()


def steps_at(limit, judged=100, grows=True):
    """An engine that meets the SLO up to a limit, at which its throughput ends."""

    def engine(level, requests):
        count = max(judged, requests) if grows else judged
        good = count if level <= limit else count // 2
        throughput = min(level, limit) * 10.0
        return {"good": good, "judged": count, "throughput_tok_s": throughput, "kept_up": 1.0}

    return engine


@pytest.mark.parametrize("limit", [1, 3, 11, 33, 50])
def test_the_highest_concurrency_is_found(limit):
    """For each limit of the engine the result is not above it, and within a tenth or the next level."""
    answer = searched(settings(tolerance=0.1), steps_at(limit))
    assert answer.outcome == "found"
    low, above = answer.bracket
    assert answer.level == low <= limit < above <= max(low + 2, 1.1 * low + 1)
    assert answer.confidence == 0.95
    assert f"concurrency {low:g} meets the SLO (95% confidence); from {above:g} on it does not" in answer.said


@pytest.mark.parametrize(
    ("limit", "grows", "outcome", "level"),
    [(0.5, True, "never_met", None), (1000, True, "always_met", 64), (1000, False, "not_enough_data", None)],
)
def test_the_other_outcomes(limit, grows, outcome, level):
    """Not even the lower bound; the whole range; too few requests."""
    answer = searched(settings(max_probes=16), steps_at(limit, 20, grows))
    assert (answer.outcome, answer.level) == (outcome, level)


def test_an_attainment_of_1_is_found_by_bisection():
    """A level is met if no request was bad, for no sample proves it."""
    answer = searched(settings(tolerance=0.001), steps_at(11), attainment=1.0)
    assert (answer.outcome, answer.level, answer.confidence) == ("found", 11, None)


def test_a_rate_is_found_to_the_tolerance():
    """Rates need not be whole."""
    answer = searched(settings(of="rate", lower=0.5, tolerance=0.1), steps_at(7.3))
    assert answer.level is not None
    assert answer.level <= 7.3 <= answer.bracket[1]
    assert answer.bracket[1] <= answer.level * 1.1


def test_saturation_of_a_rate():
    """The engine completes 10 a second when more arrive: less than that is sustained."""
    rng = np.random.default_rng(3)

    def engine(rate, requests):
        return {"kept_up": min(1.0, 10 / rate), "completed_req_s": min(rate, 10) * rng.normal(1, 0.01)}

    answer = searched(settings(goal="saturation", of="rate"), engine)
    assert answer.outcome == "found"
    assert 9.5 <= answer.level <= 10
    assert answer.confidence == 0.95
    assert sum(probe.kept_up < 0.95 for probe in answer.probes) >= 4


def test_a_rate_above_which_the_engine_becomes_slower():
    """What it completes when overloaded is not what it sustains."""

    def engine(rate, requests):
        return {"kept_up": 1.0 if rate <= 10 else 0.3, "completed_req_s": rate if rate <= 10 else 3.0}

    answer = searched(settings(goal="saturation", of="rate"), engine)
    assert answer.outcome == "found"
    assert 8.5 <= answer.level <= 10
    assert "overloaded the engine completes only 3" in answer.said


@pytest.mark.parametrize(
    ("limit", "outcome", "level"), [(20, "found", 19), (4, "found", 4), (1000, "always_met", 64), (1, "found", 1)]
)
def test_saturation_of_a_concurrency(limit, outcome, level):
    """The smallest concurrency with 95% of the highest throughput seen."""
    answer = searched(settings(goal="saturation", tolerance=0.001), steps_at(limit))
    assert (answer.outcome, answer.level) == (outcome, level)


def test_an_engine_that_answers_nothing_ends_a_saturation_search():
    """The search does not hang at a level without throughput."""
    answer = searched(settings(goal="saturation"), lambda level, requests: {})
    assert answer.outcome == "not_enough_data"
    assert len(answer.probes) == 3


def test_max_probes_ends_the_search_with_a_caveat():
    """The result has the bracket so far and the reason why it is wide."""
    answer = searched(
        settings(goal="saturation", of="rate", max_probes=3), lambda rate, _: {"kept_up": min(1.0, 3 / rate)}
    )
    assert (answer.outcome, answer.bracket) == ("found", (2, 4))
    assert any("max_probes=3" in caveat for caveat in answer.caveats)


@pytest.mark.slow
def test_a_noisy_engine():
    """The probability of a good request falls with the level; the level found is near the true one, 40, and seldom above."""
    rng = np.random.default_rng(7)

    def engine(level, requests):
        count = max(requests, 100)
        return {"good": rng.binomial(count, 1 - 0.1 * (level / 40) ** 4), "judged": count, "design_effect": 1.0}

    levels = [searched(settings(), engine, attainment=0.9).level for _ in range(10)]
    assert sum(36 <= level <= 44 for level in levels) >= 9
    assert sum(level > 40 for level in levels) <= 2


def test_warnings_of_the_points_are_caveats():
    """The result lists the warnings of its points."""
    work = Search(settings(), 0.99)
    work.add(Probe(point="p", level=1, good=1, judged=300, doubts=("client_bound",)))
    assert work.answer().caveats == ("client_bound at 1",)
    assert work.answer(interrupted=True).caveats[-1].startswith("the search was interrupted")


def test_no_probe_is_begun_after_the_budget():
    """The bracket stays as wide as it is, and the answer says why."""
    work = Search(settings(budget_s=100.0), 0.99)
    work.add(Probe(point="p", level=1, good=300, judged=300, seconds=60))
    assert work.next_probe() is not None
    work.add(Probe(point="q", level=2, good=300, judged=300, seconds=60))
    assert work.next_probe() is None
    assert "load.search.budget_s=100" in work.answer().caveats[-1]


@pytest.mark.slow
@pytest.mark.parametrize("burst", [1, 4, 16])
def test_failures_in_bursts_do_not_pass_for_a_met_slo(burst):
    """2% of the requests fail at every level and 99% must be good: no level qualifies, and searches say so."""
    rng = np.random.default_rng(burst)

    def engine(level, requests):
        count = max(requests, 100)
        starts = rng.random(count) < 0.02 / burst
        good = np.convolve(starts, np.ones(burst))[:count] == 0
        return {"good": int(good.sum()), "judged": count, "design_effect": design_effect(good.tolist())}

    found = [searched(settings(max_probes=16), engine).outcome for _ in range(20)]
    assert found.count("found") + found.count("always_met") <= 3  # 5% of 20, and two more by chance


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
