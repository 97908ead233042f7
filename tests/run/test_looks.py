"""Looks at a running point."""

import pytest
from tests.support.records import failed_record, phase_facts, record_ms

from servebench.analysis.disturbance import Disturbance
from servebench.contracts.exchange import EndReason
from servebench.contracts.point_id import PointId
from servebench.load.plan.levels import PlannedPoint
from servebench.run.watchdog import Looks


def records(count, *, each_ms=100.0, streams=4):
    """Requests of 100 ms in a closed loop of streams that began one after another."""
    step = each_ms / streams
    times = [(i * step, (i * step + 20, i * step + each_ms)) for i in range(count)]
    return [record_ms(sent, events, request_id=f"r{i}") for i, (sent, events) in enumerate(times)]


def looks(**changes):
    budget_s = changes.pop("budget_s", 60.0)
    known = {"targets": {"ttft_ms_p50": 0.05}, "concurrency": 4, "requests": None, "warmup_requests": 0}
    known |= {name: changes.pop(name) for name in known.keys() & changes.keys()}
    level = PlannedPoint(id=PointId.parse("c4-r0"), duration_s=budget_s, **known)
    return Looks(**{"level": level, "facts": phase_facts(), "least": 40, **changes})


def test_a_look_is_due_after_the_first_requests_and_then_in_steps():
    found = looks()
    assert not found.is_due(39, 1.0)
    assert found.is_due(40, 1.0)
    assert not found.take(records(40), 1.0), "the window is shorter than any number takes"
    assert not found.is_due(43, 1.0)
    assert found.is_due(44, 1.0), "four were sent before the level was reached"
    assert not found.take(records(44), 1.0)
    assert not found.is_due(61, 1.0)
    assert found.is_due(62, 1.0)


def test_a_precise_point_ends_and_is_looked_at_no_more():
    found = looks()
    assert found.take(records(400), 10.0)
    assert found.ended_by is EndReason.PRECISE
    assert not found.is_due(10_000, 100.0)


def test_what_was_cancelled_or_only_kept_the_level_does_not_count():
    found = looks()
    open_ones = [failed_record(f"x{i}", "cancelled", sent_ns=1) for i in range(300)]
    found.take([*records(40), *open_ones], 1.0)
    assert found.is_due(57, 1.0)


def test_a_target_beyond_the_budget_ends_it_at_once():
    found = looks(targets={"ttft_ms_p99": 0.05}, budget_s=2.0)
    assert found.take(records(60), 1.5)
    assert found.ended_by is EndReason.OUT_OF_REACH


def test_answers_without_counted_tokens_are_counted():
    found = looks(with_tokens=lambda some: seen.extend(some) or some)
    seen = []
    found.take(records(50), 1.25)
    assert len(seen) == 50


@pytest.mark.parametrize(("streams", "first"), [(1, 30), (64, 64), (None, 30)])
def test_the_first_look_comes_when_each_stream_has_had_an_answer(streams, first):
    found = looks(least=30, concurrency=streams)
    assert not found.is_due(first - 1, 1.0)
    assert found.is_due(first, 1.0)


def test_too_few_rounds_within_the_budget_are_seen_at_the_first_look():
    """Eight streams with answers of 40 s have less than two rounds in a minute, and an interval takes three."""
    found = looks(concurrency=8, least=8)
    assert found.take(records(16, each_ms=40_000.0, streams=8), 48.0)
    assert found.ended_by is EndReason.OUT_OF_REACH


def test_requests_that_the_window_does_not_hold_are_sent_again():
    """Eight streams begin one after another: their first requests precede the window, so 30 that ended are 22 that count."""
    found = looks(concurrency=8, least=30, targets={"ttft_ms_p99": 0.01}, budget_s=2.0)
    assert found.is_due(30, 0.4)
    assert not found.take(records(30, streams=8), 0.4)
    assert not found.is_due(37, 0.5)
    assert found.is_due(38, 0.5)
    assert found.take(records(38, streams=8), 0.5)
    assert found.ended_by is EndReason.OUT_OF_REACH
    failing = looks(concurrency=8, least=30, targets={"ttft_ms_p99": 0.01}, budget_s=2.0)
    assert failing.take([failed_record(f"x{i}", "http_status", sent_ns=i) for i in range(30)], 0.4)


def test_the_time_is_over_when_there_are_enough_requests_or_never_will_be():
    found = looks(budget_s=1.0)
    assert not found.is_due(39, 1.5)
    assert not found.is_due(10, 0.9), "the time is not over"
    assert not found.is_due(14, 1.0), "40 may come within three seconds"
    assert found.is_due(13, 1.0)
    assert found.is_due(0, 1.0)
    assert found.is_due(40, 1.5)
    assert found.take(records(44), 1.5)
    assert found.ended_by is EndReason.TIME


def test_requests_that_others_disturbed_are_sent_again():
    """The finished point leaves their stretch out, so a point of 300 must not end with 250 of them."""
    found = looks(least=300, disturbances=lambda: [stretch(2.0, 5.0)])
    assert looks(least=300).take(records(350), 9.0)
    assert not found.take(records(350), 9.0)
    assert not found.is_due(400, 10.0)
    assert found.is_due(440, 11.0)
    assert found.take(records(440), 11.0)


def test_where_others_let_hardly_any_request_pass_a_point_ends_by_its_time():
    """More requests would run into the next burst, too."""
    bursts = [stretch(start / 10, start / 10 + 0.04) for start in range(0, 700)]
    found = looks(least=40, disturbances=lambda: bursts, targets={"ttft_ms_p50": 0.001})
    assert not found.take(records(800), 20.0)
    assert found.take(records(2400), 60.0)
    assert found.ended_by is EndReason.TIME


def test_what_comes_from_the_load_itself_is_not_left_out():
    found = looks(least=300, disturbances=lambda: [stretch(2.0, 5.0, inherent=True)])
    assert found.take(records(350), 9.0)


def stretch(start_s, end_s, **more):
    moments = {"start_ns": round(start_s * 1e9), "end_ns": round(end_s * 1e9)}
    return Disturbance(who="other", took="took 2 of 2 cores", **moments, **more)
