"""planned = sent + not sent, sent = ok + failed, stored = recorded."""

import pytest
from tests.analysis.warnings.test_point import make

from servebench.contracts.exchange import PhaseReport
from servebench.run.ledger import Entry, entry, faults


def one(**changes):
    fields = {
        "point": "c1-r0",
        "warmup": False,
        "planned": 10,
        "sent": 10,
        "recorded": 10,
        "ok": 8,
        "failed": {"timeout": 2},
    }
    return Entry(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "stored", "words"),
    [
        ({}, 10, []),
        ({"planned": 20}, 10, []),
        ({"sent": 9, "recorded": 9}, 10, []),  # one was refused a connection and has a record all the same
        ({}, 9, ["10 records were made and 9 are stored"]),
        ({"recorded": 9}, 10, ["10 requests were sent and 9 of them have a record"]),
        ({"planned": 9}, 10, ["9 requests were planned and 10 have a record"]),
        ({"warmup": True}, 10, ["10 records were made and 0 are stored"]),
    ],
)
def test_what_does_not_add_up_is_told(changes, stored, words):
    lines = faults([one(**changes)], {("c1-r0", False): stored})
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True))


def test_an_entry_counts_outcomes():
    report = PhaseReport(
        started_ns=0, ended_ns=1, planned=5, sent=3, elapsed_s=1.0, cpu_s=0.0, loop_lag_ms_p99=None,
        loop_lag_ms_max=None, clock_step_ns=0, stamp_source="kernel",
    )  # fmt: skip
    records = [make(0), make(1), make(2, outcome="timeout"), make(3, outcome="refused", sent_ns=None)]
    found = entry("c1-r0", report, records, warmup=False)
    assert (found.recorded, found.ok, found.failed) == (3, 2, {"timeout": 1, "refused": 1})
    assert found.as_dict(4)["not_sent"] == 2


@pytest.mark.parametrize(("error", "counted", "sent"), [(None, 2, 2), ("it was killed", 2, 3), ("it was killed", 4, 4)])
def test_a_worker_that_died_may_have_sent_more_than_it_could_tell(error, counted, sent):
    """Never fewer: what it had counted and is not on disk is lost, and said to be."""
    report = PhaseReport(
        started_ns=0, ended_ns=1, planned=5, sent=counted, elapsed_s=1.0, cpu_s=0.0, loop_lag_ms_p99=None,
        loop_lag_ms_max=None, clock_step_ns=0, stamp_source="kernel", stopped=error and "worker_died", error=error,
    )  # fmt: skip
    found = entry("c1-r0", report, [make(0), make(1), make(2)], warmup=False)
    assert (found.sent, found.recorded) == (sent, 3)
    assert bool(faults([found], {("c1-r0", False): 3})) == (sent != 3)
