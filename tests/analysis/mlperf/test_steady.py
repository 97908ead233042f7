"""The steady-state window of a point whose super-passes are planted."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from servebench.analysis.mlperf.steady import by_issue, metrics_of, steady_state, steps, trend
from servebench.store.layout import RunFolder
from servebench.store.tables import RecordWriter, read_requests
from support.studies import SimulatedEngine, SimulatedLoad, closed_loop

SIZE = 10
RISING = np.arange(1.0, 6.0)
FLAT = (1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0)
HIGHER = tuple(1.5 * one for one in FLAT)


def planted(levels, *, issue_s=10.0, answer_s=5.0):
    """Return requests whose super-pass k has TPOT of 10 ms times levels[k], one issued each `issue_s`."""
    count = SIZE * len(levels)
    tpot = 10.0 * np.repeat(levels, SIZE) * np.tile(np.linspace(0.99, 1.01, SIZE), len(levels))
    issued = issue_s * np.arange(count)
    times = {"issued_s": issued, "ended_s": issued + answer_s, "tpot_ms": tpot}
    return pd.DataFrame({**times, "ttft_ms": 100.0, "e2e_ms": answer_s * 1000, "tokens": 8.0})


def found(levels, minimum_s=600.0, **timing):
    return steady_state(planted(levels, **timing), SIZE, minimum_s)


def test_a_steady_run_is_its_window_without_the_first_super_pass():
    steady = found((0.8, *FLAT))
    assert (steady.status, steady.verdict, steady.cropped, steady.passes) == ("windowable", "STEADY STATE", 1, 11)
    assert (steady.first, steady.end, steady.span_s) == (1, 11, 990.0)


def test_a_ramp_is_left_out_up_to_half():
    assert found((0.5, 0.7, 0.9, *FLAT)).cropped == 3
    assert found((*[0.5] * 9, *FLAT[:9])).cropped == 9
    assert found((*[0.5] * 12, *FLAT[:8])).cropped == 10


def test_a_step_ends_the_window_and_is_told():
    steady = found((1.0, *FLAT, *FLAT, *HIGHER[:6]))
    assert (steady.verdict, steady.end) == ("anomaly", 21)
    assert steady.shift == pytest.approx(0.5, abs=0.01)


def test_a_step_in_the_first_three_quarters_passes_for_a_ramp():
    """By the rules' detector: most of the later half is on the new level, so what was before is left out."""
    steady = found((1.0, *FLAT, *HIGHER))
    assert (steady.verdict, steady.cropped, steady.shift) == ("STEADY STATE", 10, None)


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [
        ((1.0, *np.linspace(1.0, 1.04, 12)), "drifting_up"),
        ((1.0, *np.linspace(1.04, 1.0, 12)), "drifting_down"),
        ((1.0, *np.linspace(1.0, 4.0, 12)), "not found"),
        ((1.0, *(1.0, 1.4) * 6), "not found"),
    ],
)
def test_what_moves_is_not_steady(levels, verdict):
    assert found(levels).verdict == verdict


@pytest.mark.parametrize(
    ("levels", "minimum_s", "status"),
    [
        (FLAT[:4], 600.0, "insufficient_passes"),
        ((1.0, *(1.0, 1.4) * 6), 600.0, "insufficient_passes"),
        (FLAT, 1200.0, "insufficient_duration"),
        (FLAT, 600.0, "windowable"),
    ],
)
def test_the_status_says_what_the_window_lacks(levels, minimum_s, status):
    assert found(levels, minimum_s).status == status


def test_less_than_a_super_pass_is_no_steady_state():
    few = planted((1.0,)).iloc[: SIZE - 1]
    assert steady_state(few, SIZE, 600.0).status == "partial_dataset"


def test_a_window_needs_five_long_answers_and_its_precision():
    assert found(FLAT).needed_s == 600.0
    assert found(FLAT, answer_s=200.0).needed_s == 1000.0
    # a variation of 7% takes 8 super-passes of 90 s for 5%
    rough = found((1.0, *(0.93, 1.07) * 6))
    assert rough.needed_s == 8 * 90.0


def test_the_first_plateau_that_is_long_enough_is_the_window():
    steady = found((1.0, *FLAT[:5], *HIGHER, *FLAT))
    assert (steady.first, steady.end) == (6, 16)


def test_metrics_are_those_of_the_rules():
    issued = planted((1.0, 1.0))
    metrics = metrics_of(issued, 195.0)
    assert metrics.system_tps == pytest.approx(20 * 8 / 195)
    # of ten values twice, the one at the rounded-down rank int(0.9 * 19)
    assert metrics.tpot_p90_ms == np.sort(issued["tpot_ms"])[17]
    assert metrics.tps_per_user == pytest.approx(1000 / metrics.tpot_p90_ms)
    assert metrics.ttft_p90_ms == 100.0


def test_metrics_of_what_failed_are_unknown():
    nothing = planted((1.0,)).assign(tpot_ms=np.nan, ttft_ms=np.nan, e2e_ms=np.nan, tokens=0.0)
    metrics = metrics_of(nothing, 10.0)
    assert (metrics.system_tps, metrics.tps_per_user, metrics.ttft_p90_ms, metrics.tpot_p90_ms) == (
        0.0,
        None,
        None,
        None,
    )
    assert steady_state(nothing, SIZE, 600.0).verdict == "not found"


def test_requests_are_taken_in_the_order_of_issue_with_what_failed(tmp_path):
    """The clock starts before a connection is opened and stops at the end of the stream; the first event carries two tokens."""
    ms = 1_000_000
    template = closed_loop(SimulatedEngine(), SimulatedLoad(requests=3), 1, 0, "s/r", "c1")
    records = []
    for index, record in enumerate(template):
        sent = (3 - index) * 1000 * ms
        stamps = [sent + (100 + 10 * k) * ms for k in range(4)]
        fields = {
            "scheduled_ns": sent, "connect_started_ns": sent - 20 * ms if index == 0 else None, "sent_ns": sent,
            "first_event_ns": stamps[0], "last_event_ns": stamps[-1], "ended_ns": stamps[-1] + 6 * ms,
            "event_ns": stamps, "event_tokens": [2, 1, 1, 1], "output_tokens": 5, "session_id": None,
        }  # fmt: skip
        records.append(replace(record, **fields, outcome="http_error" if index == 1 else "ok"))
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    writer = RecordWriter(folder)
    writer.append(records)
    writer.close()
    issued = by_issue(read_requests(folder))
    assert list(issued["issued_s"]) == [1.0, 2.0, 2.98]
    assert list(issued["tokens"]) == [5, 0, 5]
    np.testing.assert_allclose(issued["tpot_ms"], [12.0, np.nan, 12.0])
    np.testing.assert_allclose(issued["ttft_ms"], [100.0, np.nan, 120.0])
    np.testing.assert_allclose(issued["e2e_ms"], [136.0, np.nan, 156.0])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (RISING, "up"),  # S = 10, variance 16.67, z = 2.20
        (-RISING, "down"),
        (RISING[:4], "flat"),  # S = 6, variance 8.67, z = 1.70
        (RISING[:3], "flat"),
        (np.ones(8), "flat"),
        (np.array([1.0, 3.0, 2.0, 5.0, 4.0]), "flat"),  # S = 6, z = 1.22
        (np.array([1.0, 2.0, 3.0, 4.0, 4.0, 4.0, 4.0]), "up"),  # S = 15, variance 35.67: ties take 8.67; z = 2.34
    ],
)
def test_a_trend_is_what_ranks_cannot_do_by_chance(values, expected):
    assert trend(values) == expected


def test_autocorrelation_takes_the_significance_of_a_wave():
    """One slow wave has a significant S if its values were independent, and none as they are."""
    wave = np.sin(np.linspace(-0.5 * np.pi, 1.1 * np.pi, 40))
    signs = np.triu(np.sign(wave[None, :] - wave[:, None]), 1).sum()
    plain = (abs(signs) - 1) / math.sqrt(40 * 39 * 85 / 18)
    assert plain > 1.96
    assert trend(wave) == "flat"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.arange(12.0), True),  # K = |2 * 21 - 6 * 13| = 36, p = 2 exp(-6 * 1296 / 1872) = 0.031
        (np.arange(10.0), False),  # K = 25, p = 2 exp(-3750 / 1100) = 0.066
        (np.array([1.0] * 6 + [2.0] * 6), True),  # ties have their mean rank: K = 36 again
        (np.array([2.0, 1.0] * 6), False),
    ],
)
def test_pettitt_finds_a_step(values, expected):
    assert steps(values) == expected
