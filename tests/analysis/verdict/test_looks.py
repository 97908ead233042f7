"""Decisions over several looks: pure, from the values of starts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from servebench.analysis.start_model import Starts
from servebench.analysis.verdict.gate import GateQuestion
from servebench.analysis.verdict.looks import decide, decide_pairs, equal_level, looks_beyond, looks_until, open_pair
from servebench.analysis.verdict.model import (
    EQUAL,
    METRICS,
    OPEN,
    ComparedPoint,
    ComparisonRow,
    Side,
    StartValues,
)
from servebench.analysis.verdict.reasons import Reason, ReasonKind
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.contracts.precision import LOOKS

THROUGHPUT, TTFT, E2E = METRICS[0], METRICS[1], METRICS[4]
NOBODY = Side(name="", samples=())
MARGIN = 0.03


def row(metric, baseline, candidate, users=1, error=0.01):
    """A question with these values (logarithms) of each start."""
    starts = StartValues(baseline=np.array(baseline), candidate=np.array(candidate), error=(error, error))
    return ComparisonRow(level=Level(users), metric=metric, baseline=1.0, candidate=1.0, starts=starts)


def decided(rows, most=LOOKS[-1], earlier=None):
    side = NOBODY if earlier is None else replace(NOBODY, earlier={THROUGHPUT.name: earlier})
    (found,) = decide_pairs([open_pair(rows, (side, side), MARGIN)], looks_until(most))
    return found


def noise(seed, sd, count, shift=0.0):
    return shift + np.random.default_rng(seed).normal(0, sd, count)


@pytest.mark.parametrize(
    ("shift", "sd", "count", "verdict", "starts"),
    [
        (-0.15, 0.001, 2, "slower", 2),
        (0.15, 0.001, 2, "faster", 2),
        (-0.025, 0.001, 2, OPEN, 2),
        (-0.05, 0.001, 3, "slower", 2),
        (0.0, 0.001, 6, EQUAL, 2),
        (-0.03, 0.002, 24, "slower", 3),
        (0.0, 0.05, 8, OPEN, 8),
        # one start of each, and nothing earlier
        (-0.10, 0.01, 1, OPEN, 1),
    ],
)
def test_a_pair_is_decided_as_soon_as_its_starts_suffice(shift, sd, count, verdict, starts):
    found = decided([row(THROUGHPUT, noise(1, sd, count), noise(2, sd, count, shift))])
    assert (found.first.result if found.first else OPEN, found.starts_looked) == (verdict, starts)
    assert found.answered is (verdict is not OPEN)
    assert found.starts_needed == 2 or count > 1
    assert found.open_levels == (() if found.answered else (Level(1),))


@pytest.mark.parametrize(
    ("starts", "sd", "in_turns", "level"),
    [
        (1, 0.01, False, 0.03),
        (4, 0.01, False, 0.015),
        (9, 0.01, False, 0.01 * 6 / 9),
        # a margin of 5% is 5 errors, of which 3.5 have the whole level
        (2, 0.01, True, 0.016 * 0.7**2),
        (2, 0.05 / 3.5, True, 0.016),
        (2, 0.05, True, 0.016),
        (12, 0.05, True, 0.008),
    ],
)
def test_less_is_risked_for_equal_where_it_would_buy_little(starts, sd, in_turns, level):
    assert equal_level(starts, sd, margin=0.05, in_turns=in_turns) == pytest.approx(level)


def test_one_start_suffices_where_many_earlier_ones_show_the_spread():
    """Of 20 earlier starts, none slow for its whole life, one of twelve may be so: another start each has to tell."""
    rows = [row(THROUGHPUT, noise(1, 0.01, 4), noise(2, 0.01, 4, -0.1))]
    for count, looked in ((20, 2), (100, 1)):
        earlier = Starts((Level(1),), noise(3, 0.01, count)[:, None], np.array([0.01]))
        found = decided(rows, earlier=earlier)
        assert (found.first.result, found.starts_looked, found.first.method.earlier) == ("slower", looked, count)
    assert decided(rows).starts_looked > 1


def test_a_start_that_a_kill_divided_over_two_lives_of_the_engine_is_one():
    names = [tuple((f"{side}{life}",) for side in ("base", "other")) for life in (1, 2)]
    rows = [row(THROUGHPUT, [0.0], [-0.2], level, error=0.001) for level in (1, 2)]
    divided = [replace(one, starts=replace(one.starts, names=own)) for one, own in zip(rows, names, strict=True)]
    found = decided(divided)
    assert (found.first.result, found.first.p, found.answered, found.starts_needed) == (OPEN, None, False, 2)
    assert found.first.method.starts == (1, 1)


def test_few_starts_say_nothing_about_ttft():
    """Streams may be in step for all of a start: the TTFT then has one of two values."""
    wide = [0.0, 0.05, -0.05, 0.02, 0.04, -0.06]

    def levels(count):
        return decided([row(THROUGHPUT, wide[:count], wide[:count]), row(TTFT, [0.0] * count, [0.5] * count)]).levels

    assert (levels(4), levels(6)) == ({Level(1): OPEN}, {Level(1): "slower"})


def test_levels_and_metrics_are_what_the_last_look_shows():
    """The mean decides; a level that does not follow it stays open, or differs the other way."""
    clear = [row(THROUGHPUT, noise(level, 0.001, 3), noise(9 + level, 0.001, 3, -0.2), level) for level in (1, 2)]
    other = row(THROUGHPUT, noise(5, 0.001, 3), noise(6, 0.001, 3, 0.1), 4)
    found = decided([*clear, other, row(E2E, noise(7, 0.001, 3), noise(8, 0.001, 3, 0.2), 1)])
    assert found.first.result == "slower"
    assert found.levels == {Level(1): "slower", Level(2): "slower", Level(4): "faster"}
    assert {one.looked for one in found.rows} == {2}


def test_what_cannot_be_compared_is_not_measured_again():
    nothing = ComparisonRow(level=Level(1), metric=THROUGHPUT, baseline=None, candidate=None)
    found = decided([nothing])
    assert (found.levels, found.open_levels) == ({Level(1): "not compared"}, ())


def test_more_starts_do_not_change_what_earlier_ones_decided():
    """A study that was killed, or measured further for another pair, decides as before."""
    a, b = noise(1, 0.005, 12), noise(2, 0.005, 12, -0.1)
    b[3:] += 0.2
    first, later = (decided([row(THROUGHPUT, a[:count], b[:count])]).first for count in (3, 12))
    assert first.result == later.result == "slower"
    assert first.looked == later.looked <= 3


def in_rotation(places, shift=-0.1):
    """The questions of a study whose levels were measured in these starts; each start's effect is the same at all of them."""
    ours, theirs = noise(1, 0.02, 9), noise(2, 0.02, 9, shift)
    return [
        ComparisonRow(
            level=Level(users), metric=THROUGHPUT, baseline=1.0, candidate=1.0,
            starts=StartValues(
                baseline=ours[own], candidate=theirs[own], error=(0.003, 0.003),
                names=(tuple(f"a{one}" for one in own), tuple(f"b{one}" for one in own)), places=(tuple(own), tuple(own)),
            ),
        )
        for users, own in places.items()
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("places", "starts"),
    [
        ({1: [0, 1, 3], 2: [0, 1, 2], 4: [0, 2, 3]}, 4),
        # it was killed within the fourth start
        ({1: [0, 1], 2: [0, 1, 2], 4: [0, 2, 3]}, 3),
        # a level without values in the second start, or in the first
        ({1: [0, 1, 3], 2: [0, 2], 4: [0, 2, 3]}, 4),
        ({1: [0, 1], 2: [1], 4: [0, 1]}, 2),
        ({1: [0, 1], 2: [0]}, 2),
        ({1: [0, 1, 2], 2: [0, 2]}, 3),
        ({1: [0, 1, 2], 2: [0, 1, 2], 4: [0, 1]}, 2),
        ({1: [0, 1, 2], 2: [0, 1], 4: [0, 1]}, 2),
        ({1: [0], 2: [0], 4: [0]}, 1),
    ],
)
def test_a_start_counts_once_it_has_as_many_levels_as_the_others(places, starts):
    assert open_pair(in_rotation(places), (NOBODY, NOBODY), MARGIN).starts == starts


@pytest.mark.parametrize(("kind", "starts"), [(ReasonKind.VOID_TO_REPLACE, 2), (ReasonKind.VOID_FOR_GOOD, 3)])
def test_a_void_point_keeps_later_starts_until_it_is_replaced(kind, starts):
    """Level 4 is void in the third start."""
    voids = {Level(4): Reason(kind)}
    rows = in_rotation({1: [0, 1, 2], 2: [0, 1, 2], 4: [0, 1]})
    assert open_pair(rows, (NOBODY, NOBODY), MARGIN, voids).starts == starts
    missing = ComparisonRow(level=Level(4), metric=THROUGHPUT, baseline=None, candidate=None)
    assert open_pair([*rows[:2], missing], (NOBODY, NOBODY), MARGIN, voids).starts == (3 if starts == 3 else 0)


def test_a_look_has_what_its_starts_have_of_each_level():
    rows = in_rotation({1: [0, 1, 3, 4], 2: [0, 1, 2, 4], 4: [0, 2, 3]}, shift=-0.05)
    (found,) = decide_pairs([open_pair(rows, (NOBODY, NOBODY), MARGIN)], looks_until(24))
    assert (found.first.result, found.first.looked) == ("slower", 3)
    assert found.first.method.starts == (3, 3)
    assert {one.level.concurrency: one.method.starts for one in found.rows} == {1: (2, 2), 2: (3, 3), 4: (2, 2)}
    before = in_rotation({1: [0, 1], 2: [0, 1, 2], 4: [0, 2]}, shift=-0.05)
    (found_before,) = decide_pairs([open_pair(before, (NOBODY, NOBODY), MARGIN)])
    assert found_before.first.difference == found.first.difference


def side_with_warnings(pace, warned):
    """A side with one level; each start has `pace`, and a warning that up to half of the work is missing where `warned`."""
    rng = np.random.default_rng(4)
    base = rng.lognormal(3, 0.1, 60)
    points = [
        ComparedPoint(
            row=PointRow(
                concurrency=1, repeat=start, verdict="doubtful" if bad else "valid", start_id=f"s{start}",
                doubts=("errors",) if bad else (), requests_ok=60, requests_failed=30,
            ),
            failed=np.zeros(60, dtype=bool),
            throughput_tok_s=base / pace * rng.lognormal(0, 0.001),
        )
        for start, bad in enumerate(warned)
    ]  # fmt: skip
    return Side(name=f"{pace}", samples=tuple(points))


def test_warnings_of_later_starts_do_not_change_what_earlier_ones_decided():
    """A look widens its intervals for the warnings of its own starts only."""

    def decision(warned):
        pair = side_with_warnings(1.0, warned), side_with_warnings(1.4, warned)
        (found,) = decide([pair], margin=MARGIN)
        return found.first

    early, later = decision([False, False]), decision([False, False, True, True, True, True])
    assert early.result == later.result == "slower"
    assert (early.looked, early.low, early.high) == (later.looked, later.low, later.high)
    assert decision([True] * 2).result == OPEN


def test_an_open_pair_says_how_many_starts_would_decide_it():
    """If the spread stays what it is: fewer for a larger difference, at a look that there is."""
    needed = {}
    for shift in (0.0, 0.05, 0.08):
        spread = np.array([-0.03, 0.03, -0.03, 0.03])
        found = decided([row(THROUGHPUT, spread, shift - spread)])
        assert found.open_levels == (Level(1),)
        needed[shift] = found.starts_needed
    assert needed[0.0] > needed[0.08] > 4
    assert needed[0.08] in LOOKS


def test_looks_end_with_the_most_starts():
    assert looks_until(24) == LOOKS
    assert looks_until(7) == (1, 2, 3, 4, 5, 6, 7)
    assert looks_until(2) == (1, 2)
    assert looks_beyond(9) == (*range(1, 11), 12, 16, 24)
    assert looks_beyond(8) == looks_beyond(24) == LOOKS


def test_going_on_keeps_what_was_decided():
    a, b = noise(1, 0.01, 12), noise(2, 0.01, 12, 0.06)
    asked = [row(THROUGHPUT, a, b)]
    first = decided([row(THROUGHPUT, a[:7], b[:7])], most=7)
    (later,) = decide_pairs([open_pair(asked, (NOBODY, NOBODY), MARGIN)], looks_beyond(7))
    assert (first.first.result, first.starts_looked) == (later.first.result, later.starts_looked)


def study(rng, spread, shift):
    """A study of two engines, three levels, with points that are known to 1%."""
    starts = rng.normal(0, spread, (2, 8))
    levels = [starts + rng.normal(0, 0.01, (2, 8)) for _ in range(3)]
    return decided([row(THROUGHPUT, a, b + shift, users, 0.02) for users, (a, b) in enumerate(levels)], most=8)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.005, 0.02, 0.05])
def test_equal_engines_are_rarely_called_different(spread):
    """60 studies: 3 are expected at most, 7 in one case of 100."""
    rng = np.random.default_rng(round(1000 * spread))
    found = [study(rng, spread, 0.0) for _ in range(60)]
    assert sum(one.first.result not in (OPEN, EQUAL) for one in found) <= 7


@pytest.mark.slow
@pytest.mark.parametrize(("spread", "shift", "starts"), [(0.01, -0.05, 3.6), (0.01, -0.1, 2.4), (0.03, -0.1, 4.2)])
def test_a_slower_engine_is_found_in_few_starts(spread, shift, starts):
    rng = np.random.default_rng(3)
    found = [study(rng, spread, shift) for _ in range(30)]
    assert sum(one.first.result == "slower" for one in found) >= 28
    assert np.mean([one.starts_looked for one in found]) <= starts


@pytest.mark.slow
def test_equal_engines_are_called_equal_in_few_starts():
    rng = np.random.default_rng(4)
    found = [study(rng, 0.01, 0.0) for _ in range(40)]
    assert sum(one.first.result is EQUAL for one in found) >= 36
    assert np.mean([one.starts_looked for one in found]) <= 5


TPOT = METRICS[3]
LIMIT = GateQuestion(0.05)


def gated(rows, question=LIMIT, most=LOOKS[-1]):
    (found,) = decide_pairs([open_pair(rows, (NOBODY, NOBODY), question.limit)], looks_until(most), question)
    return found


@pytest.mark.parametrize(
    ("shift", "sd", "count", "gate", "starts"),
    [
        (0.0, 0.001, 6, "not worse", 2),
        # faster, and by how much is not known
        (0.04, 0.01, 12, "not worse", 2),
        (-0.15, 0.001, 6, "slower", 2),
        (-0.05, 0.001, 4, OPEN, 4),
        (0.0, 0.06, 4, OPEN, 4),
    ],
)
def test_a_gate_ends_when_the_candidate_is_not_worse_than_the_limit(shift, sd, count, gate, starts):
    found = gated([row(THROUGHPUT, noise(1, sd, count), noise(2, sd, count, shift))])
    assert (found.gate, found.starts_looked) == (gate, starts)
    assert found.answered is (gate is not OPEN)
    assert found.open_levels == (() if found.answered else (Level(1),))


FEW_YET = Reason(ReasonKind.FEW_REQUESTS_YET, count=8, needed=2)


@pytest.mark.parametrize(("shift", "gate", "result"), [(-0.15, "slower", "slower"), (0.0, OPEN, EQUAL)])
def test_a_level_of_few_requests_keeps_a_gate_open_and_no_other_question(shift, gate, result):
    """It is known after three starts; what another level shows before that counts."""
    few = replace(row(THROUGHPUT, [], [], users=4), starts=None, reasons=(FEW_YET,))
    known = row(THROUGHPUT, noise(1, 0.001, 2), noise(2, 0.001, 2, shift))
    assert (gated([known, few]).gate, gated([known, few]).open_levels) == (
        gate,
        (Level(1), Level(4)) if gate is OPEN else (),
    )
    found = decided([known, few])
    assert (found.first.result, found.open_levels) == (result, ())
    alone = decided([few])
    assert (alone.answered, alone.open_levels, alone.starts_needed) == (False, (Level(4),), 2)


def test_each_judged_metric_and_level_of_a_gate_has_to_be_within_the_limit():
    """The mean of the throughput is clear after two starts."""
    clear = [row(THROUGHPUT, noise(level, 0.001, 6), noise(9 + level, 0.001, 6, 0.1), level) for level in (1, 2)]
    wide = row(TPOT, noise(5, 0.02, 6), noise(6, 0.02, 6), 2)
    assert gated([*clear, wide], most=2).gate is OPEN
    assert gated([*clear, wide], most=2).starts_needed > 2
    assert gated([*clear, wide], GateQuestion(0.05, (THROUGHPUT.name,))).gate == "not worse"
    lost = row(TPOT, noise(5, 0.001, 6), noise(6, 0.001, 6, 0.1), 2)
    assert gated([*clear, lost]).gate == "slower"


def test_a_named_ttft_keeps_a_gate_open_for_six_starts():
    four, eight = (
        [row(one, noise(1, 0.001, count), noise(2, 0.001, count)) for one in (THROUGHPUT, TTFT)] for count in (4, 8)
    )
    assert gated(eight).starts_looked == 2
    named = GateQuestion(0.05, (TTFT.name,))
    assert (gated(four, named).gate, gated(four, named).starts_needed) == (OPEN, 6)
    assert (gated(eight, named).gate, gated(eight, named).starts_looked) == ("not worse", 6)


def test_a_row_that_is_not_worse_says_nothing_the_other_way_round():
    found = gated([row(THROUGHPUT, noise(1, 0.01, 12), noise(2, 0.01, 12, 0.04))])
    (one,) = found.rows
    assert (one.result, one.turned().result) == ("not worse", OPEN)
    assert one.worst_case <= LIMIT.limit
