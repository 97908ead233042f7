"""What reports show of telemetry and quality tables."""

import pandas as pd
import pytest

from servebench.report.html import build
from servebench.store import RunFolder, add_quality
from servebench.store import studies as read
from support.records import quality_records
from support.studies import SimulatedEngine, SimulatedLoad

S = 1_000_000_000


def readings(name, values, source="a", label=""):
    return [
        {"t_ns": i * S, "source": source, "name": name, "raw_name": name, "labels": label, "value": float(v)}
        for i, v in enumerate(values)
    ]


def test_gauges_are_levels_counters_are_rates_and_series_of_one_name_are_joined():
    frame = pd.DataFrame(
        readings("gpu_power_w", [100, 200, 300], label="0")
        + readings("gpu_power_w", [10, 20, 30], label="1")
        + readings("generation_tokens", [0, 50, 150])
        + readings("gpu_utilization", [0.2, 0.4, 0.6], label="0")
        + readings("gpu_utilization", [0.9, 0.9, 0.9], label="1")
        + readings("nobody_knows", [1, 2, 3])
    )
    lines = dict(build.panels_of(frame, 0, 2 * S))
    assert [value for _, value in lines["GPU power, W"]] == [110, 220, 330]
    assert [value for _, value in lines["tokens generated, by the engine, per s"]] == [50, 100]
    assert [value for _, value in lines["GPU busy, %"]] == pytest.approx([90, 90, 90])
    assert len(lines) == 3


@pytest.mark.parametrize("frame", [pd.DataFrame(), pd.DataFrame({"other": [1]})])
def test_no_telemetry_is_no_panel(frame):
    assert build.panels_of(frame, 0, S) == []


def test_a_counter_that_was_set_back_tells_nothing_there():
    frame = pd.DataFrame(readings("generation_tokens", [100, 200, 0, 100]))
    lines = dict(build.panels_of(frame, 0, 3 * S))
    assert [value for _, value in lines["tokens generated, by the engine, per s"]] == [100, 100]


def test_quality_is_the_share_right_with_wilsons_interval(make_study):
    path = make_study((SimulatedEngine(), SimulatedLoad(requests=10))) / "00_alpha_unique"
    add_quality(
        RunFolder(path), quality_records("gsm8k", [True, True, False, None]) + quality_records("mmlu", [True, True])
    )
    found = build.quality_rows(read.load_run(path), "alpha")
    assert [(row.dataset, row.count, row.unanswered) for row in found] == [("gsm8k", 3, 1), ("mmlu", 2, 0)]
    assert found[0].share == pytest.approx(2 / 3)
    assert found[0].low < 2 / 3 < found[0].high
    assert build.quality_rows(read.load_run(path.parent), "none") == []
