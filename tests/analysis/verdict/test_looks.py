"""Decisions over several looks: pure, from the values of starts."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from servebench.analysis.verdict.looks import (
    DECIDING,
    PRIOR_STARTS,
    SPENT,
    decide,
    decide_rows,
    looks_beyond,
    looks_until,
    starts_at,
    starts_needed,
    with_prior,
)
from servebench.analysis.verdict.model import (
    EQUAL,
    OPEN,
    ComparedPoint,
    Comparison,
    ComparisonRow,
    Side,
    StartSpread,
    StartValues,
)
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.contracts.precision import LOOKS

THROUGHPUT, TTFT, E2E = DECIDING
NOBODY = Side(name="", samples=())
MARGIN = 0.03


def row(metric, baseline, candidate, users=1, paired=True):
    """A question with these values (logarithms) of each start."""
    starts = StartValues(baseline=np.array(baseline), candidate=np.array(candidate), paired=paired)
    return with_prior(
        ComparisonRow(level=Level(users), metric=metric, baseline=1.0, candidate=1.0, starts=starts), NOBODY, NOBODY
    )


def decided(rows, most=LOOKS[-1]):
    (found,) = decide_rows([rows], margin=MARGIN, looks=looks_until(most))
    return Comparison(baseline="a", candidate="b", margin=MARGIN, rows=tuple(found))


def noise(seed, sd, count, shift=0.0):
    return shift + np.random.default_rng(seed).normal(0, sd, count)


def test_the_level_of_a_look_makes_five_percent_of_all_looks():
    """Of the paths of a sum of independent differences without a drift, 5% are beyond it at one of the looks or more."""
    steps = np.random.default_rng(1).standard_normal((100_000, LOOKS[-1]), dtype=np.float32)
    paths = np.abs(np.cumsum(steps, axis=1)[:, np.array(LOOKS) - 1]) / np.sqrt(LOOKS)
    limits = [NormalDist().inv_cdf(1 - SPENT / look / 2) for look in LOOKS]
    crossed = (paths > limits).any(axis=1).mean()
    assert crossed == pytest.approx(0.05, abs=0.003)


@pytest.mark.parametrize("most", [2, 5, 7, 11, 13, 23, 24])
def test_going_on_after_the_most_starts_keeps_the_error(most):
    """One more look, after the number of starts that was the most at first, leaves 5% of all looks."""
    looks = np.array(looks_beyond(most))
    steps = np.random.default_rng(1).standard_normal((100_000, LOOKS[-1]), dtype=np.float32)
    paths = np.abs(np.cumsum(steps, axis=1)[:, looks - 1]) / np.sqrt(looks)
    crossed = (paths > [NormalDist().inv_cdf(1 - SPENT / look / 2) for look in looks]).any(axis=1).mean()
    assert crossed == pytest.approx(0.05, abs=0.003)


@pytest.mark.parametrize(
    ("shift", "sd", "count", "verdict", "starts"),
    [
        (0.10, 0.0, 2, "slower", 2),
        (-0.10, 0.0, 2, "faster", 2),
        (0.04, 0.0, 2, OPEN, 2),  # two starts may agree by chance
        (0.04, 0.0, 3, "slower", 3),
        (0.0, 0.0, 4, EQUAL, 3),
        (0.01, 0.0, 8, EQUAL, 4),
        (0.03, 0.0, 24, "slower", 3),
        (0.0, 0.05, 8, OPEN, 8),
        (0.10, 0.01, 1, OPEN, 0),
    ],
)
def test_a_metric_is_decided_as_soon_as_its_starts_suffice(shift, sd, count, verdict, starts):
    found = decided([row(E2E, noise(1, sd, count), noise(2, sd, count, shift))])
    assert (found.rows[0].result, found.rows[0].looked) == (verdict, starts)
    assert found.levels == {Level(1): verdict}


def test_earlier_starts_of_a_set_up_that_both_sides_have_count_once():
    """Two runs of one engine find the same starts in the outputs folder."""
    starts = StartValues(baseline=np.zeros(2), candidate=np.zeros(2), paired=True)
    plain = ComparisonRow(level=Level(1), metric=E2E, baseline=1.0, candidate=1.0, starts=starts)

    def known(*spreads):
        sides = [Side(name="", samples=(), spreads={(Level(1), E2E.name): one}) for one in spreads]
        return with_prior(plain, *sides).starts.known

    same = StartSpread(sd=0.01, count=8)
    assert known(same, same)[1] == 7 + PRIOR_STARTS
    assert known(same, StartSpread(sd=0.02, count=5))[1] == 7 + 4 + PRIOR_STARTS


def test_higher_throughput_is_faster():
    assert decided([row(THROUGHPUT, [0.0] * 2, [0.1] * 2)]).levels == {Level(1): "faster"}


def test_few_starts_say_nothing_about_ttft():
    """Streams may be in step for all of a start: the TTFT then has one of two values."""
    few, six = (decided([row(TTFT, [0.0] * count, [0.5] * count)]) for count in (4, 6))
    assert (few.levels, six.levels) == ({Level(1): OPEN}, {Level(1): "slower"})


def test_one_metric_that_differs_decides_a_level_and_equal_takes_all():
    slower = row(E2E, [0.0] * 4, [0.1] * 4)
    same = row(THROUGHPUT, [0.0] * 4, [0.0] * 4)
    wide = row(TTFT, noise(1, 0.1, 4), noise(2, 0.1, 4))
    assert decided([slower, wide]).levels == {Level(1): "slower"}
    assert decided([same, wide]).open_levels == (Level(1),)
    assert decided([slower, row(THROUGHPUT, [0.0] * 4, [0.1] * 4)]).levels == {Level(1): "mixed"}
    assert decided([same, row(E2E, [0.0] * 4, [0.0] * 4)]).levels == {Level(1): EQUAL}


def test_what_cannot_be_compared_is_not_measured_again():
    nothing = ComparisonRow(level=Level(1), metric=THROUGHPUT, baseline=None, candidate=None)
    found = decided([nothing])
    assert (found.levels, found.open_levels) == ({Level(1): "not compared"}, ())
    assert decided([nothing, row(E2E, [0.0] * 2, [0.1] * 2)]).levels == {Level(1): "slower"}


def test_more_starts_do_not_change_what_earlier_ones_decided():
    """A study that was killed, or measured a level further for another pair, decides as before."""
    a, b = noise(1, 0.01, 12), noise(2, 0.01, 12, 0.05)
    b[3:] -= 0.2
    first, later = (decided([row(E2E, a[:count], b[:count])]).rows[0] for count in (3, 12))
    assert first.result == later.result == "slower"
    assert first.looked == later.looked == 3


def side_with_warnings(pace, warned):
    """A side with one level; each start has `pace`, and a warning that up to half of the work is missing where `warned`."""
    rng = np.random.default_rng(4)
    base = rng.lognormal(3, 0.1, 60)
    points = [
        ComparedPoint(
            level=Level(1), repeat=start, verdict="doubtful" if bad else "valid", start_id=f"s{start}",
            doubts=("errors",) if bad else (),
            row=PointRow(requests_ok=60, requests_failed=30, start_id=f"s{start}"),
            request_ids=tuple(map(str, range(60))), sizes=np.ones(60), failed=np.zeros(60, dtype=bool),
            e2e_ms=base * pace * rng.lognormal(0, 0.001),
        )
        for start, bad in enumerate(warned)
    ]  # fmt: skip
    return Side(name=f"{pace}", samples=tuple(points))


def test_warnings_of_later_starts_do_not_change_what_earlier_ones_decided():
    """A look widens its intervals for the warnings of its own starts only."""

    def decision(warned):
        pair = side_with_warnings(1.0, warned), side_with_warnings(1.2, warned)
        ((found,),) = [one.rows for one in decide([pair], margin=MARGIN)]
        return found

    early, later = decision([False, False]), decision([False, False, True, True, True, True])
    assert early.result == later.result == "slower"
    assert (early.looked, early.low, early.high) == (later.looked, later.low, later.high)
    assert decision([True] * 2).result == OPEN


def test_requests_of_later_starts_do_not_change_the_weight_of_a_level():
    """Levels weigh by the requests of the starts that a look sees."""
    values = StartValues(
        baseline=np.zeros(4), candidate=np.zeros(4), paired=True, errors=np.array([0.01, 0.01, 0.3, 0.3])
    )
    assert values.first(2).error == pytest.approx(0.01)
    assert values.error > 0.2


def test_an_open_level_says_how_many_starts_would_decide_it():
    """If difference and spread stay what they are: fewer for a larger difference, at a look that there is."""
    needed = {}
    for shift in (0.0, 0.04, 0.06):
        spread = np.array([-0.03, 0.03, -0.03, 0.03])
        found = decided([row(E2E, spread, shift - spread, paired=False)])
        assert found.open_levels == (Level(1),)
        needed[shift] = starts_needed(found, Level(1))
    assert needed[0.0] > needed[0.04] > needed[0.06] > 4
    assert needed[0.06] in LOOKS


def test_looks_end_with_the_most_starts():
    assert looks_until(24) == LOOKS
    assert looks_until(5) == (2, 3, 4, 5)
    assert looks_until(2) == (2,)
    assert looks_beyond(5) == (2, 3, 4, 5, 6, 8, 12, 16, 24)
    assert looks_beyond(8) == looks_beyond(24) == LOOKS


def test_going_on_keeps_what_was_decided_and_forecasts_do_not_end_with_the_most_starts():
    a, b = noise(1, 0.01, 12), noise(2, 0.01, 12, 0.05)
    first = decide_rows([[row(E2E, a[:5], b[:5])]], margin=MARGIN, looks=looks_until(5))[0][0]
    later = decide_rows([[row(E2E, a, b)]], margin=MARGIN, looks=looks_beyond(5))[0][0]
    assert (first.result, first.looked) == (later.result, later.looked)
    spread = np.array([-0.03, 0.03, -0.03, 0.03, 0.0])
    found = decided([row(E2E, spread, 0.04 - spread, paired=False)], most=5)
    assert starts_at(found, Level(1)) == 5
    assert starts_needed(found, Level(1)) in LOOKS[4:]


def test_levels_that_earlier_looks_decided_support_the_others():
    """A closed test: a level that differs needs no correction for those known to differ."""
    clear = [row(E2E, [0.0] * 3, [0.2] * 3, users=level) for level in range(3)]
    close = row(E2E, noise(1, 0.012, 3), noise(2, 0.012, 3, 0.053), users=3)
    assert decided([*clear, close]).levels[Level(3)] == decided([close]).levels[Level(3)]


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.01, 0.02, 0.03])
def test_equal_engines_are_rarely_called_different(spread):
    """60 studies of four levels, whose starts move all metrics and levels: 3 are expected at most, 7 in one case of 100."""
    rng = np.random.default_rng(round(1000 * spread))
    wrong = sum(_differs(rng, spread, 0.0) for _ in range(60))
    assert wrong <= 7


def test_a_slower_engine_is_found_at_every_level():
    rng = np.random.default_rng(3)
    assert sum(_differs(rng, 0.01, 0.095, levels_needed=4) for _ in range(20)) >= 19


def _differs(rng, spread, shift, levels_needed=1):
    starts = rng.normal(0, spread, (2, 8))
    rows: list[ComparisonRow] = []
    for level in range(4):
        own = rng.normal(0, 0.008, (2, 8))
        a, b = starts + own
        rows += [row(THROUGHPUT, -a, -b - shift, level), row(E2E, a, b + shift, level)]
    verdicts = list(decided(rows, most=8).levels.values())
    return sum(one not in (OPEN, EQUAL) for one in verdicts) >= levels_needed
