"""Intervals of means with a learned prior: how often they hold the truth of a series whose wander is known, and how wide."""

from __future__ import annotations

import numpy as np
import pytest

from servebench.analysis.serial import (
    FLAT,
    SeriesSpan,
    learned_prior,
    likely_wander,
    mean_interval,
    wander_likelihood,
)

SECONDS = 20.0


def wandering(rng, seconds, sd, relaxation_s, noise=0.05):
    """Rates of 20 slices a second around 1: an Ornstein-Uhlenbeck process and independent noise."""
    count, keep = int(seconds * 20), np.exp(-0.05 / relaxation_s)
    steps = rng.normal(0, (1 - keep**2) ** 0.5, count)
    steps[0] = rng.normal()
    speed = np.empty(count)
    state = 0.0
    for index, step in enumerate(steps):
        state = state * keep + step if index else step
        speed[index] = state
    return 1 + sd * speed + rng.normal(0, noise, count)


def span(seconds):
    return SeriesSpan(seconds=seconds, rounds=2 * seconds)


def counted(sd, relaxation_s, prior_of, count=150, before=1.0):
    """Return the share of windows whose interval holds 1, and the mean half-width. In the long window that the prior is of the
    wander is `before` times as large."""
    rng = np.random.default_rng(7)
    prior = prior_of(wandering(rng, 300.0, before * sd, relaxation_s))
    found = [mean_interval(wandering(rng, SECONDS, sd, relaxation_s), span(SECONDS), prior=prior) for _ in range(count)]
    held = np.mean([low <= 1 <= high for low, high in found])
    return held, np.mean([(high - low) / 2 for low, high in found])


def learned(series):
    likelihood = wander_likelihood(series, span(300.0))
    assert likelihood is not None
    return learned_prior(likelihood.tolist())


@pytest.mark.parametrize(("sd", "relaxation_s"), [(0.0, 1.0), (0.02, 5.0), (0.05, 10.0), (0.03, 60.0)])
def test_intervals_with_a_learned_prior_hold_the_truth(sd, relaxation_s):
    held, _ = counted(sd, relaxation_s, learned)
    assert held >= 0.92


@pytest.mark.parametrize("relaxation_s", [4.0, 8.0])
def test_they_hold_it_nearly_as_often_where_the_engine_wanders_more_than_in_the_long_window(relaxation_s):
    held, _ = counted(0.03, relaxation_s, learned, 300, before=0.67)
    assert held >= 0.9


def test_a_long_window_narrows_those_of_a_steady_engine_and_widens_those_of_one_that_wanders_slowly():
    for sd, relaxation_s, narrower in ((0.0, 1.0, True), (0.03, 60.0, False)):
        flat, known = (counted(sd, relaxation_s, of, 40)[1] for of in (lambda _: FLAT, learned))
        assert (known < 0.8 * flat) if narrower else (known > flat)


def test_what_is_likely_is_what_was_planted():
    rng = np.random.default_rng(3)
    steady, slow = (
        likely_wander(wander_likelihood(wandering(rng, 600.0, sd, relaxation_s), span(600.0)).tolist())
        for sd, relaxation_s in ((0.0, 1.0), (0.04, 10.0))
    )
    assert steady[0][0] == 0.0
    assert steady[0][1] < 0.02
    sizes, (short, long) = slow
    assert sizes[0] >= 0.02
    assert sizes[1] <= 0.08
    assert short <= 16
    assert long >= 8


@pytest.mark.parametrize(
    "likelihood", [None, [], [[1.0]], [[0.0] * 10] * 7, [[float("nan")] * 10] * 7, [[-1.0] * 10] * 7]
)
def test_what_says_nothing_leaves_the_flat_prior(likelihood):
    assert learned_prior(likelihood) is FLAT
