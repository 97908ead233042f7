"""Looks at a running point."""

import pytest
from tests.support.records import failed_record, record_ms

from servebench.contracts.exchange import EndReason
from servebench.run.looks import Looks, first_look


def records(count, *, each_ms=100.0, streams=4):
    """Requests of 100 ms in a closed loop of streams that began one after another."""
    step = each_ms / streams
    times = [(i * step, (i * step + 20, i * step + each_ms)) for i in range(count)]
    return [record_ms(sent, events, request_id=f"r{i}") for i, (sent, events) in enumerate(times)]


def looks(**changes):
    return Looks(**{"targets": {"ttft_ms_p50": 0.05}, "concurrency": 4, "first": 40, "budget_s": 60.0, **changes})


def test_a_look_is_due_after_the_first_requests_and_then_in_steps():
    found = looks()
    assert not found.is_due(39)
    assert found.is_due(40)
    assert not found.take(records(40)), "the window is shorter than any number takes"
    assert not found.is_due(55)
    assert found.is_due(56)


def test_a_precise_point_ends_and_is_looked_at_no_more():
    found = looks()
    assert found.take(records(400))
    assert found.ended_by is EndReason.PRECISE
    assert not found.is_due(10_000)


def test_what_was_cancelled_or_only_kept_the_level_does_not_count():
    found = looks()
    open_ones = [failed_record(f"x{i}", "cancelled", sent_ns=1) for i in range(300)]
    found.take([*records(40), *open_ones])
    assert found.is_due(57)


def test_a_target_beyond_the_budget_ends_it_at_once():
    found = looks(targets={"ttft_ms_p99": 0.05}, budget_s=2.0)
    assert found.take(records(60))
    assert found.ended_by is EndReason.OUT_OF_REACH


def test_answers_without_counted_tokens_are_counted():
    found = looks(with_tokens=lambda some: seen.extend(some) or some)
    seen = []
    found.take(records(50))
    assert len(seen) == 50


@pytest.mark.parametrize(("least", "streams", "expected"), [(30, 1, 30), (30, 8, 64), (30, None, 30)])
def test_the_first_look_waits_for_enough_rounds(least, streams, expected):
    assert first_look(least, streams) == expected
