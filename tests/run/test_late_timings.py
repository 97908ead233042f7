"""Joining the engine's late times with records."""

from types import SimpleNamespace

import pytest

from servebench.contracts.engine import ServerTimings
from servebench.contracts.events import Notice
from servebench.run import late_timings
from servebench.run.late_timings import missing_timings, with_late_timings, with_timings
from servebench.run.phase import traceparent
from servebench.util.errors import EngineError
from support.orchestration import Recorder
from support.records import MS, failed_record, record_ms

LATE = ServerTimings(queue_ms=100.0, prefill_ms=50.0, decode_ms=840.0, e2e_ms=995.0)


def answered(**changes):
    return record_ms(0, [155, 900], ended=1010, answered_ns=1000 * MS, **changes)


def session_of(source, **parts):
    lease = SimpleNamespace(**{"spans": None, "context": None, "running": None, **parts})
    settings = SimpleNamespace(engine=SimpleNamespace(name="e", request_timings=source))
    return SimpleNamespace(settings=settings, request=SimpleNamespace(events=Recorder()), lease=lease)


def test_the_late_times_are_those_of_the_record():
    """The end is that of the answer, not the later moment at which the client noticed it."""
    found = with_timings(answered(), LATE, "spans")
    assert (found.server_queue_ms, found.server_prefill_ms, found.server_decode_ms) == (100.0, 50.0, 840.0)
    assert (found.network_ms, found.delivery_ms, found.residual_ms) == (5.0, 5.0, 5.0)
    assert found.timings_from == "spans"


def test_times_of_the_answer_win():
    own = answered(server_queue_ms=90.0, server_prefill_ms=60.0, server_decode_ms=845.0, timings_from="answer")
    found = with_timings(own, LATE, "spans")
    assert (found.server_queue_ms, found.server_prefill_ms, found.server_e2e_ms) == (90.0, 60.0, 995.0)
    assert found.timings_from == "answer+spans"
    assert with_timings(own, ServerTimings(queue_ms=1.0), "spans") is own, "nothing new"
    assert with_timings(own, None, "spans") is own


def test_spans_are_joined_by_trace():
    records = [answered(), answered(request_id="r1"), failed_record("r2")]
    asked = []

    def collect(wanted):
        asked.extend(wanted)
        return {traceparent("s/00/c1-r0", "r1").split("-")[1]: LATE}

    session = session_of("spans", spans=SimpleNamespace(collect=collect))
    found = with_late_timings(session, "s/00/c1-r0", records)
    assert [one.timings_from for one in found] == [None, "spans", None]
    assert len(asked) == 2, "failed requests are not waited for"
    (doubt,) = missing_timings(session.settings.engine, found)
    assert doubt.code == "timings_missing"
    assert "no spans for 1 of 2 requests" in doubt.message
    assert doubt.mark
    assert missing_timings(session.settings.engine, found[1:]) == []
    assert missing_timings(session_of(True).settings.engine, records) == []


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(late_timings, "LATE_S", 0.05)
    monkeypatch.setattr(late_timings, "PAUSE_S", 0.001)


def test_the_engine_is_asked_until_all_are_there(hasty):
    """It gives what is new: the last lines are written after the answers were sent."""
    kept = [{"a": LATE, "other": LATE}, {}, {"b": LATE}]
    engine = SimpleNamespace(name="e", timings_after_load=lambda *_: kept.pop(0))
    session = session_of("after_load", engine=engine)
    records = [answered(request_id=name, response_id=name) for name in "ab"]
    assert [one.timings_from for one in with_late_timings(session, "t", records)] == ["after_load"] * 2
    assert kept == []


def test_an_engine_that_gives_none_is_not_asked_for_ever(hasty):
    engine = SimpleNamespace(name="e", timings_after_load=lambda *_: {})
    session = session_of("after_load", engine=engine)
    found = with_late_timings(session, "t", [answered(response_id="a"), answered(response_id=None)])
    assert [one.timings_from for one in found] == [None, None]
    assert "request timings of e for 2 of 2 requests" in missing_timings(session.settings.engine, found)[0].message


@pytest.mark.parametrize(
    ("error", "said"), [(EngineError("no such list"), "no such list"), (KeyError("timing"), "KeyError: 'timing'")]
)
def test_an_engine_that_cannot_is_said(error, said):
    """A plugin's error costs no point."""

    def refuse(*_):
        raise error

    session = session_of("after_load", engine=SimpleNamespace(name="e", timings_after_load=refuse))
    with_late_timings(session, "t", [answered(response_id="a")])
    assert session.request.events.of(Notice) == [Notice("timings_failed", note=said)]
