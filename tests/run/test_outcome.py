"""How a run ends, decided from errors, points and the ledger: planned = sent + unsent, sent = ok + failed, stored = recorded."""

import re

import pytest

from servebench.contracts.exchange import StopReason
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Doubt, Point
from servebench.contracts.settings import LoadSettings, WorkloadSettings
from servebench.run.outcome import (
    Ending,
    Entry,
    ending_of_error,
    ending_of_points,
    entry,
    ledger_faults,
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
from support.records import phase_report, record
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
    cold = point(ok=0, errors="HTTP 400: Unsupported value: 'temperature' does not support 0")
    assert "workload.temperature=null" in str(no_success_error([cold], chat))
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


def one(**changes):
    counts = {"planned": 10, "sent": 10, "recorded": 10, "ok": 8, "failed": {"timeout": 2}}
    return Entry(**{"point": "c1-r0", "warmup": False, **counts, **changes})


@pytest.mark.parametrize(
    ("changes", "stored", "counts"),
    [
        ({}, 10, []),
        ({"planned": 20}, 10, []),
        ({"sent": 9, "recorded": 9}, 10, []),  # one was refused a connection and has a record all the same
        ({}, 9, [("10", "9")]),
        ({"recorded": 9}, 10, [("10", "9")]),
        ({"planned": 9}, 10, [("9", "10")]),
        ({"warmup": True}, 10, [("10", "0")]),
    ],
)
def test_counts_that_do_not_match_are_faults(changes, stored, counts):
    lines = ledger_faults([one(**changes)], {("c1-r0", False): stored})
    assert [tuple(re.findall(r"\b\d+\b", line)) for line in lines] == counts


def test_fillers_are_counted_apart():
    """They are neither planned nor failed, but they are on disk."""
    report = phase_report(planned=2, sent=2)
    records = [record("r0"), record("r1"), record("f0", outcome="cancelled", filler=True)]
    found = entry("c1-r0", report, records, warmup=False)
    assert (found.planned, found.sent, found.ok, found.failed, found.fillers) == (2, 2, 2, {}, 1)
    assert ledger_faults([found], {("c1-r0", False): 3}) == []
    assert ledger_faults([found], {("c1-r0", False): 2}) != []


def test_an_entry_counts_outcomes():
    report = phase_report(planned=5, sent=3)
    failed = [record("r2", outcome="timeout"), record("r3", outcome="refused", sent_ns=None)]
    records = [record("r0"), record("r1"), *failed]
    found = entry("c1-r0", report, records, warmup=False)
    assert (found.recorded, found.ok, found.failed) == (3, 2, {"timeout": 1, "refused": 1})
    assert found.as_dict(4)["not_sent"] == 2


@pytest.mark.parametrize(("error", "counted", "sent"), [(None, 2, 2), ("it was killed", 2, 3), ("it was killed", 4, 4)])
def test_a_worker_that_died_may_have_sent_more_than_it_counted(error, counted, sent):
    """But never fewer: requests that it counted and that are not on disk are a fault."""
    report = phase_report(planned=5, sent=counted, stopped=error and "worker_died", error=error)
    found = entry("c1-r0", report, [record("r0"), record("r1"), record("r2")], warmup=False)
    assert (found.sent, found.recorded) == (sent, 3)
    assert bool(ledger_faults([found], {("c1-r0", False): 3})) == (sent != 3)
