"""When a point is precise enough, and when it will not be."""

import numpy as np
import pytest

from servebench.analysis.serial import SeriesSpan
from servebench.analysis.statistics import is_out_of_reach, is_precise, look
from servebench.measure.points import PointSample

TARGETS = {"output_throughput_tok_s": 0.05, "ttft_ms_p50": 0.05}


def sample(requests: int, spread: float, window_s: float | None = None, seed: int = 0) -> PointSample:
    """Requests of one second, eight at a time, of 10 tokens each."""
    rng = np.random.default_rng(seed)
    seconds = requests / 8 if window_s is None else window_s
    ttft = rng.normal(100, 100 * spread, requests)
    empty = np.empty(0)
    return PointSample(
        ttft_ms=ttft, ttfo_ms=ttft, tpot_ms=empty, e2e_ms=np.full(requests, 1000.0), itl_ms=empty,
        itl_counts=np.zeros(requests, dtype=np.int64), arrival_s=np.arange(10 * requests) * (seconds / (10 * requests)),
        arrival_tokens=np.ones(10 * requests), window_s=seconds,
    )  # fmt: skip


def span(requests: int) -> SeriesSpan:
    return SeriesSpan(seconds=requests / 8, rounds=requests / 8)


def test_a_point_gets_precise_and_the_forecast_is_about_right():
    early, late = (
        {metric.name: metric for metric in look(sample(count, 0.3), TARGETS)}["ttft_ms_p50"] for count in (400, 6400)
    )
    assert not early.precise
    assert late.precise
    reached = 400 * early.longer
    assert 400 < reached < 6400


def test_it_must_be_long_enough_whatever_the_interval_is():
    metrics = look(sample(400, 0.0), TARGETS)
    assert all(metric.precise for metric in metrics)
    assert is_precise(metrics, span(400))
    assert not is_precise(metrics, SeriesSpan(seconds=4.9, rounds=50.0))


@pytest.mark.parametrize(("budget_s", "hopeless"), [(60.0, True), (100_000.0, False)])
def test_a_target_that_the_budget_does_not_reach_is_seen(budget_s, hopeless):
    metrics = look(sample(400, 2.0), {"ttft_ms_p50": 0.01})
    assert is_out_of_reach(metrics, span(400), budget_s) is hopeless


def test_a_percentile_without_an_interval_takes_its_values():
    (metric,) = look(sample(92, 0.3), {"ttft_ms_p99": 0.1})
    assert metric.width is None
    assert metric.longer == pytest.approx(736 / 92)
    assert not is_precise([metric], span(92))


def test_without_any_request_nothing_is_precise():
    empty = np.empty(0)
    none = PointSample(
        ttft_ms=empty, ttfo_ms=empty, tpot_ms=empty, e2e_ms=empty, itl_ms=empty, itl_counts=empty.astype(np.int64),
        arrival_s=empty, arrival_tokens=empty, window_s=0.0,
    )  # fmt: skip
    metrics = look(none, TARGETS)
    assert not is_precise(metrics, SeriesSpan(0.0, 0.0))
