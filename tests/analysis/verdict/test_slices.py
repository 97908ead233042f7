"""Starts that were measured in turns, slice by slice: their difference, its error, and what is concluded from it."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from servebench.analysis.start_model import StartModel, Starts
from servebench.analysis.verdict.compare import compare
from servebench.analysis.verdict.levels import RankedLevel, lead_difference
from servebench.analysis.verdict.looks import decide
from servebench.analysis.verdict.model import ComparedPoint, Side
from servebench.analysis.verdict.reasons import MethodKind
from servebench.analysis.verdict.slices import (
    ASSUMED_SD,
    SliceDifference,
    enough_starts,
    freedom_of,
    pooled_error,
    slice_differences,
    values_and_errors,
)
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow

THROUGHPUT = "output_throughput_tok_s"
COUNT, NOISE, MACHINE_SD = 12, 0.03, 0.10


def row(values, group="g", column=THROUGHPUT, **more):
    return PointRow(slice_group=group, slice_values=json.dumps({column: list(values)}), **more)


def in_turns(rng, *, own_sd=0.0, own_alike=0.0, count=COUNT, shift=0.0):
    """Logarithms of the slices of two points beside each other on a machine that wanders."""
    machine = np.cumsum(rng.normal(0, 0.03, count))
    own = np.zeros((2, count))
    for engine in own:
        engine[0] = rng.normal()
        for number in range(1, count):
            engine[number] = own_alike * engine[number - 1] + (1 - own_alike**2) ** 0.5 * rng.normal()
    noise = rng.normal(0, NOISE, (2, count))
    return 4.6 + machine + own_sd * own + noise + np.array([[0.0], [shift]])


@pytest.mark.slow
@pytest.mark.parametrize("count", [6, 12, 30])
@pytest.mark.parametrize("own", [{}, {"own_sd": 0.02, "own_alike": 0.4}])
def test_the_interval_of_a_pair_holds_whatever_the_machine_does(count, own):
    """93 to 98% of 600 intervals hold, within two standard errors of 1%, and they are not much wider than they have to be."""
    rng = np.random.default_rng(count)
    found = []
    for _ in range(600):
        a, b = np.exp(in_turns(rng, count=count, **own))
        (one,) = slice_differences([[row(a)]], [[row(b)]], THROUGHPUT)
        found.append((one.value, 1.96 * pooled_error([one])))
    values, halves = np.array(found).T
    assert 0.91 <= np.mean(np.abs(values) <= halves) <= 0.99
    assert halves.mean() / 1.96 / values.std() < 1.6


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([[row([1.0] * 9)]], [[row([1.0] * 9, group="h")]]),
        ([[row([1.0] * 9)]], [[PointRow()]]),
        ([[PointRow()]], [[PointRow()]]),
        ([[row([1.0] * 9)]], [[row([1.0] * 8)]]),
        ([[row([None] * 9)]], [[row([1.0] * 9)]]),
        ([[row([1.0] * 9)]], [[row([1.0] * 9)], [row([1.0] * 9)]]),
        ([[row([1.0] * 9, column="ttft_ms_p50")]], [[row([1.0] * 9)]]),
        ([[row([1.0] * 9), row([1.0] * 9)]], [[row([1.0] * 9)]]),
    ],
)
def test_points_that_did_not_take_turns_have_no_such_difference(ours, theirs):
    assert slice_differences(ours, theirs, THROUGHPUT) == ()


def test_a_pair_with_few_slices_is_as_exact_as_the_scatter_of_the_others_says():
    rng = np.random.default_rng(5)
    whole = [slice_differences([[row(np.exp(a))]], [[row(np.exp(b))]], THROUGHPUT)[0]
             for a, b in (in_turns(rng) for _ in range(6))]  # fmt: skip
    few = SliceDifference(0.01, 0.0, 0.0, 2)
    values, errors = values_and_errors((*whole, few), np.zeros(7), 0.3)
    assert values[-1] == 0.01
    assert errors[-1] == pytest.approx(errors[0] * (COUNT / 3) ** 0.5)
    assert errors[0] == pytest.approx(2**0.5 * NOISE / COUNT**0.5, rel=0.2)


ALONE, PAIR = SliceDifference(0.0, 0.0, 0.0, 0), SliceDifference(0.0, 2e-4, 0.0, 1)


@pytest.mark.parametrize(
    ("levels", "known"),
    [
        ([()], False),
        ([(ALONE,)] * 4, False),
        ([(ALONE, ALONE)], False),
        ([(ALONE, None)] * 4, False),
        ([(ALONE, ALONE)] * 2, True),
        ([(ALONE,) * 3], True),
        ([(PAIR, None)], False),
        ([(PAIR,), (PAIR,)], True),
    ],
)
def test_slices_show_how_they_scatter_in_a_start_or_over_starts(levels, known):
    assert enough_starts(levels) == known


def test_the_error_of_single_slices_is_assumed():
    for few in ((ALONE,) * 3, (PAIR, ALONE)):
        assert freedom_of(few) == 0
        errors = values_and_errors(few, np.zeros(len(few)), 0.3)[1]
        assert errors == pytest.approx([ASSUMED_SD / one.slices**0.5 for one in few])


@pytest.mark.parametrize("scatter", [0.006, 0.04, 0.12])
def test_levels_of_several_starts_correct_what_is_assumed(scatter):
    """By their distance from what a start and a level have in common, smaller and larger; 6 starts of four levels."""
    rng, widths = np.random.default_rng(1), []
    for _ in range(20):
        values = rng.normal(0, 0.01, (6, 1)) + rng.normal(0, scatter, (6, 4))
        levels = tuple(map(Level, (1, 2, 4, 8)))
        pairs = Starts(levels, values, np.full((6, 4), ASSUMED_SD), differences=True, freedom=0)
        widths.append(StartModel((pairs,)).spread[1] * ASSUMED_SD)
    assert np.median(widths) == pytest.approx(scatter, rel=0.35)


def test_single_slices_of_several_starts_are_compared_slice_by_slice():
    rng = np.random.default_rng(3)
    many, once = (compare([(*sides(rng, starts, count=1, shift=np.log(0.8)), ())])[0] for starts in (4, 1))
    assert first_of(many).method.slice_by_slice
    assert many.result == "slower"
    assert not first_of(once).method.slice_by_slice


def test_only_slices_that_both_have_count_and_points_of_a_start_are_one():
    a = [row([1.0, 2.0, 4.0, 8.0, 99.0], "g"), row([1.0] * 5, "h")]
    b = [row([2.0] * 5, "h"), row([1.1, 2.2, 4.4, 8.8, None], "g")]
    (found,) = slice_differences([a], [b], THROUGHPUT)
    assert found.value == pytest.approx((np.log(1.1) + np.log(2)) / 2)
    assert (found.square, found.freedom) == (pytest.approx(0.0, abs=1e-12), 3 + 4)
    (cost,) = slice_differences([a], [b], "cost_usd_per_mtok")
    assert cost.value == pytest.approx(-found.value)


def test_a_difference_has_the_effects_of_two_starts():
    """With one pair the prior of starts speaks, sqrt(2) times as wide as that of one start."""
    pair = Starts.of_one_level([0.0], 1e-4)
    spread = {
        of: (known := StartModel((replace(pair, differences=of),)).value(np.ones(1))).quantile(0.84)
        - known.quantile(0.16)
        for of in (False, True)
    }
    assert spread[True] / spread[False] == pytest.approx(2**0.5, rel=0.01)


def half(model):
    known = model.value(np.ones(1))
    return (known.quantile(0.975) - known.quantile(0.025)) / 2


def test_few_slices_leave_open_how_exact_one_difference_is():
    """Where starts hardly count its interval is Student's."""
    for freedom, student in ((3, 3.18), (6, 2.45), (math.inf, 1.96)):
        pair = replace(Starts.of_one_level([0.0], 0.3), differences=True, freedom=freedom)
        assert half(StartModel((pair,))) == pytest.approx(0.3 * student, rel=0.06)


def test_how_exact_differences_are_is_known_from_all_of_them():
    """Eight that lie nearer to each other than few slices say are more exact; with errors that are right they are not."""
    logs = np.random.default_rng(4).normal(0, 0.02, 8)
    pairs = replace(Starts.of_one_level(logs, 0.05), differences=True)
    few, right = (half(StartModel((replace(pairs, freedom=freedom),))) for freedom in (4, math.inf))
    assert few < 0.8 * right


def test_earlier_starts_say_how_starts_differ_and_not_how_exact_slices_are():
    """Starts without slices, and other differences, whatever is wrong with their own errors."""
    pair = replace(Starts.of_one_level([0.0, 0.01], 0.01), differences=True, freedom=4)
    scores = np.linspace(-1.5, 1.5, 12)
    alike, differing = (
        [half(StartModel((pair,), (one,))) for one in (starts, replace(starts, differences=True))]
        for starts in (Starts.of_one_level(0.002 * scores, 0.002), Starts.of_one_level(0.05 * scores, 0.002))
    )
    assert max(alike) < half(StartModel((pair,))) < min(differing)


def test_either_start_of_a_pair_may_be_slow():
    """One of eight pairs is far out, to one side or the other: its start was slow, and the others say what the engines do."""
    usual = np.random.default_rng(2).normal(0.0, 0.005, 7)
    for odd in (-0.25, 0.25):
        pairs = replace(Starts.of_one_level([*usual, odd], 0.005), differences=True)
        known, blind = (StartModel((pairs,), (), side).value(np.ones(1)) for side in (-1, 0))
        assert known.quantile(0.5) == pytest.approx(0.0, abs=0.01)
        assert known.quantile(0.975) - known.quantile(0.025) < 0.5 * (blind.quantile(0.975) - blind.quantile(0.025))


LEVELS = (Level(1), Level(8))


def sides(rng, starts, *, start_sd=0.01, shift=0.0, sliced=LEVELS, failed=False, alone=(), count=COUNT):
    """Two engines whose starts took turns at the levels `sliced`, but for the starts `alone`."""
    points = ([], [])
    for start in range(starts):
        effects = rng.normal(0, start_sd, 2)
        for level in LEVELS:
            machine = rng.normal(0, MACHINE_SD)
            logs = in_turns(rng, count=count, shift=shift) + machine + effects[:, None]
            for number, own in enumerate(points):
                values = np.exp(logs[number])
                facts = {"repeat": start, "output_throughput_tok_s": values.mean(), "start_id": f"{number}/{start}"}
                columns = (
                    row(values, f"{start}/{level}", **facts)
                    if level in sliced and start not in alone
                    else PointRow(**facts)
                )
                own.append(
                    ComparedPoint(
                        row=replace(columns, concurrency=level.concurrency, verdict="valid"),
                        failed=np.array([failed] + [False] * 99), throughput_tok_s=np.repeat(values, 60 // count),
                    )
                )  # fmt: skip
    return tuple(Side(name=name, samples=tuple(own)) for name, own in zip("ab", points, strict=True))


def first_of(found):
    return found.first.difference


def lead_of(pair):
    """By how much the second engine leads at the second level."""
    ranked = [
        RankedLevel(tuple(one.row for one in own), lambda own=own: own)
        for side in pair
        if (own := tuple(one for one in side.samples if one.row.level == LEVELS[1]))
    ]
    return lead_difference(THROUGHPUT, ranked[1], ranked[0], 0.95)


def without_slices(pair):
    return tuple(
        replace(side, samples=tuple(replace(one, row=replace(one.row, slice_group=None)) for one in side.samples))
        for side in pair
    )


def test_what_the_machine_did_is_left_out_of_a_comparison():
    rng = np.random.default_rng(5)
    pair = sides(rng, 3, start_sd=0.005, shift=np.log(0.9))
    found, plain = (compare([(*one, ())])[0] for one in (pair, without_slices(pair)))
    assert found.result == "slower"
    assert (first_of(found).method.slice_by_slice, first_of(plain).method.slice_by_slice) == (True, False)
    assert first_of(found).method.kind is MethodKind.STARTS
    assert first_of(found).method.starts == (3, 3)
    assert first_of(found).low <= -0.1 <= first_of(found).high
    widths = [first_of(one).high - first_of(one).low for one in (found, plain)]
    assert widths[0] < widths[1] / 2


def test_a_level_without_slices_counts_with_the_errors_of_its_points():
    pair = sides(np.random.default_rng(6), 3, sliced=LEVELS[:1])
    found = compare([(*pair, ())])[0]
    assert first_of(found).method.slice_by_slice
    by_level = {one.level: one for one in found.rows if one.metric.name == THROUGHPUT}
    assert by_level[LEVELS[0]].difference.high < by_level[LEVELS[1]].difference.high


def test_a_start_without_slices_counts_with_the_error_of_its_points():
    """So it takes little from what the others say, and is there where it is the only one."""
    rng = np.random.default_rng(6)
    pair = sides(rng, 3, shift=np.log(0.9), alone=(0,))
    found, plain = (compare([(*one, ())])[0] for one in (pair, without_slices(pair)))
    assert first_of(found).method.slice_by_slice
    assert first_of(found).low <= -0.1 <= first_of(found).high
    assert first_of(found).high - first_of(found).low < 0.6 * (first_of(plain).high - first_of(plain).low)
    leads = [lead_of(one) for one in (pair, without_slices(pair))]
    assert [one.method.slice_by_slice for one in leads] == [True, False]
    assert leads[0].low <= -0.1 <= leads[0].high
    assert leads[0].high - leads[0].low < leads[1].high - leads[1].low
    alone = pair[0].samples[:2], pair[1].samples[:2]
    (only,) = compare([(*(replace(side, samples=own) for side, own in zip(pair, alone, strict=True)), ())])
    assert not first_of(only).method.slice_by_slice


def test_failed_requests_are_no_matter_of_slices():
    found = compare([(*sides(np.random.default_rng(7), 3, failed=True), ())])[0]
    assert not first_of(found).method.slice_by_slice


def test_an_unsteady_machine_makes_no_pair_provisional():
    """Both engines were on it; a point alone is in doubt."""
    pair = tuple(
        replace(
            side,
            samples=tuple(
                replace(one, row=replace(one.row, doubts=("not_stationary",), throughput_trend=0.3))
                for one in side.samples
            ),
        )
        for side in sides(np.random.default_rng(8), 3, shift=np.log(0.8))
    )
    found, plain = (compare([(*one, ())])[0] for one in (pair, without_slices(pair)))
    assert found.result == "slower"
    assert {one.widened for one in found.rows} == {(0.0, 0.0, 0.0)}
    assert all(one.widened[0] > 0.3 for one in plain.rows)


@pytest.mark.parametrize(("shares", "result"), [((0.9, 0.8), "slower"), ((0.9, 0.1), "not enough data")])
def test_what_takes_the_machine_from_both_alike_makes_no_pair_provisional(shares, result):
    def busy(side, share):
        return replace(
            side,
            samples=tuple(
                replace(one, row=replace(one.row, doubts=("machine_busy",), disturbed_s=share * 10, window_s=10.0))
                for one in side.samples
            ),
        )

    pair = sides(np.random.default_rng(8), 3, shift=np.log(0.8))
    disturbed = tuple(busy(*one) for one in zip(pair, shares, strict=True))
    assert compare([(*disturbed, ())])[0].result == result
    assert compare([(*without_slices(disturbed), ())])[0].result == "not enough data"


def test_studies_decide_and_uses_are_led_by_slices():
    rng = np.random.default_rng(9)
    pair = sides(rng, 3, start_sd=0.005, shift=np.log(0.9))
    (found,) = decide([pair], margin=0.03)
    assert (found.first.result, found.first.method.kind, found.first.method.slice_by_slice) == (
        "slower",
        MethodKind.LOOKS,
        True,
    )
    lead = lead_of(pair)
    assert lead.method.slice_by_slice
    assert lead.low <= -0.1 <= lead.high < 0


@pytest.mark.slow
@pytest.mark.parametrize("start_sd", [0.005, 0.01, 0.03])
@pytest.mark.parametrize("starts", [2, 3])
def test_equal_engines_are_called_different_in_at_most_one_of_twenty(starts, start_sd):
    """200 comparisons, whose share of 5% has a standard error of 1.5%."""
    rng = np.random.default_rng(starts)
    wrong = [
        compare([(*sides(rng, starts, start_sd=start_sd), ())])[0].result in ("faster", "slower", "mixed")
        for _ in range(200)
    ]
    assert np.mean(wrong) <= 0.05 + 2 * 0.015


def test_few_slices_have_a_wide_error():
    few, many = (pooled_error([scattered(0.01, freedom)] * 2) for freedom in (3, 40))
    assert few == pytest.approx(0.01 * 2.447 / 1.96, rel=0.01)
    assert many == pytest.approx(0.01, rel=0.02)


def scattered(error, freedom, alike=0.0):
    """The difference of slices whose mean has this error, if neighbours are not alike."""
    square = error**2 * (freedom + 1) * freedom
    return SliceDifference(0.0, square, alike * square, freedom)


def test_other_levels_say_how_few_slices_scatter():
    """As if they had given four degrees of freedom; they have no say where the level has many."""
    alone, with_others = (pooled_error([scattered(0.01, 1)] * 2, other) for other in ((), [scattered(0.01, 1)] * 6))
    assert alone == pytest.approx(0.01 * 4.303 / 1.96, rel=0.01)
    assert with_others == pytest.approx(0.01 * 2.447 / 1.96, rel=0.01)
    many = [scattered(0.01, 40)] * 2
    assert pooled_error(many, [scattered(0.03, 40)] * 6) == pytest.approx(pooled_error(many), rel=0.25)


def test_how_alike_neighbours_are_is_known_from_all_starts():
    """One start whose slices happen to be alike makes the error hardly wider among eight."""
    usual, alike = scattered(0.01, 4), scattered(0.01, 4, 0.5)
    assert pooled_error([alike] * 8) == pytest.approx(3**0.5 * pooled_error([usual] * 8))
    assert pooled_error([alike] + [usual] * 7) < 1.1 * pooled_error([usual] * 8)


def test_two_slices_at_each_of_several_levels_suffice():
    """Each level has one degree of freedom in a start."""
    rng = np.random.default_rng(11)
    pair = tuple(
        replace(
            side,
            samples=tuple(
                replace(one, row=replace(one.row, slice_values=json.dumps({THROUGHPUT: few_of(one)})))
                for one in side.samples
            ),
        )
        for side in sides(rng, 2, start_sd=0.005, shift=np.log(0.8))
    )
    (found,) = compare([(*pair, ())])
    assert found.first.result == "slower"
    assert first_of(found).method.slice_by_slice
    assert first_of(found).low <= -0.2 <= first_of(found).high


def few_of(point):
    return json.loads(point.row.slice_values)[THROUGHPUT][:2]
