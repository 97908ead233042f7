"""Starts that are slow for as long as they live are found among equal ones."""

import math
import random
from dataclasses import replace

import pytest

from servebench.analysis.answer.model import CaveatKind
from servebench.analysis.conclude import conclude
from servebench.analysis.slow_starts import OwnSlowStarts, find_slow_starts, own_slow_starts
from servebench.contracts.level import Level
from servebench.report.screens.answer import slow_starts_blocks
from servebench.report.wording.answer import slow_starts_text
from servebench.store.studies import load_study
from support.studies import SimulatedEngine, SimulatedLoad, write_simulated_study

LEVELS = (Level(1), Level(4))


def starts_with(effects, *, noise=0.01, seed=0):
    """Starts of two levels with these effects (logarithms), by their number."""
    rng = random.Random(seed)
    return {
        str(number): {at: 60 * at.load * math.exp(effect + rng.gauss(0, noise)) for at in LEVELS}
        for number, effect in enumerate(effects)
    }


def equal(count, *, deviation=0.02, seed=1):
    rng = random.Random(seed)
    return [rng.gauss(0, deviation) for _ in range(count)]


def test_a_slow_start_is_found_with_its_distance_from_the_others():
    count, slower = find_slow_starts(starts_with([*equal(11), math.log(0.77)]))
    assert count == 12
    assert slower == {"11": pytest.approx(0.23, abs=0.03)}


def test_several_slow_starts_hide_none_of_each_other():
    _, slower = find_slow_starts(starts_with([*equal(25), -0.28, -0.2, -0.24, -0.19, -0.23]))
    assert list(slower) == ["25", "27", "29", "26", "28"]


@pytest.mark.parametrize("deviation", [0.005, 0.03])
def test_equal_starts_are_seldom_called_slow(deviation):
    studies = [starts_with(equal(8, deviation=deviation, seed=seed), seed=seed) for seed in range(100)]
    assert sum(bool(find_slow_starts(one)[1]) for one in studies) <= 3


def test_a_start_is_slow_only_if_it_is_slow_at_every_level():
    starts = starts_with([*equal(9), math.log(0.75)])
    starts["9"][LEVELS[1]] /= 0.75
    assert not find_slow_starts(starts)[1]


def test_a_fast_start_is_not_slow_and_makes_no_other_slow():
    assert not find_slow_starts(starts_with([*equal(9), 0.3]))[1]


def test_few_starts_say_nothing():
    """Unless one is so slow that no spread reaches it."""
    assert find_slow_starts(starts_with([0, -0.5]))[1] == {}
    assert find_slow_starts(starts_with([0, 0, 0, -0.3]))[1] == {}
    assert list(find_slow_starts(starts_with([0, 0.01, -0.5]))[1]) == ["2"]
    assert find_slow_starts({})[0] == 0


def test_starts_that_are_the_same_to_the_last_digit():
    assert not find_slow_starts(starts_with([0] * 6, noise=0))[1]
    assert list(find_slow_starts(starts_with([0] * 5 + [-0.2], noise=0))[1]) == ["5"]


def test_a_level_that_few_starts_have_does_not_count():
    starts = starts_with(equal(6))
    starts["0"][Level(16)] = 1.0
    assert not find_slow_starts(starts)[1]
    assert find_slow_starts(starts)[0] == 6


def test_noisy_levels_weigh_less():
    rng = random.Random(3)
    starts = starts_with([*equal(19), math.log(0.8)])
    for own in starts.values():
        own[Level(16)] = 900 * own[Level(1)] / 60 * math.exp(rng.gauss(0, 0.15))
    starts["19"][Level(16)] = 500.0
    assert list(find_slow_starts(starts)[1]) == ["19"]


def stored_starts(tmp_path, effects):
    """A study of one start each, with these effects on the engine's speed."""
    engine = SimulatedEngine()
    runs = [
        (replace(engine, slow=math.exp(-effect)), SimulatedLoad(levels=(2, 8), requests=60, seed=seed))
        for seed, effect in enumerate(effects)
    ]
    return load_study(write_simulated_study(tmp_path, *runs))


def test_a_slow_start_is_named_where_its_run_is_shown(tmp_path):
    study = stored_starts(tmp_path, [0, 0.01, 0, -0.01, 0.01, -0.3])
    usual, slow = (own_slow_starts(run, study.runs) for run in (study.runs[0], study.runs[-1]))
    assert usual == replace(slow, own_slower=())
    assert (slow.count, slow.own, len(slow.slower)) == (6, 1, 1)
    assert slow.own_slower[0] == pytest.approx(0.26, abs=0.06)
    assert slow_starts_text(usual).endswith("slower at all levels; this one is not")
    assert slow_starts_text(slow).startswith("1 of 6 starts of this engine is ")
    assert slow_starts_text(slow).endswith("; this one is")
    answer = conclude([study.runs[-1]], earlier=study.runs).answer
    assert [one.slow_starts for one in answer.caveats if one.kind is CaveatKind.SLOW_STARTS] == [slow]
    assert slow_starts_blocks(answer)


def test_usual_starts_and_other_engines_say_nothing(tmp_path):
    study = stored_starts(tmp_path, [0, 0.01, 0, -0.01, 0.01])
    other = stored_starts(tmp_path / "other", [-0.3]).runs[0]
    other = replace(other, manifest={**other.manifest, "engine_version": "2.0"})
    assert own_slow_starts(study.runs[0], study.runs) is None
    assert own_slow_starts(other, study.runs) is None


def test_several_starts_of_a_run_are_counted():
    slow = OwnSlowStarts(count=12, slower=(0.24, 0.2), own=5, own_slower=(0.2,))
    assert slow_starts_text(slow) == (
        "2 of 12 starts of this engine are 20% to 24% slower at all levels; 1 of the 5 starts of this run is"
    )
