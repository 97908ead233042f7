"""How a run ends, decided from errors, points and the ledger."""

import pytest

from servebench.contracts.exchange import StopReason
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Doubt, Point
from servebench.contracts.settings import LoadSettings, WorkloadSettings
from servebench.run.outcome import (
    Ending,
    ending_of_error,
    ending_of_points,
    no_success_error,
    stop_error,
    with_ledger_faults,
)
from servebench.util.errors import (
    ConfigError,
    EngineError,
    FailureKind,
    Interrupted,
    LoadError,
    QualityError,
    StoreError,
)
from support.settings import run_settings


def point(name="c1-r0", ok=1, **messages):
    doubts = tuple(Doubt(code=code, message=message, remedy="r") for code, message in messages.items())
    return Point(row=PointRow(point=name, requests_ok=ok), doubts=doubts)


@pytest.mark.parametrize(
    ("error", "status", "failure"),
    [
        (KeyboardInterrupt(), "interrupted", FailureKind.INTERRUPTED),
        (Interrupted("x"), "interrupted", FailureKind.INTERRUPTED),
        (EngineError("x", kind=FailureKind.DIED), "failed", FailureKind.DIED),
        (ConfigError("x"), "failed", FailureKind.CONFIG),
        (LoadError("x"), "failed", FailureKind.LOAD),
        (StoreError("x"), "failed", FailureKind.STORE),
        (QualityError("x"), "failed", FailureKind.QUALITY),
    ],
)
def test_an_error_decides_how_a_run_ends(error, status, failure):
    ending = ending_of_error(error)
    assert (ending.status, ending.failure) == (status, failure)
    assert ending.error


def test_points_of_dead_workers_fail_a_run():
    assert ending_of_points([point(), point("c2-r0", errors="e")]) == Ending()
    ending = ending_of_points([point(), point("c2-r0", worker_died="signal 9"), point("c4-r0", worker_died="x")])
    assert (ending.status, ending.failure) == ("failed", FailureKind.WORKER)
    assert ending.error.startswith("c2-r0, c4-r0: signal 9")


def test_a_ledger_fault_fails_every_run():
    assert with_ledger_faults(Ending(), []) == Ending()
    assert with_ledger_faults(Ending(), ["a", "b"]).failure is FailureKind.LEDGER
    both = with_ledger_faults(Ending("interrupted", "stopped", FailureKind.INTERRUPTED), ["a"])
    assert (both.status, both.failure) == ("failed", FailureKind.LEDGER)
    assert both.error.startswith("stopped; ")


def test_a_run_without_any_success_has_an_error():
    chat, completions = (run_settings(workload=WorkloadSettings(name="w", api=api)) for api in ("chat", "completions"))
    assert no_success_error([], chat) is None
    assert no_success_error([point(ok=0), point(ok=1)], chat) is None
    assert "refused" in str(no_success_error([point(ok=0, errors="refused")], chat))
    assert "workload.api=completions" in str(no_success_error([point(ok=0, errors="HTTP 404")], chat))
    assert "workload.api=chat" in str(no_success_error([point(ok=0, errors="HTTP 404")], completions))
    adapters = run_settings(workload=WorkloadSettings(name="w", adapters=("sql",)))
    assert "workload.adapters" in str(no_success_error([point(ok=0, errors="HTTP 404")], adapters))


def test_requests_that_all_were_left_as_configured_are_no_error():
    settings = run_settings(load=LoadSettings(name="l", concurrency=(1,), cancel_fraction=1.0))
    left, failed = (Point(row=PointRow(requests_ok=0, requests_failed=count)) for count in (0, 1))
    assert no_success_error([left], settings) is None
    assert no_success_error([left, failed], settings) is not None


@pytest.mark.parametrize(
    ("stopped", "death", "failure"),
    [
        (None, None, None),
        (StopReason.WORKER_DIED, None, None),
        (None, "signal 9", FailureKind.DIED),
        (StopReason.WORKER_DIED, "signal 9", FailureKind.DIED),
        (StopReason.ENGINE_DIED, None, FailureKind.DIED),
        (StopReason.NO_PROGRESS, None, FailureKind.SILENT),
        (StopReason.NO_PROGRESS, "signal 9", FailureKind.DIED),
        (StopReason.INTERRUPT, None, FailureKind.INTERRUPTED),
        (StopReason.INTERRUPT, "signal 9", FailureKind.INTERRUPTED),
    ],
)
def test_what_ends_a_run_after_a_point(stopped, death, failure):
    error = stop_error(stopped, death, timeout_s=600.0)
    assert (error.kind if error is not None else None) == failure
    if failure is FailureKind.SILENT:
        assert "630 s" in str(error)
