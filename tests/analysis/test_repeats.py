from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from servebench.analysis.estimate.level import interval_over_starts
from servebench.analysis.repeats import (
    RepeatedMetric,
    RepeatSummary,
    grubbs,
    kendall_null,
    seasonal_kendall,
    summarize_repeats,
)
from servebench.analysis.start_model import Starts
from servebench.contracts.point_row import PointRow
from servebench.report.wording.repeats import note_text


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
    return [metric for own in found.levels.values() for metric in own.values()]


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
    assert found.notes == ()


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
        assert summarize_repeats(rows) == RepeatSummary(levels={}, notes=())


@pytest.mark.parametrize(
    ("values", "index", "p"),
    # the critical values of Grubbs' table: G = 1.715 for n = 5 and 2.290 for n = 10 at the two-sided 5 %
    [([1.0, 1.0, 1.0], 0, 1.0), ([0.0, 1.0], 0, 1.0)],
)
def test_nothing_lies_apart_where_nothing_varies(values: list[float], index: int, p: float) -> None:
    assert grubbs(np.array(values)) == (index, p)


@pytest.mark.parametrize(("n", "critical"), [(4, 1.481), (5, 1.715), (10, 2.290), (20, 2.709)])
def test_grubbs_p_is_five_percent_at_the_tables_critical_value(n: int, critical: float) -> None:
    """One value moved until it lies exactly that many standard deviations away."""
    others = np.linspace(-1, 1, n - 1)
    low, high = 1.0, 1000.0
    for _ in range(100):
        middle = (low + high) / 2
        values = np.append(others, middle)
        if (middle - values.mean()) / values.std(ddof=1) < critical:
            low = middle
        else:
            high = middle
    index, p = grubbs(np.append(others, low))
    assert index == n - 1
    assert p == pytest.approx(0.05, abs=0.001)


def test_an_outlier_is_reported_and_a_small_one_is_not() -> None:
    steady = [100.0, 100.5, 99.8, 100.2, 99.9]
    (note,) = summarize_repeats(points({"4": [*steady, 80.0]})).notes
    assert (str(note.level), note.repeat, note.change) == ("4", 5, pytest.approx(-0.2))
    assert "repeat 5 at 4" in note_text(note)
    assert "output throughput is -20.0%" in note_text(note)
    assert summarize_repeats(points({"4": [*(1 + (v - 100) / 1e4 for v in steady), 0.99]})).notes == ()


def test_drift_over_levels_is_reported() -> None:
    """Three repeats of one level cannot show it; of four levels they can."""
    falling = {str(level): [level * 100.0, level * 97.0, level * 94.0] for level in (1, 2, 4, 8)}
    (note,) = summarize_repeats(points(falling)).notes
    assert "output throughput fell by 6.0%" in note_text(note)
    assert summarize_repeats(points({"1": falling["1"]})).notes == ()


def test_the_order_is_that_of_time_and_not_of_the_repeats_number() -> None:
    made = points({str(level): [100.0, 97.0, 94.0, 91.0] for level in (1, 2)})
    again = [replace(row, window_start_ns=10 - (row.window_start_ns or 0)) for row in made]
    assert summarize_repeats(made).notes[0].change < 0 < summarize_repeats(again).notes[0].change


def test_false_alarms_are_as_rare_as_they_say() -> None:
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(300):
        table = {str(level): list(100 * level * rng.lognormal(0, 0.05, 4)) for level in (1, 4, 16)}
        alarms += bool(summarize_repeats(points(table)).notes)
    # two kinds of tests at 5 %
    assert alarms / 300 <= 0.13


def test_kendall_is_exact() -> None:
    """Of the six orders of three values one has no falling pair, and one has three."""
    assert kendall_null(3) == pytest.approx(np.array([1, 2, 2, 1]) / 6)
    assert seasonal_kendall([np.array([1.0, 2.0, 3.0])]) == pytest.approx(2 / 6)
    assert seasonal_kendall([np.arange(5.0)]) == pytest.approx(2 / 120)
    assert seasonal_kendall([np.arange(3.0), np.arange(3.0)]) == pytest.approx(2 / 36)
    assert seasonal_kendall([np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])]) == 1.0
    assert seasonal_kendall([np.zeros(6)]) == 1.0


def test_levels_of_one_start_do_not_count_as_many_signs_of_drift() -> None:
    """Four starts that happen to fall: each level repeats the same four speeds, which is one series and not four."""
    speeds = [100.0, 97.0, 94.0, 91.0]
    table = {level: [speed * factor for speed in speeds] for level, factor in (("1", 1), ("2", 2), ("4", 4), ("8", 8))}
    rows = points(table)
    assert any(note.change < 0 for note in summarize_repeats(rows).notes)
    assert not summarize_repeats([replace(row, start_id=f"s{row.repeat}") for row in rows]).notes


def test_an_outlier_counts_for_how_many_tests_it_was_looked_for() -> None:
    """The same six values are an outlier where they are the only ones, and chance among many; the p-value says for how many."""
    odd = [100.0, 101.0, 99.0, 100.5, 99.5, 92.0]
    _, alone = grubbs(np.log(odd))
    (note,) = summarize_repeats(points({"1": odd})).notes
    assert f"p = {alone:.2g})" in note_text(note)
    table = {str(level): [100.0, 101.0, 99.0, 100.5, 99.5, 100.2] for level in (2, 4, 8, 16)}
    noted = summarize_repeats(points({"1": odd, **table})).notes
    assert [(one.p, one.tests) for one in noted] == [(pytest.approx(5 * alone), 5)] * (5 * alone < 0.05)


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
