from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from servebench.analysis.estimate.level import interval_over_starts
from servebench.analysis.repeats import RepeatedMetric, RepeatSummary, summarize_repeats
from servebench.analysis.start_model import Starts
from servebench.contracts.point_row import PointRow


def points(table: dict[str, list[float]], **more: Any) -> list[PointRow]:
    return [
        PointRow(
            concurrency=int(level),
            repeat=at,
            window_start_ns=at,
            output_throughput_tok_s=value,
            **{"verdict": "valid", **more},
        )
        for level, values in table.items()
        for at, value in enumerate(values)
    ]


def metrics_of(found: RepeatSummary) -> list[RepeatedMetric]:
    return [metric for own in found.values() for metric in own.values()]


def test_a_level_has_the_interval_of_its_repeats() -> None:
    """Student's, on logarithms: with two repeats there is none."""
    found = summarize_repeats(points({"4": [100.0, 110.0, 121.0], "8": [200.0, 202.0]}))
    four, eight = (one.estimate for one in metrics_of(found))
    assert four.value == pytest.approx(110.0)
    # log sd = log 1.1, t(2) = 4.3027
    assert (four.low, four.high) == pytest.approx(
        (110 * 1.1 ** (-4.3027 / 3**0.5), 110 * 1.1 ** (4.3027 / 3**0.5)), 1e-4
    )
    assert metrics_of(found)[0].spread == pytest.approx(0.1)
    assert (eight.points, eight.interval) == (2, None)


def test_intervals_summarize_repeats_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        (metric,) = metrics_of(summarize_repeats(points({"8": list(500 * rng.lognormal(0, 0.03, 4))})))
        low, high = metric.estimate.interval or (0.0, 0.0)
        hits += low <= 500 <= high
    assert 0.92 <= hits / 400 <= 0.98


def test_single_and_void_points_have_no_repeats() -> None:
    for rows in (
        points({"4": [100.0], "8": [200.0]}),
        points({"4": [100.0, 90.0, 80.0]}, verdict="void"),
        points({"4": [100.0, 0.0]}),
        [],
    ):
        assert summarize_repeats(rows) == {}


def test_repeats_of_several_starts_are_no_starts() -> None:
    """Three starts with two repeats each: the mean and its interval are of three values, however many repeats there are."""
    values = [100.0, 101.0, 110.0, 111.0, 121.0, 122.0]
    rows = [replace(row, start_id=str(row.repeat // 2)) for row in points({"4": values})]
    (found,) = (one.estimate for one in metrics_of(summarize_repeats(rows)))
    starts = np.log(values).reshape(3, 2).mean(axis=1)
    low, high = interval_over_starts(Starts.of_one_level(starts, 0.0), "output_throughput_tok_s")
    assert (found.points, found.value) == (6, pytest.approx(float(np.exp(starts.mean()))))
    assert (found.low, found.high) == pytest.approx((np.exp(low), np.exp(high)), 1e-4)


def test_in_an_open_loop_users_wait_from_the_schedule_on() -> None:
    """The table of points has TTFT from sent."""
    rows = [
        PointRow(
            rate=5.0, repeat=at, window_start_ns=at, verdict="valid", ttft_ms_p50=40.0, ttft_from_schedule_ms_p50=48.0
        )
        for at in range(3)
    ]
    (found,) = (one.estimate for one in metrics_of(summarize_repeats(rows)))
    assert (found.column, found.value) == ("ttft_from_schedule_ms_p50", pytest.approx(48.0))
