"""What known lengths of answers explain is left out of intervals, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from servebench.analysis.statistics import are_usual, controlled, headline_intervals
from servebench.measure.points import AnswerLengths, PointSample

MEAN = 60.0
STEP_S, FIRST_S = 0.01, 0.2


def one_user(seed: int, seconds: float = 60.0) -> PointSample:
    """A user of an engine that is always equally fast: 0.2 s to the first token, and 10 ms for each other one."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(10, 111, 500).astype(np.float64)
    ends = np.cumsum(FIRST_S + STEP_S * (drawn - 1))
    sent = np.concatenate([[0.0], ends[:-1]])
    arrivals = np.concatenate(
        [start + FIRST_S + STEP_S * np.arange(count) for start, count in zip(sent, drawn, strict=True)]
    )
    inside = sent < seconds
    tokens, sent = drawn[inside], sent[inside]
    arrivals = arrivals[arrivals < seconds]
    e2e = 1e3 * (ends[inside] - sent) + rng.normal(0, 2, tokens.size)
    return PointSample(
        ttft_ms=np.full(tokens.size, 1e3 * FIRST_S),
        ttfo_ms=np.full(tokens.size, 1e3 * FIRST_S),
        tpot_ms=np.full(tokens.size, 1e3 * STEP_S),
        e2e_ms=e2e,
        itl_ms=np.empty(0),
        itl_counts=np.empty(0, dtype=np.int64),
        arrival_s=arrivals,
        arrival_tokens=np.ones(arrivals.size),
        window_s=seconds,
        lengths=AnswerLengths(tokens=tokens, mean=MEAN),
    )


TRUE_MS = 1e3 * (FIRST_S + STEP_S * (MEAN - 1))


def lengths_of(sample: PointSample) -> AnswerLengths:
    assert sample.lengths is not None
    return sample.lengths


def test_a_mean_is_that_of_the_long_run():
    """What is left scatters by a fraction of what the window's means do."""
    samples = [one_user(seed) for seed in range(40)]
    shown = [sample.e2e_ms.mean() for sample in samples]
    found = [controlled(sample.e2e_ms, lengths_of(sample)).mean() for sample in samples]
    assert np.mean(found) == pytest.approx(TRUE_MS, rel=0.002)
    assert np.std(found) < 0.1 * np.std(shown)


def test_the_interval_is_narrower_and_holds_the_shown_value_and_the_long_run():
    widths, held = [], 0
    for seed in range(20):
        sample = one_user(seed)
        known, without = (headline_intervals(one)["e2e_ms_mean"] for one in (sample, replace(sample, lengths=None)))
        assert known is not None
        assert without is not None
        assert known[0] - 1e-9 <= sample.e2e_ms.mean() <= known[1] + 1e-9
        held += known[0] <= TRUE_MS <= known[1]
        widths.append((known[1] - known[0]) / (without[1] - without[0]))
    assert held >= 18
    assert np.mean(widths) < 0.75


def test_other_columns_are_as_they_were():
    sample = one_user(1)
    found, without = headline_intervals(sample), headline_intervals(replace(sample, lengths=None))
    changed = {name for name in found if found[name] != without[name]}
    assert changed == {"e2e_ms_mean"}


@pytest.mark.parametrize(("mean", "usual"), [(MEAN, True), (2 * MEAN, False), (MEAN / 2, False)])
def test_lengths_of_another_distribution_change_nothing(mean, usual):
    """Their mean is not that which is known."""
    sample = one_user(1)
    other = replace(sample, lengths=replace(lengths_of(sample), mean=mean))
    assert are_usual(lengths_of(other)) is usual
    assert (headline_intervals(other) == headline_intervals(replace(sample, lengths=None))) is not usual


def test_too_few_answers_explain_nothing():
    few = AnswerLengths(tokens=np.array([50.0, 70.0]), mean=MEAN)
    assert not are_usual(few)
    assert not are_usual(AnswerLengths(tokens=np.empty(0), mean=MEAN))
