"""The warning about a point that changed: what it says, and which causes it names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from servebench.analysis.drift import Drift
from servebench.analysis.warnings.disturbed import not_stationary
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Doubt
from servebench.contracts.telemetry import Reading
from servebench.util.units import NS_PER_S
from support.records import point_evidence, record

SLOWER = Drift(course="at once", begin=0.5, end=0.5, before=8.9, after=10.2, p=0.001)
EARLY = Drift(course="early", begin=0.0, end=0.2, before=12.0, after=10.0, p=0.001)


def judged(name: str = "itl", drift: Drift = SLOWER, *, sent: Any = (), **more: Any) -> Doubt | None:
    row = PointRow(concurrency=8, window_s=40.0, window_start_ns=0, window_end_ns=40 * NS_PER_S)
    requests = [record(f"r{n}", sent_ns=at, ended_ns=at + NS_PER_S) for n, at in enumerate(sent)]
    return not_stationary(
        point_evidence(row=replace(row, rate=2.0 if sent else None), records=requests, drifts={name: drift}, **more)
    )


def readings(name: str, values: list[float]) -> list[Reading]:
    return [
        Reading(t_ns=round(n * 40 * NS_PER_S / (len(values) - 1)), source="s", name=name, raw_name=name, labels="", value=v)
        for n, v in enumerate(values)
    ]  # fmt: skip


def test_it_says_what_moved_when_and_by_how_much() -> None:
    """And claims no cause without evidence."""
    found = judged()
    assert found is not None
    assert found.message.startswith("ITL rose by 14.6% at once at about 20 s of a window of 40 s, from 8.9 to 10.2 ms")
    assert "cause not known" in found.message


@pytest.mark.parametrize(
    ("drift", "telemetry", "words", "remedy"),
    [
        (SLOWER, readings("gpu_sm_clock_mhz", [1980, 1980, 1410, 1410]), "clock (MHz) went from 1,980 to 1,410", "cool"),
        (SLOWER, readings("kv_cache_usage", [0.2, 0.2, 0.9, 0.9]), "KV cache's use went from 0.2 to 0.9", "level"),
        (SLOWER, readings("engine_cpu_s", [0, 80, 160, 200, 240]), "CPU cores", "other processes"),
        (EARLY, readings("gpu_sm_clock_mhz", [1980, 1980, 1980]), "as after a warm-up", "load.warmup_s=8"),
    ],
)  # fmt: skip
def test_a_cause_needs_evidence(drift: Drift, telemetry: list[Reading], words: str, remedy: str) -> None:
    """In the telemetry or in the course."""
    found = judged(drift=drift, readings=telemetry)
    assert found is not None
    assert words in found.message
    assert remedy in found.remedy


def test_what_moved_the_other_way_explains_nothing() -> None:
    """A higher clock makes no engine slower, and a slower engine did not warm up."""
    for drift in (SLOWER, replace(EARLY, before=10.0, after=12.0)):
        found = judged(drift=drift, readings=readings("gpu_sm_clock_mhz", [1410, 1410, 1980, 1980]))
        assert found is not None
        assert "cause not known" in found.message


def test_requests_in_flight_explain_an_open_loop() -> None:
    """Twice as many from the middle on."""
    sent = [*range(0, 20 * NS_PER_S, NS_PER_S // 2), *range(20 * NS_PER_S, 40 * NS_PER_S, NS_PER_S // 4)]
    found = judged(sent=sent)
    assert found is not None
    assert "requests in flight went from" in found.message


@pytest.mark.parametrize("drift", [replace(SLOWER, p=0.06), replace(SLOWER, after=9.3)])
def test_a_wander_and_a_small_change_are_no_warning(drift: Drift) -> None:
    """Both must be shown: that it is no wander, and that it matters."""
    assert judged(drift=drift) is None
