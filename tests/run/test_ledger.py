"""planned = sent + not sent, sent = ok + failed, stored = recorded."""

import re

import pytest

from servebench.run.outcome import Entry, entry, ledger_faults
from support.records import phase_report, record


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
