"""How far streams send in step."""

import numpy as np
import pytest

from servebench.measure.in_flight import lock_step

ANSWER = 1_000_000_000


def rounds(offsets, count=10):
    return np.concatenate([np.asarray(offsets) + ANSWER * number for number in range(count)]).astype(np.int64)


def test_all_at_once_is_one():
    assert lock_step(rounds(np.zeros(16)), ANSWER, 16) == pytest.approx(1.0)


def test_random_starts_are_near_zero():
    rng = np.random.default_rng(0)
    found = [lock_step(rounds(rng.uniform(0, ANSWER, 16)), ANSWER, 16) for _ in range(50)]
    assert np.mean(found) < 0.2
    assert np.mean(np.array(found) > 0.5) <= 0.02


def test_answers_of_unequal_length_are_not_in_step():
    """Requests that follow one another at random, as in a Poisson process."""
    sent = np.cumsum(np.random.default_rng(1).exponential(ANSWER / 16, 400)).astype(np.int64)
    assert lock_step(sent, ANSWER, 16) < 0.2


def test_a_burst_over_a_quarter_of_an_answer_is_in_step():
    """The prompts of a wave are computed a few at a time, so that its answers end one after another."""
    assert 0.8 < lock_step(rounds(np.linspace(0, ANSWER / 4, 16)), ANSWER, 16) < 0.95


@pytest.mark.parametrize(("sent", "streams"), [(np.arange(20), 1), (np.arange(10), 8), (np.arange(0), 4)])
def test_too_little_to_say(sent, streams):
    assert lock_step(sent, ANSWER, streams) is None
