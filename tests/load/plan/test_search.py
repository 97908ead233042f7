"""Which level a search measures next and what it concludes, for engines that are functions of the level."""

from __future__ import annotations

import numpy as np
import pytest

from servebench.contracts.settings import SearchSettings
from servebench.load.plan.search import Probe, Search, crossing, requests_needed
from servebench.measure.points import design_effect
from servebench.util.proportions import wilson


def settings(**keys):
    return SearchSettings(**{"upper": 64.0, "tolerance": 0.05, **keys})


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


def searched(search, engine, attainment=0.99):
    """Run a search against `engine(level, requests)`, which returns the values of a probe."""
    work = Search(search, attainment)
    while (following := work.next_probe()) is not None:
        assert search.lower <= following.level <= search.upper
        found = engine(following.level, following.requests)
        work.probes.append(Probe(point=f"{following.level:g}-{following.repeat}", level=following.level, **found))
    return work.answer()


def steps_at(limit, judged=100, grows=True):
    """An engine that meets the SLO up to a limit."""

    def engine(level, requests):
        count = max(judged, requests) if grows else judged
        good = count if level <= limit else count // 2
        return {"good": good, "judged": count}

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


def test_a_rate_is_found_to_the_tolerance():
    """Rates need not be whole."""
    answer = searched(settings(of="rate", lower=0.5, tolerance=0.1), steps_at(7.3))
    assert answer.level is not None
    assert answer.level <= 7.3 <= answer.bracket[1]
    assert answer.bracket[1] <= answer.level * 1.1


def test_max_probes_ends_the_search_with_a_caveat():
    """The result has the bracket so far and the reason why it is wide."""
    answer = searched(settings(max_probes=3), steps_at(3))
    assert len(answer.probes) == 3
    assert answer.outcome == "not_enough_data"
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


def test_an_engine_that_answers_nothing_ends_a_search():
    """A level without a judged request is measured again, and then the search is over."""
    answer = searched(settings(), lambda level, requests: {})
    assert answer.outcome == "not_enough_data"
    assert [probe.level for probe in answer.probes] == [1, 1, 1]


def test_warnings_of_the_points_are_caveats():
    """The result lists the warnings of its points."""
    work = Search(settings(), 0.99)
    work.probes.append(Probe(point="p", level=1, good=1, judged=300, doubts=("client_bound",)))
    assert work.answer().caveats == ("client_bound at 1",)
    assert work.answer(interrupted=True).caveats[-1].startswith("the search was interrupted")


def test_no_probe_is_begun_after_the_budget():
    """The bracket stays as wide as it is, and the answer says why."""
    work = Search(settings(budget_s=100.0), 0.99)
    work.probes.append(Probe(point="p", level=1, good=300, judged=300, seconds=60))
    assert work.next_probe() is not None
    work.probes.append(Probe(point="q", level=2, good=300, judged=300, seconds=60))
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
