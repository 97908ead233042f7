"""Whether a series changed for good: how often that is wrong, what is found, and its course."""

from __future__ import annotations

import numpy as np
import pytest

from servebench.analysis.drift import CHANGE_MIN, CHANGED_P_MAX, Drift, find_drift, warmup_share

SECONDS, COUNT = 40.0, 500
AT = (np.arange(COUNT) + 0.5) / COUNT


def speeds(rng: np.random.Generator, wander_sd: float, wander_s: float, noise: float = 0.03) -> np.ndarray:
    """Latencies of an engine whose speed wanders."""
    kept = np.exp(-SECONDS / COUNT / wander_s)
    steps = rng.normal(size=COUNT) * np.sqrt(1 - kept**2)
    wander = [rng.normal()]
    for step in steps[1:]:
        wander.append(kept * wander[-1] + step)
    return 10.0 * np.exp(wander_sd * np.array(wander) + noise * rng.normal(size=COUNT))


def shown(values: np.ndarray) -> bool:
    drift = find_drift(values, SECONDS, 50.0)
    return drift is not None and drift.p <= CHANGED_P_MAX and abs(drift.change) >= CHANGE_MIN


@pytest.mark.slow
@pytest.mark.parametrize(("sd", "seconds"), [(0.0, 1.0), (0.02, 5.0), (0.02, 30.0), (0.05, 10.0)])
def test_a_wandering_engine_is_no_drift(sd: float, seconds: float) -> None:
    """In at most 2% of series; of 200 that is at most 8 in 98.7% of seeds."""
    rng = np.random.default_rng(4)
    assert sum(shown(speeds(rng, sd, seconds)) for _ in range(200)) <= 8


@pytest.mark.parametrize(
    ("course", "change", "within"),
    [
        ("steadily", 1 + 0.3 * AT, (0.0, 1.0)),
        ("early", 1.2 - 0.2 * np.minimum(AT * 3, 1), (0.0, 0.33)),
        ("late", 1 + 0.3 * np.maximum(AT * 3 - 2, 0), (0.67, 1.0)),
        ("at once", 1 + 0.15 * (AT > 0.5), (0.5, 0.5)),
    ],
)
def test_a_change_and_its_course_are_found(course: str, change: np.ndarray, within: tuple[float, float]) -> None:
    """With the values before and after it."""
    drift = find_drift(speeds(np.random.default_rng(2), 0.01, 5.0, 0.01) * change, SECONDS, 50.0)
    assert drift is not None
    assert (drift.course, (drift.begin, drift.end)) == (course, within)
    assert drift.p < CHANGED_P_MAX
    assert drift.change == pytest.approx(change[-1] / change[0] - 1, abs=0.04)


@pytest.mark.parametrize("values", [np.empty(0), np.ones(20), np.zeros(500), np.full(500, 3.0)])
def test_too_little_or_nothing_that_changes(values: np.ndarray) -> None:
    """Too few values, nothing to be relative to, or all equal."""
    assert find_drift(values, SECONDS, 50.0) is None


def drift(course: str, end: float, change: float) -> Drift:
    """A certain change that ends after this share of the window."""
    return Drift(course=course, begin=0.0, end=end, before=1.0, after=1 + change, p=0.001)


@pytest.mark.parametrize(
    ("drifts", "share"),
    [
        ({}, 0.0),
        ({"throughput": drift("early", 0.33, 0.2)}, 0.33),
        ({"itl": drift("at once", 0.3, -0.2), "throughput": drift("early", 0.2, 0.2)}, 0.3),
        ({"throughput": drift("at once", 0.4, -0.3)}, 0.0),
        ({"ttft": drift("early", 0.33, 0.5)}, 0.0),
        ({"throughput": drift("early", 0.2, 0.2), "ttft": drift("at once", 0.4, 0.3)}, 0.2),
        ({"throughput": drift("early", 0.33, 0.2), "itl": drift("late", 1.0, 0.2)}, 0.0),
        ({"throughput": drift("at once", 0.6, 0.2)}, 0.0),
    ],
)
def test_an_engine_that_became_slower_has_not_been_warming_up(drifts: dict[str, Drift], share: float) -> None:
    """Only what an engine gained early is cut; what it lost stays in the point, with its warning."""
    assert warmup_share(drifts) == share
