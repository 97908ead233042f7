"""The race between candidates, on values that are given."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from servebench.analysis.tuning.answer import gain_of, recommended, verdict_of
from servebench.analysis.tuning.ledger import RaceEntrant, RaceRules, highest_load
from servebench.analysis.tuning.race import Race, replay
from servebench.analysis.verdict.blocks import MeasuredBlock, estimate
from servebench.contracts.tuning import Result

START, BLOCK = 60.0, 20.0


def run(means, *, budget=1e6, entrants=None, results=None, levels=1, sd=0.0, seed=0, **rules):
    """Run a race; `means` maps names to values, `results` names to a result or a function of the step."""
    entrants = entrants or [RaceEntrant(name=name) for name in means]
    race = Race(RaceRules(budget=budget, levels=levels, **rules), entrants)
    steps = []
    while (step := race.next_step()) is not None:
        steps.append(step)
        own = (results or {}).get(step.candidate)
        own = own(step) if callable(own) else own
        race.add(own or result_of(means, step, sd, seed))
    return race, steps


def result_of(means, step, sd=0.0, seed=0):
    speed = random.Random(f"{seed}/{step.candidate}/{step.start}").gauss(0, sd)
    noise = random.Random(f"{seed}/{step.candidate}/{step.start}/{step.block}/{step.level}").gauss(0, sd / 2)
    first = step.block + step.level == 0
    name = step.candidate.partition(" ")[0]
    value = means.get(step.candidate, means.get(name, 0.0)) + speed + noise
    return Result(value=value, cost=BLOCK + START * first, start_id=f"{step.candidate}{step.start}", sent=100)


MEANS = {"stock": 0.0, "a": 0.2, "b": -0.3, "c": 0.15, "d": 0.0, "e": -0.1}


def test_the_best_wins_and_its_gain_is_from_the_finals():
    race, steps = run(MEANS, sd=0.005)
    assert race.best == "a"
    gain = gain_of(race)
    assert gain is not None
    assert gain.low <= math.expm1(0.2) <= gain.high
    assert {step.candidate for step in steps if step.phase == "finals"} == set(race.finalists)
    assert "stock" in race.finalists
    of_race, of_finals = ({step.repeat for step in steps if step.phase == phase} for phase in ("race", "finals"))
    assert not of_race & of_finals, "the finals have prompts of their own"
    assert race.left["b"].reason == "slower"
    assert race.left["b"].behind == pytest.approx(0.5, abs=0.05)


def test_all_measure_the_same_blocks_and_rounds_alternate():
    _, steps = run({**MEANS, **{f"n{i}": 0.19 + i / 1000 for i in range(6)}}, sd=0.02)
    rounds = {}
    for step in steps:
        if step.phase == "race" and step.block == 0:
            rounds.setdefault(step.start, []).append(step.candidate)
    assert len(rounds) >= 2
    first, second = rounds[0], rounds[1]
    assert [name for name in reversed(first) if name in second] == second


def test_a_start_that_fails_is_a_result_and_costs_no_second_try():
    race, steps = run(MEANS, results={"a": Result(failure="out of memory", cost=20.0)})
    assert race.best == "c"
    assert [step.candidate for step in steps].count("a") == 1
    assert (race.left["a"].reason, race.left["a"].note) == ("start failed", "out of memory")


def test_a_candidate_that_fails_requests_or_the_slo_leaves_though_it_is_fast():
    failing = Result(value=1.0, cost=80.0, failed=5, sent=100)
    slow = Result(value=1.0, cost=80.0, good=60, tested=100, sent=100)
    fine = Result(value=0.0, cost=80.0, good=100, tested=100, sent=100)
    race, _ = run(
        dict.fromkeys(("stock", "a", "b"), 0.0), results={"stock": fine, "a": failing, "b": slow}, attainment=0.95
    )
    assert race.left["a"].reason == "requests failed"
    assert race.left["b"].reason == "slo"
    assert race.best == "stock"
    one = Result(value=1.0, cost=80.0, failed=1, sent=100, good=99, tested=100)
    race, _ = run({"stock": 0.0, "a": 0.0}, results={"stock": fine, "a": one}, attainment=0.99)
    assert race.best == "a", "one failed request may be chance"


def test_infinitely_slow_is_no_number_to_reckon_with():
    race, _ = run({"stock": 0.0, "a": -math.inf, "b": 0.1})
    assert race.best == "b"


def in_slices(step, value, wander, sd=0.0):
    """A block of the finals that took turns with those of others: the machine moves their slices alike."""
    machine = [random.Random(f"{step.start}/{number}").gauss(0, wander) for number in range(8)]
    own = random.Random(f"{step.candidate}/{step.start}")
    slices = tuple(value + one + own.gauss(0, sd) for one in machine)
    group = f"{step.start}/{step.level}"
    return Result(value=sum(slices) / 8, cost=BLOCK, start_id=group, sent=100, slice_group=group, slices=slices)


@pytest.mark.parametrize("levels", [1, 2])
def test_the_gain_of_finalists_that_took_turns_is_that_of_their_slices(levels):
    """The machine moves by 20% from one moment to the next, and the gain is known to a few percent."""
    own = {
        name: lambda step, mean=mean: in_slices(step, mean, 0.2, 0.01) if step.phase == "finals" else None
        for name, mean in MEANS.items()
    }
    race, steps = run(MEANS, results=own, levels=levels, sliced=True)
    assert {step.block for step in steps if step.phase == "finals"} == {0}
    gain = gain_of(race)
    assert gain.method.slice_by_slice
    assert gain.method.starts == (3, 3)
    assert gain.low <= math.expm1(0.2) <= gain.high
    assert gain.high - gain.low < 0.15
    # what was not measured beside each other is compared by its blocks
    race, _ = run(MEANS, sd=0.005, sliced=True)
    assert not gain_of(race).method.slice_by_slice


def test_finals_in_slices_keep_the_budget():
    means = {f"n{i:02d}": i / 50 for i in range(20)}
    budget = 0.4 * 20 * 3 * (START + 3 * BLOCK)
    results = dict.fromkeys(
        means, lambda step: replace(result_of(means, step), cost=120.0) if step.phase == "finals" else None
    )
    race, steps = run(means, budget=budget, results=results, sliced=True)
    assert len({step.start for step in steps if step.phase == "finals"}) >= 2
    assert race.spent <= budget


def test_a_void_point_in_slices_is_not_measured_again():
    race, _ = run({"stock": 0.0, "a": 0.1})
    void = Result(value=0.0, void=True, sent=100)
    assert race.measures_again(void)
    assert not race.measures_again(replace(void, slice_group="g"))


def test_stock_is_as_good():
    race, _ = run({"stock": 0.3, "a": 0.0, "b": 0.1})
    assert race.best == "stock"
    assert gain_of(race) is None


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_the_budget_is_kept(share):
    means = {f"n{i:02d}": -i / 50 for i in range(20)}
    budget = share * 20 * 3 * (START + 3 * BLOCK)
    race, _ = run(means, budget=budget, sd=0.02)
    assert race.spent <= budget
    assert race.best is not None


def test_a_budget_for_a_few_tries_a_few():
    race, _ = run({f"n{i:02d}": i / 10 for i in range(20)}, budget=1600.0)
    assert sum(left.reason == "not tried" for left in race.left.values()) >= 5
    assert race.best is not None
    assert race.spent <= 1600.0


@pytest.mark.parametrize(
    ("budget", "finalists", "starts"), [(4000.0, 3, 3), (2000.0, 2, 3), (1300.0, 1, 3), (500.0, 1, 2)]
)
def test_a_small_budget_has_small_finals(budget, finalists, starts):
    race, steps = run({name: 0.001 * index for index, name in enumerate(MEANS)}, budget=budget, sd=0.01)
    of_finals = [step for step in steps if step.phase == "finals"]
    assert len({step.start for step in of_finals}) == starts
    assert finalists <= len({step.candidate for step in of_finals}) <= finalists + 1, "stock may be among the best"
    assert race.spent <= budget


def test_a_budget_that_compares_nothing_says_what_it_would_take():
    race, steps = run(MEANS, budget=300.0)
    assert [step.candidate for step in steps] == ["stock"]
    assert verdict_of(race) == "too little"
    assert race.least_budget == pytest.approx(480.0)
    assert run(MEANS, budget=race.least_budget)[0].best is not None


def test_answers_are_checked_before_a_candidate_may_win():
    entrants = [
        RaceEntrant(name="stock"),
        RaceEntrant(name="a", answers=True),
        RaceEntrant(name="b", answers=True),
        RaceEntrant(name="c"),
    ]
    means = {"stock": 0.0, "a": 0.5, "b": 0.4, "c": 0.1}

    def answers(same):
        return lambda step: Result(cost=5.0, same_answers=same, note="1 of 8 differ") if step.quality else None

    race, steps = run(
        means, entrants=entrants, finalists=1, results={"stock": answers(True), "a": answers(False), "b": answers(True)}
    )
    assert race.best == "b"
    assert (race.left["a"].reason, race.left["a"].note) == ("answers", "1 of 8 differ")
    assert [step.candidate for step in steps if step.quality] == ["stock", "a", "b"]


@pytest.mark.parametrize(
    ("result", "earlier", "again"),
    [
        (Result(value=0.0, cost=80.0, sent=100), [], False),
        (Result(value=0.0, cost=80.0, sent=100, void=True), [], True),
        (Result(value=0.0, cost=80.0, sent=100, failed=60, void=True), [], False),
        (Result(value=0.0, cost=600.0, sent=100, void=True), [], False),
        (Result(value=0.0, cost=80.0, sent=100, void=True), [Result(value=0.0, cost=80.0, void=True)], False),
        (Result(value=0.0, cost=80.0, sent=100, void=True), [Result(value=0.0, cost=80.0)], True),
    ],
    ids=["fine", "void", "its requests failed", "no budget", "another stayed void", "another is fine"],
)
def test_a_void_point_is_measured_again(result, earlier, again):
    race = Race(RaceRules(budget=1000.0), [RaceEntrant(name="stock"), RaceEntrant(name="a")])
    for one in earlier:
        race.add(one)
    assert race.measures_again(result) is again


def test_a_winner_that_was_not_better_in_the_finals_is_not_recommended():
    """Its luck in the race does not count: the finals alone say what it gains."""

    def lucky(step):
        value = {"stock": 0.0, "a": 0.4 if step.phase == "race" else -0.02}[step.candidate]
        return Result(
            value=value + 0.01 * (step.start % 2), cost=80.0, start_id=f"{step.candidate}{step.start}", sent=100
        )

    race, _ = run({"stock": 0.0, "a": 0.0}, results={"stock": lucky, "a": lucky}, budget=2000.0)
    assert race.best == "a"
    assert verdict_of(race) == "as good"
    assert recommended(race) == "stock"


@pytest.mark.parametrize(
    ("means", "distances", "best", "equals"),
    [
        ({"stock": 0.0, "a": 0.3, "b": 0.302}, {"a": (1,), "b": (3,)}, "a", ("b",)),
        ({"stock": 0.0, "a": 0.3, "b": 0.302}, {"a": (2, 64.0), "b": (2, 32.0)}, "b", ()),
        ({"stock": 0.0, "a": 0.3, "b": 0.302}, {"a": (2, 32.0), "b": (2, 64.0)}, "a", ("b",)),
        ({"stock": 0.0, "a": 0.3, "b": 0.302}, {"a": (2,), "b": (2,)}, "b", ()),
        ({"stock": 0.0, "a": 0.3, "b": 0.4}, {"a": (1,), "b": (3,)}, "b", ()),
        ({"stock": 0.0, "a": 0.002, "b": -0.2}, {"a": (1,), "b": (1,)}, "stock", ("a",)),
    ],
    ids=["fewer changes", "less memory wins already", "less memory", "equally far", "beyond the margin", "stock"],
)
def test_of_equal_candidates_the_one_nearest_to_stock_wins(means, distances, best, equals):
    means |= {"c": means["a"] - 0.02, "d": means["a"] - 0.05, "e": means["a"] - 0.1}
    entrants = [RaceEntrant(name=name, distance=distances.get(name, (4 * (name != "stock"),))) for name in means]
    race, _ = run(means, entrants=entrants, sd=0.002)
    assert (race.best, race.equals) == (best, equals)


def test_who_is_not_known_to_be_within_the_margin_is_no_equal():
    """Starts that differ by 10% do not show it."""
    entrants = [RaceEntrant(name=name, distance=(index,)) for index, name in enumerate(("stock", "a", "b"))]
    race, _ = run({"stock": -1.0, "a": 0.3, "b": 0.31}, entrants=entrants, sd=0.1)
    assert race.equals == ()


def test_each_setting_of_the_winner_is_taken_back():
    entrants = [RaceEntrant(name="stock"), RaceEntrant(name="a", take_backs=("a -x", "a -y"))]
    race, steps = run({"stock": 0.0, "a": 0.3, "a -x": 0.1, "a -y": 0.3}, entrants=entrants)
    assert race.contributions_of == ("a -x", "a -y")
    last = [step for step in steps if step.phase == "contributions"]
    assert {step.candidate for step in last} == {"a", "a -x", "a -y"}
    found = race.estimates(("finals", "contributions"))
    assert found is not None
    assert found.difference("a", "a -x").quantile(0.5) == pytest.approx(0.2, abs=1e-3)


def test_what_the_budget_leaves_is_spent_on_contributions():
    """Without room for the winner once more, its starts in the finals have to do; then as many settings as fit."""
    entrants = [RaceEntrant(name="stock"), RaceEntrant(name="a", take_backs=("a -x", "a -y"))]
    found = []
    for budget in range(500, 1300, 20):
        race, steps = run({"stock": 0.0, "a": 0.3, "a -x": 0.1, "a -y": 0.3}, entrants=entrants, budget=budget)
        measured = {step.candidate for step in steps if step.phase == "contributions"}
        if not {"a -x", "a -y"} <= measured:
            assert budget - race.spent < START + BLOCK
        assert race.spent <= budget
        found.append(measured)
    for few in (set(), {"a -x"}, {"a -x", "a -y"}, {"a", "a -x", "a -y"}):
        assert few in found


def test_the_same_results_lead_to_the_same_steps():
    means = {f"n{i:02d}": -i / 40 for i in range(12)}
    race, steps = run(means, budget=4000.0, sd=0.02)
    for cut in (0, 1, 7, len(steps) - 1):
        again = Race(race.rules, list(race.entrants.values()))
        stored = {step: result_of(means, step, 0.02) for step in steps[:cut]}
        assert replay(again, stored.get) == steps[cut]


def test_the_busiest_level_comes_first_and_ends_a_hopeless_start():
    means = {"stock": 0.0, "a": 0.01, "bad": -1.0}
    race, steps = run(means, levels=3)
    assert [step.level for step in steps if step.candidate == "a"][:3] == [0, 1, 2]
    assert race.left["bad"].reason in ("slower", "budget")
    assert race.best in ("a", "stock")


def width(found, a, b):
    known = found.difference(a, b)
    return known.quantile(0.975) - known.quantile(0.025)


def blocks(names, sd, *, starts=5, seed=1, **values):
    """One block of each start of each candidate; all have the same value but those that `values` names."""
    rng = random.Random(seed)
    return [
        MeasuredBlock(name, f"{name}{start}", start, values.get(f"{name}{start}", 0.0) + rng.gauss(0, sd))
        for name in names
        for start in range(starts)
    ]


def test_starts_that_differ_more_make_wider_intervals():
    narrow, wide = (width(estimate(blocks("abcd", sd)), "a", "b") for sd in (0.002, 0.1))
    assert wide > 3 * narrow


def test_blocks_of_one_start_are_no_starts():
    """A start that is 10% faster in all its ten blocks says as little as one start does."""
    others = blocks("cdef", 0.03)
    rows = [
        MeasuredBlock(name, f"{name}0", 100 + block, value)
        for name, value in (("a", 0.1), ("b", 0.0))
        for block in range(10)
    ]
    ten, one = (width(estimate([*others, *rows[::step]]), "a", "b") for step in (1, 10))
    assert ten > 0.8 * one


def test_how_starts_differ_is_learned_from_all_candidates():
    """Two starts each say little; eight others that are alike say much."""
    few = width(estimate(blocks("ab", 0.005, starts=2)), "a", "b")
    assert width(estimate(blocks("abcdefghij", 0.005, starts=2)), "a", "b") < few / 2


def test_a_slow_start_costs_its_candidate_little_and_others_nothing():
    """One of the starts of `a` was slower by 20% for its whole life."""
    steady, found = (estimate(blocks("abcdef", 0.005, **own)) for own in ({}, {"a3": -0.22}))
    assert found.difference("a", "b").quantile(0.5) == pytest.approx(0.0, abs=0.01)
    assert width(found, "a", "b") < 2 * width(steady, "a", "b")
    assert width(found, "b", "c") < 1.5 * width(steady, "b", "c")


def test_what_all_blocks_share_is_no_spread():
    """Prompts of a start make its blocks shorter or longer, for all candidates: starts are alike."""
    shared = {f"{name}{start}": 0.5 * start for name in "abcd" for start in range(5)}
    alike, moved = (width(estimate(blocks("abcd", 0.005, **own)), "a", "b") for own in ({}, shared))
    assert moved == pytest.approx(alike, rel=0.01)


def test_starts_of_other_phases_do_not_move_a_candidate():
    """The gain of the finals is from their starts alone; all starts say how starts differ."""
    finals = blocks("ab", 0.005, starts=3)
    lucky = [
        MeasuredBlock(name, f"{name}-{start}", 20 + start, 0.3 * (name == "a")) for name in "ab" for start in (0, 1)
    ]
    alone, beside = estimate(finals), estimate(finals, [*finals, *lucky])
    assert beside.starts == {"a": 3, "b": 3}
    middles = (found.difference("a", "b").quantile(0.5) for found in (alone, beside))
    assert math.isclose(*middles, abs_tol=0.003)
    assert estimate([*finals, *lucky]).difference("a", "b").quantile(0.5) > 0.05


@pytest.mark.parametrize(
    ("shares", "load"),
    [
        ({8: 1.0}, 8.0),
        ({16: 0.5, 8: 1.0}, 8 * 2 ** (0.1 / 0.5)),
        ({16: 0.9, 8: 1.0}, 16.0),
        ({16: 0.1, 8: 0.45}, 4.0),
        ({32: 0.0, 16: 0.9, 8: 0.95}, 16.0),
    ],
)
def test_the_highest_load_that_meets_the_slo(shares, load):
    assert math.exp(highest_load(list(shares.items()), 0.9)) == pytest.approx(load)


def test_the_objective_may_be_the_highest_load():
    """Levels below one that meets the SLO are not measured."""
    limits = {"stock": 10, "a": 40, "b": 5}

    def share(step):
        load = (64, 32, 16, 8)[step.level]
        value = max(0.0, min(1.0, 0.9 * limits[step.candidate] / load))
        return Result(value=value, cost=20.0, start_id=f"{step.candidate}{step.start}", sent=100, good=90, tested=100)

    race, steps = run(
        limits, results=dict.fromkeys(limits, share), levels=4, ladder=(64.0, 32.0, 16.0, 8.0), attainment=0.9
    )
    assert race.best == "a"
    assert {step.level for step in steps if step.candidate == "a"} == {0, 1}
    gain = gain_of(race)
    assert gain is not None
    assert 2.5 < gain.effect < 4


def run_ahead(means, results=None, **options):
    """Run a race whose starts are measured as soon as they are decided. Returns it, the rounds of measurement and the steps."""
    race = Race(RaceRules(ahead=True, **{"budget": 1e6, **options}), [RaceEntrant(name=name) for name in means])
    stored, rounds, asked = {}, [], []
    while (step := race.next_step()) is not None:
        if step not in stored:
            assert any(step in start for start in race.upcoming)
            due = [one for start in race.upcoming for one in start if one not in stored]
            rounds.append([start[0].candidate for start in race.upcoming])
            stored |= {one: (results or {}).get(one.candidate) or result_of(means, one, 0.005) for one in due}
        asked.append(step)
        race.add(stored[step])
    return race, rounds, asked, stored


def test_starts_are_decided_together_and_give_the_same_winner():
    race, rounds, asked, stored = run_ahead(MEANS)
    alone, steps = run(MEANS, sd=0.005)
    assert race.best == alone.best == "a"
    assert set(asked) == set(stored)
    # stock says what a start costs; then all others, and in the finals all at once
    assert rounds[:2] == [["stock"], ["a", "b", "c", "d", "e"]]
    assert all(len(set(names)) == len(names) for names in rounds), "two starts of a candidate would share its folder"
    assert len(rounds) < len({(step.candidate, step.start) for step in steps}) / 2
    assert race.upcoming == ()


@pytest.mark.parametrize("budget", [900.0, 1600.0, 3200.0])
def test_only_what_fits_together_is_decided_together(budget):
    race, rounds, _, stored = run_ahead({f"n{i:02d}": i / 10 for i in range(20)}, budget=budget)
    assert sum(result.cost for result in stored.values()) <= budget
    assert race.spent <= budget
    assert 0.4 * budget / 80 < sum(map(len, rounds[:2])) <= 0.6 * budget / 80
    assert race.best is not None


def test_what_was_measured_ahead_and_is_not_asked_for_counts_as_spent():
    failing = Result(value=0.0, cost=20.0, failed=50, sent=100)
    race, *_ = run_ahead(MEANS, {"b": failing})
    charged = Race(race.rules, list(race.entrants.values()), lambda name, start: 7.0 if name == "b" else 0.0)
    results = {name: iter([result for _, result in race.results(name)]) for name in MEANS}
    replay(charged, lambda step: next(results[step.candidate], None))
    assert charged.spent == race.spent + 7.0


def test_points_of_few_requests_promise_less():
    """Two starts agree by chance; what their own intervals say of them widens the gain, and new starts differ by more still."""
    widths = []
    for error in (None, 0.06):
        results = dict.fromkeys(MEANS, lambda step, e=error: replace(result_of(MEANS, step), error=e))
        race, _ = run(MEANS, results=results)
        widths.append([one.high - one.low for one in (gain_of(race), gain_of(race, again=2))])
    assert widths[1][0] > 1.3 * widths[0][0]
    assert all(new > 1.1 * own for own, new in widths)


def test_finals_whose_slices_would_take_most_of_the_budget_are_ordinary_ones():
    for sliced_cost, sliced in ((60.0, True), (900.0, False)):
        results = dict.fromkeys(MEANS, lambda step, s=sliced_cost: replace(result_of(MEANS, step), sliced_cost=s))
        race, _ = run(MEANS, budget=2000.0, results=results, sliced=True)
        assert race.sliced is sliced
        assert race.spent <= race.rules.budget
    # a budget of starts does not count how long one takes
    race, _ = run(
        MEANS,
        budget=8.0,
        results=dict.fromkeys(MEANS, lambda step: replace(result_of(MEANS, step), cost=1.0)),
        sliced=True,
    )
    assert race.sliced
