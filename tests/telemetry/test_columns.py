"""What readings of a point mean."""

import pytest

from servebench.contracts.point_row import POINT_COLUMNS
from servebench.contracts.telemetry import Reading
from servebench.telemetry.columns import telemetry_columns
from servebench.util.units import NS_PER_S


def series(name, values, *, labels="", step_s=1.0):
    return [
        Reading(
            t_ns=int(i * step_s * NS_PER_S), source="x", name=name, raw_name=name, labels=labels, value=float(value)
        )
        for i, value in enumerate(values)
        if value is not None
    ]


def columns(*readings, start_s=1.0, end_s=3.0):
    rows = [reading for one in readings for reading in one]
    return telemetry_columns(rows, int(start_s * NS_PER_S), int(end_s * NS_PER_S))


def test_without_readings_every_column_is_null():
    found = telemetry_columns([], None, None)
    assert set(found) <= set(POINT_COLUMNS)
    assert set(columns()) <= set(POINT_COLUMNS)
    assert {name: value for name, value in found.items() if value is not None} == {"telemetry_samples": 0}


def test_hits_are_those_of_the_whole_phase():
    found = columns(
        series("prefix_cache_queries_tokens", [100, 200, 300, 400, 500]),
        series("prefix_cache_hits_tokens", [50, 50, 50, 150, 350]),
    )
    assert found["server_prefix_cache_hit_rate"] == pytest.approx(300 / 400)


def test_a_counter_that_shows_when_it_first_counts_began_at_nothing():
    """SGLang shows no cached tokens before there are some."""
    queries = series("prefix_cache_queries_tokens", [100, 200, 300, 400, 500])
    for hits, rate in (([None, None, 60, 150, 300], 300 / 400), ([None, None, None, None, 80], 80 / 400)):
        found = columns(queries, series("prefix_cache_hits_tokens", hits))
        assert found["server_prefix_cache_hit_rate"] == pytest.approx(rate)


@pytest.mark.parametrize(
    ("name", "values", "column", "expected"),
    [
        ("preemptions", [2, 2, 5], "server_preemptions", 3),
        ("generation_tokens", [10, 40, 70], "server_generation_tokens", 60),
        ("generation_tokens", [70, 40, 10], "server_generation_tokens", None),  # the engine was restarted
        ("generation_tokens", [70], "server_generation_tokens", None),
        ("requests_running", [0, 4, 6, 8, 0], "server_running_mean", 6),
        ("requests_waiting", [9, 1, 2, 1, 9], "server_waiting_max", 2),
        ("kv_cache_usage", [0.1, 0.5, 0.75, 0.5, 0.1], "server_kv_cache_usage_max", 0.75),
        ("engine_rss_bytes", [1e9, 2e9, 3e9, 2e9], "engine_memory_gb_max", 3),
        ("gpu_sm_clock_mhz", [100, 1800, 1900, 2000, 100], "gpu_sm_clock_mhz_mean", 1900),
    ],
)
def test_columns_of_one_series(name, values, column, expected):
    assert columns(series(name, values))[column] == expected


def test_queue_time_is_the_mean_of_those_that_waited():
    found = columns(series("queue_time_s_sum", [1, 2, 4]), series("queue_time_s_count", [10, 12, 16]))
    assert found["server_queue_time_ms_mean"] == pytest.approx(500)


def test_counters_are_interpolated_at_the_ends_of_the_window():
    # 2 CPU seconds a second between samples at 0, 2 and 4 s; the window begins and ends between them
    found = columns(series("engine_cpu_s", [0, 4, 8], step_s=2.0), start_s=1.5, end_s=3.5)
    assert found["engine_cpu_cores_mean"] == pytest.approx(2.0)


def test_a_window_that_samples_do_not_enclose_has_no_energy():
    assert columns(series("cpu_energy_j", [0, 10]), start_s=0.5, end_s=3.0)["energy_j"] is None


@pytest.mark.parametrize(
    ("readings", "joules", "source"),
    [
        ([series("gpu_energy_j", [0, 300, 600, 900]), series("gpu_power_w", [1, 1, 1, 1])], 600, "nvml_counter"),
        ([series("gpu_power_w", [100, 100, 200, 200])], 350, "nvml_power"),
        ([series("cpu_energy_j", [0, 10, 20, 30])], 20, "rapl"),
        ([series("cpu_energy_j", [0, 10, 20, 30]), series("gpu_energy_j", [0, 1, 2, 3])], 2, "nvml_counter"),
        # one GPU of two has a counter: the power of both is known
        (
            [
                series("gpu_energy_j", [0, 100, 200, 300], labels='gpu="0"'),
                *(series("gpu_power_w", [100, 100, 100, 100], labels=f'gpu="{place}"') for place in (0, 1)),
            ],
            400,
            "nvml_power",
        ),
        ([], None, None),
    ],
)
def test_energy_of_the_window_and_who_says_so(readings, joules, source):
    found = columns(*readings)
    assert (found["energy_j"], found["energy_source"]) == (joules, source)


def test_gpus_add_up_and_their_load_is_averaged():
    found = columns(
        series("gpu_energy_j", [0, 100, 200, 300], labels='gpu="0"'),
        series("gpu_energy_j", [0, 50, 100, 150], labels='gpu="1"'),
        series("gpu_utilization", [1, 1, 1, 1], labels='gpu="0"'),
        series("gpu_utilization", [0, 0.5, 0.5, 0.5], labels='gpu="1"'),
        series("gpu_memory_used_bytes", [1e9, 1e9, 2e9, 1e9], labels='gpu="0"'),
        series("gpu_memory_used_bytes", [1e9, 1e9, 1e9, 1e9], labels='gpu="1"'),
    )
    assert found["energy_j"] == 300
    assert found["gpu_utilization_mean"] == pytest.approx(0.75)
    assert found["gpu_memory_gb_max"] == 3
