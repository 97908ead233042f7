"""A curve that keeps every rule, and one that breaks each."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from servebench.analysis.mlperf.rules import RULES, CurvePoint, judge, minimum_s, region_of, regions_of
from servebench.analysis.mlperf.steady import metrics_of, steady_state
from servebench.contracts.level import Level

DATA_SET = 25
LEVELS = (1, 4, 16, 32, 64, 128, 256)


def point(users, *, passes=10, seconds=1500.0, level=1.0, step=1.0, **changes):
    """Return a point of `passes` passes over the data set, whose TPOT steps by `step` after eighteen of them."""
    count = round(passes * DATA_SET)
    issued_s = seconds / count * np.arange(count)
    levels = np.where(np.arange(count) < 18 * DATA_SET, level, level * step)
    tpot = 10.0 * levels * np.resize(np.linspace(0.98, 1.02, DATA_SET), count)
    times = {"issued_s": issued_s, "ended_s": issued_s + 2.0, "tpot_ms": tpot}
    issued = pd.DataFrame({**times, "ttft_ms": 80.0, "e2e_ms": 2000.0, "tokens": 100.0})
    made = CurvePoint(
        level=Level(users),
        fixed=True,
        issued=count,
        completed=count,
        run_s=seconds + 2.0,
        total=metrics_of(issued, seconds + 2.0),
        steady=steady_state(issued, DATA_SET, minimum_s(users, agentic=False)),
    )
    return replace(made, **changes)


def curve(levels=LEVELS):
    return [point(users) for users in levels]


def with_last(last):
    return [*curve()[:-1], last]


def broken(points, data_set=DATA_SET):
    return {one.rule for one in judge(points, data_set) if not one.kept}


NOTHING = replace(point(256).total, tpot_p90_ms=None, tps_per_user=None)

CASES = {
    "region-computation": curve((1, 2, 4, 8, 16, 24, 32)),
    "point-count": curve((1, 4, 16, 64, 128, 256)),
    "point-cap": curve((1, 4, 16, *range(32, 62), 256)),
    "ultra-low-concurrency-coverage": curve((33, 40, 64, 96, 128, 192, 256)),
    "low-concurrency-coverage": curve((1, 16, 24, 32, 64, 128, 256)),
    "med-concurrency-coverage": curve((1, 4, 5, 48, 64, 128, 256)),
    "point-duration": with_last(replace(point(256), steady=replace(point(256).steady, span_s=1199.0))),
    "min-query-count": with_last(point(256, completed=DATA_SET - 1)),
    "sample-multiple": with_last(point(256, passes=9.6)),
    "metric-consistency-tpot-p90": with_last(replace(point(256), steady=replace(point(256).steady, metrics=NOTHING))),
    "steady-state-basis": with_last(replace(point(256), steady=replace(point(256).steady, verdict="drifting_up"))),
}


def test_a_curve_that_keeps_every_rule():
    assert broken(curve()) == set()
    assert {one.rule for one in judge(curve(), DATA_SET)} == set(RULES)


@pytest.mark.parametrize("name", CASES)
def test_each_rule_that_is_broken_is_named(name):
    assert broken(CASES[name]) == {name}


def test_the_high_region_may_be_empty_by_rounding():
    """Of 32 to 34 users the regions end at 33, 34 and 34."""
    assert regions_of((32, 34))["high"] == (35, 34)
    assert "high-concurrency-coverage" in broken(curve((32, 33, 34)))


def test_a_rate_has_neither_the_load_pattern_nor_a_steady_state():
    rate = replace(point(256), level=Level(rate=4.0), fixed=False, steady=None)
    assert broken([*curve(), rate]) == {"load-pattern", "steady-state-basis"}


def test_a_short_window_breaks_the_duration_and_falls_back_to_the_run():
    short = point(256, seconds=1300.0)
    assert short.steady.status == "insufficient_duration"
    assert short.official == short.total
    names = broken(with_last(short))
    assert names == {"point-duration", "steady-state-basis"}


def test_a_step_is_accepted_and_only_its_first_level_counts():
    stepped = point(16, passes=24, seconds=3600.0, step=1.5)
    assert stepped.steady.verdict == "anomaly"
    assert stepped.official.tpot_p90_ms < 11 < stepped.total.tpot_p90_ms
    points = [stepped if one.level == Level(16) else one for one in curve()]
    assert broken(points) == set()


def test_without_the_size_of_the_data_set_its_rules_are_not_judged():
    assert {one.rule for one in judge(curve())} == set(RULES) - {"min-query-count", "sample-multiple"}


@pytest.mark.parametrize(
    ("lowest", "highest", "low", "medium"),
    [(2, 64, 6, 18), (8, 256, 14, 47), (16, 1024, 26, 117), (32, 8192, 52, 437), (32, 16384, 57, 676), (1, 256, 7, 41)],
)
def test_regions_are_those_of_the_table_in_the_rules(lowest, highest, low, medium):
    assert [high for _, high in regions_of((lowest, highest)).values()] == [lowest, low, medium, highest]


def test_levels_have_the_region_that_ends_at_them_or_later():
    regions = regions_of(LEVELS)
    expected = ["low_latency", "low", "med", "med", "high", "high", "high"]
    assert [region_of(one, regions) for one in curve()] == expected
    assert region_of(replace(point(4), fixed=False), regions) is None
    assert region_of(point(4), {}) is None
    assert regions_of(()) == {}


@pytest.mark.parametrize(
    ("users", "agentic", "seconds"), [(32, False, 600), (33, False, 1200), (32, True, 600), (64, True, 2400)]
)
def test_the_least_duration_is_shorter_for_few_users(users, agentic, seconds):
    assert minimum_s(users, agentic=agentic) == seconds
