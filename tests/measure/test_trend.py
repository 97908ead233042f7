"""Whether something drifted: against a published example, and how often the test is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from servebench.measure.trend import mann_kendall, rate_trend, request_trend


def test_statistic_by_hand() -> None:
    """Ten values in rising order: S = 45, variance 125, z = 44 / sqrt(125), Sen's slope 1."""
    trend = mann_kendall(np.arange(1.0, 11.0))
    assert trend is not None
    assert trend.p == pytest.approx(8.3e-5, rel=0.01)
    assert trend.change == pytest.approx(9 / 5.5)


def test_ties_count_as_no_order() -> None:
    """A constant series has no trend and no division by zero."""
    trend = mann_kendall(np.full(12, 3.0))
    assert trend is not None
    assert (trend.change, trend.p) == (0.0, 1.0)


@pytest.mark.parametrize("values", [np.empty(0), np.arange(9.0), np.zeros(20)])
def test_too_little_is_no_trend(values: np.ndarray) -> None:
    """Under ten values, or nothing to be relative to."""
    assert mann_kendall(values) is None


def test_one_outlier_is_no_trend() -> None:
    """A pause at the start, as when all streams begin together."""
    values = np.full(20, 100.0) + np.sin(np.arange(20.0))
    values[0] = 900.0
    trend = mann_kendall(values)
    assert trend is not None
    assert abs(trend.change) < 0.02


@pytest.mark.parametrize(("growth", "low", "high"), [(0.0, 0, 4), (0.5, 95, 100)])
def test_how_often_a_rate_is_called_drifting(growth: float, low: int, high: int) -> None:
    """Of 100 Poisson streams, hardly one that is steady at p < 0.01, and nearly all that grow by half."""
    rng = np.random.default_rng(3)
    called = 0
    for _ in range(100):
        arrivals = rng.random(4000)
        # thinned so that the density grows linearly
        kept = arrivals[rng.random(4000) * (1 + growth) < 1 + growth * arrivals] * 10.0
        trend = rate_trend(kept, np.ones(kept.size), 10.0)
        assert trend is not None
        called += trend.p < 0.01 and abs(trend.change) > 0.1
    assert low <= called <= high


def test_requests_are_ordered_by_time() -> None:
    """Whatever order they are stored in; a queue that grows is seen."""
    rng = np.random.default_rng(1)
    at = rng.permutation(100)
    trend = request_trend(at, 50.0 + at + rng.normal(0, 5, 100))
    assert trend is not None
    assert trend.p < 1e-4
    assert trend.change == pytest.approx(0.95, abs=0.1)
    assert request_trend(at[:29], np.ones(29)) is None
