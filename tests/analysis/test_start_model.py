"""The model of starts: what it says of starts that are drawn from known engines."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from servebench.analysis.start_model import StartModel, Starts
from servebench.analysis.verdict.families import FIRST_SHARE
from servebench.analysis.verdict.starts import FEW_STARTS
from servebench.contracts.level import Level

LEVELS = (Level(1), Level(4), Level(16))
MEAN = np.full(3, 1 / 3)


def drawn(rng, count, sd, *, shift=0.0, error=0.01, slow=()):
    """Starts of an engine: `slow` ones are 25% slower for their whole life. Their intervals are twice what they have to be."""
    effects = rng.normal(shift, sd, (count, 1))
    effects[list(slow)] += np.log(0.75)
    return Starts(LEVELS, effects + rng.normal(0, error, (count, 3)), np.full(3, 2 * error))


def difference(a, b, *earlier):
    return StartModel((a, b), earlier, -1).value(-MEAN, MEAN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("starts", "earlier", "sd", "shift", "least", "most"),
    [
        # equal engines, at p < 0.05
        (1, 10, 0.01, 0.0, 0.0, 0.05),
        (2, 0, 0.01, 0.0, 0.0, 0.07),
        # two starts hardly show their spread: `compare` and looks ask more of them
        (2, 0, 0.03, 0.0, 0.0, 0.14),
        (5, 0, 0.005, 0.0, 0.0, 0.09),
        (5, 0, 0.03, 0.0, 0.0, 0.09),
        (5, 10, 0.03, 0.0, 0.0, 0.09),
        # engines that differ
        (1, 10, 0.01, -0.05, 0.55, 1.0),
        (1, 10, 0.01, -0.10, 0.95, 1.0),
        (2, 0, 0.01, -0.05, 0.65, 1.0),
        (2, 10, 0.03, -0.10, 0.80, 1.0),
        (3, 0, 0.01, -0.05, 0.95, 1.0),
    ],
)
def test_differences_are_found_as_often_as_they_are_there(starts, earlier, sd, shift, least, most):
    """200 comparisons each: a share of 5% has a standard error of 1.5%."""
    rng = np.random.default_rng(starts + earlier)
    found = 0
    for _ in range(200):
        others = [drawn(rng, earlier, sd)] if earlier else []
        found += difference(drawn(rng, starts, sd), drawn(rng, starts, sd, shift=shift), *others).p < 0.05
    assert least <= found / 200 <= most


@pytest.mark.slow
@pytest.mark.parametrize("starts", [2, 3, 4, 5])
@pytest.mark.parametrize("sd", [0.02, 0.05])
def test_few_starts_of_equal_engines_are_called_different_in_at_most_one_of_twenty(starts, sd):
    """As `compare` asks its first question; 300 comparisons, whose share of 5% has a standard error of 1.3%."""
    rng = np.random.default_rng(starts)
    ps = [difference(drawn(rng, starts, sd), drawn(rng, starts, sd)).p for _ in range(300)]
    wrong = np.mean(np.array(ps) * FEW_STARTS[starts] / FIRST_SHARE < 0.05)
    assert wrong <= 0.05 + 2 * 0.013


def test_one_start_each_may_differ_by_what_starts_do():
    """Nothing is known but the prior; points that are known badly allow for more, earlier starts that agree for less."""
    rng = np.random.default_rng(1)

    def bound(error, *earlier):
        one = Starts.of_one_level([0.0], error)
        return StartModel((one, one), earlier, -1).value(-np.ones(1), np.ones(1)).quantile(0.975)

    assert 0.08 < bound(0.002) < 0.16
    assert bound(0.002) < bound(0.03) < bound(0.08)
    alike = Starts.of_one_level(rng.normal(0, 0.005, 20), 0.002)
    assert bound(0.002, alike) < 0.03


def test_a_slow_start_costs_little():
    """Ten starts of which one was slow for its whole life: the interval is that of nine."""
    rng = np.random.default_rng(2)
    usual, odd = drawn(rng, 10, 0.01), drawn(rng, 10, 0.01, slow=[3])
    found = StartModel((usual, odd), (), -1).value(-MEAN, MEAN)
    assert found.quantile(0.975) - found.quantile(0.025) < 0.04
    assert abs(found.quantile(0.5)) < 0.015
    # without the class it pays for the odd one
    normal = StartModel((usual, odd), (), 0).value(-MEAN, MEAN)
    assert normal.quantile(0.975) - normal.quantile(0.025) > 0.08


def test_earlier_slow_starts_forbid_a_verdict_of_one_start_each():
    rng = np.random.default_rng(3)
    a, b = drawn(rng, 1, 0.01), drawn(rng, 1, 0.01, shift=-0.2)
    assert difference(a, b, drawn(rng, 30, 0.01)).p < 0.02
    assert difference(a, b, drawn(rng, 30, 0.01, slow=[1, 5, 9])).p > 0.05


def real_starts(engine):
    """Throughput of starts of a real engine at 1 and 4 users, answers of 16 tokens, all of one build on one machine."""
    with (Path(__file__).parent / "real_starts.csv").open() as file:
        points = [one for one in csv.DictReader(file) if (one["engine"], one["output_tokens"]) == (engine, "16")]
    ends = [[float(one[f"output_throughput_tok_s{end}"]) for end in ("", "_low", "_high")] for one in points]
    values, low, high = np.log(np.array(ends)).T.reshape(3, -1, 2)
    errors = np.sqrt(np.mean(((high - low) / 3.92) ** 2, axis=0))
    return Starts((Level(1), Level(4)), values, errors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "starts", "bound"), [("llamacpp", 5, 0.25), ("llamacpp", 24, 0.05), ("vllm", 5, 0.06)]
)
def test_equal_real_engines_are_rarely_called_different(engine, starts, bound):
    """Subsets of 60 starts of llama.cpp, of which 5 were slow for life, and of 30 of vLLM."""
    every, rng = real_starts(engine), np.random.default_rng(7)
    wrong, bounds, mean = 0, [], np.full(2, 0.5)
    for _ in range(100):
        drawn = rng.permutation(len(every.values))
        sides = [replace(every, values=every.values[own]) for own in (drawn[:starts], drawn[starts : 2 * starts])]
        found = StartModel(sides, (), -1).value(-mean, mean)
        wrong += found.p < 0.05
        bounds.append(max(-found.quantile(0.025), found.quantile(0.975)))
    assert wrong <= 10
    assert np.median(bounds) < bound


def test_the_slow_starts_of_a_real_engine_are_told_apart():
    """All 60 starts: without their class, the 5 slow ones make the interval twice as wide."""
    every, mean = real_starts("llamacpp"), np.full(2, 0.5)
    widths = [
        (found := StartModel((every,), (), side).value(mean)).quantile(0.975) - found.quantile(0.025)
        for side in (-1, 0)
    ]
    assert widths[0] < 0.65 * widths[1]


def test_levels_that_were_not_measured_in_a_start_are_left_out():
    rng = np.random.default_rng(4)
    whole = drawn(rng, 6, 0.02)
    holes = Starts(LEVELS, whole.values.copy(), whole.errors)
    holes.values[:2, 1] = np.nan
    other = drawn(rng, 6, 0.02, shift=-0.1)
    assert difference(holes, other).quantile(0.5) == pytest.approx(difference(whole, other).quantile(0.5), abs=0.01)
    few = drawn(rng, 6, 0.02).at((LEVELS[1], Level(64)))
    alone, beside = (StartModel((few.at(LEVELS),), known, -1).value(np.eye(3)[1]) for known in ((), (few.at(LEVELS),)))
    assert beside.quantile(0.84) - beside.quantile(0.16) < alone.quantile(0.84) - alone.quantile(0.16)
    moved = holes.at((LEVELS[2], LEVELS[1]))
    assert moved.values.shape == (6, 2)
    assert moved.values[:, 0].tolist() == whole.values[:, 2].tolist()


def test_two_starts_have_an_interval_that_says_something():
    """64 and 75 tok/s: Student's interval over two starts would be 70 plus or minus 120."""
    starts = Starts.of_one_level(np.log([64.0, 75.0]), 0.03)
    known = StartModel((starts,), (), -1).value(np.ones(1))
    low, high = np.exp([known.quantile(0.025), known.quantile(0.975)])
    assert 50 < low < 64 < 75 < high < 95


def test_quantiles_and_shares_belong_together():
    known = difference(drawn(np.random.default_rng(5), 3, 0.02), drawn(np.random.default_rng(6), 3, 0.02))
    for share in (0.001, 0.025, 0.5, 0.975):
        assert known.below(known.quantile(share)) == pytest.approx(share, abs=1e-6)
    assert known.p == pytest.approx(2 * min(known.below(0), 1 - known.below(0)))
