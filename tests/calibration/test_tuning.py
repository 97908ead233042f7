"""The race on simulated candidates: a small part of the table in docs/tune.md."""

from __future__ import annotations

import random

import pytest

from calibration.tuning import (
    ALL_EQUAL,
    EQUAL,
    HARDER,
    LANDSCAPES,
    MARGIN,
    SimulatedTune,
    cells,
    contributions,
    equal_trial,
    grid,
    race,
    successive_halving,
    tune_page,
)


@pytest.mark.parametrize("landscape", LANDSCAPES, ids=lambda one: one.name)
def test_the_race_finds_what_is_good_in_less_than_half_of_the_time_of_a_grid(landscape):
    found = [(SimulatedTune(landscape, seed), seed) for seed in range(8)]
    chosen = [race(study) for study, _ in found]
    assert sum(one.regret > MARGIN for one in chosen) <= 1
    assert all(one.seconds <= 0.5 * study.grid_s for one, (study, _) in zip(chosen, found, strict=True))


def test_a_study_is_the_same_for_all_methods_and_each_spends_what_it_says():
    for method in (grid, lambda study: successive_halving(study, 4000.0)):
        study = SimulatedTune(LANDSCAPES[0], 3)
        chosen = method(study)
        assert study.means == SimulatedTune(LANDSCAPES[0], 3).means
        assert chosen.seconds == study.spent_s > 0
        assert chosen.regret < MARGIN


def test_landscapes_have_an_engine_that_starts_as_stock():
    for landscape in LANDSCAPES:
        for seed in range(20):
            means = landscape.means(random.Random(seed))
            assert means[0] is not None
            assert len(means) == 24


def test_the_table_has_a_line_for_each_landscape_and_method():
    lines = tune_page(2, 0, lambda _: None, {"servebench tune": lambda study, _: race(study)}).splitlines()
    assert len(lines) == 2 + len(LANDSCAPES) + len(HARDER)


@pytest.mark.parametrize("landscape", [LANDSCAPES[0], HARDER[2]], ids=lambda one: one.name)
def test_what_a_setting_contributes_is_within_its_interval(landscape):
    held = [one for seed in range(12) for one in contributions(SimulatedTune(landscape, seed))]
    assert len(held) >= 12
    assert sum(held) / len(held) >= 0.85


def test_of_equal_candidates_hardly_any_is_called_better():
    equal = [cell for cell in cells() if cell.promises == (EQUAL,)]
    assert [cell.name for cell in equal] == [one.name for one in ALL_EQUAL]
    # a seed draws the same deviations for all
    called = [cell.trial(4 * index + seed, None)[EQUAL, ""] for index, cell in enumerate(equal) for seed in range(4)]
    assert sum(called) <= 2


def test_a_better_candidate_is_called_better():
    """The promise above would be kept by a race that never says so."""
    assert sum(equal_trial(seed, None, landscape=LANDSCAPES[0])[EQUAL, ""] for seed in range(4)) >= 3
