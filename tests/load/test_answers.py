"""Requests whose bodies need the answers to others: who waits for whom, what is put where, and what a failure ends."""

from __future__ import annotations

import json
import time
from collections import Counter
from itertools import pairwise

import pytest

from servebench.contracts.exchange import PlannedRequest, PointPlan
from servebench.load.client.job import WireRequest
from servebench.load.client.order import SessionOrder
from servebench.load.coordinator.share import split_plan
from servebench.util.errors import LoadError

from .conftest import HEADER, LAST, chunk, event, reset

READER = "servebench.measure.derive:spoken"
ODD = 'a "quoted" \\ word\nand é, \U0001f600'


def hole(index, *of):
    """Holes inside the empty text of the body of request `index`, for the answers to these."""
    at = len(json.dumps({"id": f"r{index}", "pad": ""})) - 2
    return tuple((at, f"r{one}") for one in of)


def echo(seen):
    """Answers with its own name and a text that JSON must escape; notes what it was asked, and when."""

    def script(connection, number, request):
        asked = json.loads(request)
        seen[asked["id"]] = asked["pad"]
        end = chunk(b"data: [DONE]\n\n") + LAST
        connection.sendall(HEADER + event(f"{asked['id']}: ") + event(ODD) + end)

    return script


def wire(*, session=None, after=(), holes=(), data=b"x", body_at=0):
    return WireRequest("r", session, None, 0.0, None, after, holes, body_at, data)


def test_order_of_a_session():
    """One after another; the text goes into every hole that asks for it, and is forgotten after the last."""
    head, body = b"POST\r\n", b'{"t":""}'
    parts = [
        wire(session="s"),
        wire(session="s", holes=[(6, 0)], data=head + body, body_at=6),
        wire(session="s", holes=[(6, 0), (6, 1)], data=head + body, body_at=6),
        wire(),
    ]
    order = SessionOrder(parts)
    assert [set(order.waits(i)) for i in range(4)] == [set(), {0}, {0, 1}, set()]
    assert [order.needs_text(i) for i in range(4)] == [True, True, False, False]
    assert list(order.ended(0, b"AB")) == [(1, True)]
    assert order.fill(1) == b'POST\r\nContent-Length: 10\r\n\r\n{"t":"AB"}'
    assert list(order.ended(1, b"C")) == [(2, True)]
    assert order.fill(2) == b'POST\r\nContent-Length: 11\r\n\r\n{"t":"ABC"}'
    assert list(order.ended(3)) == list(order.ended(2)) == []
    assert not order._texts


def test_order_of_what_failed():
    """Without its text those that need it can never be sent; those that only come after it can."""
    order = SessionOrder([wire(session="s"), wire(session="s", holes=[(0, 0)]), wire(after=[0]), wire(after=[1, 2])])
    assert list(order.ended(0)) == [(1, False), (2, True)]
    assert list(order.ended(1)) == []
    assert list(order.ended(2)) == [(3, True)]


@pytest.mark.parametrize("workers", [1, 3])
def test_answers_are_put_where_they_belong(serve, run, workers):
    """Six sessions of four turns: each has the answers to all before it, byte for byte; nothing is sent too early."""
    seen = {}
    report, exchanges = run(
        serve(echo(seen)),
        24,
        concurrency=3,
        workers=workers,
        reader=READER,
        facts=lambda i: {"session_id": f"s{i % 6}", "holes": hole(i, *range(i % 6, i, 6))},
    )
    assert Counter(e.outcome for e in exchanges.values()) == {"complete": 24}
    assert (report.sent, report.workers) == (24, workers)
    for index in range(24):
        assert seen[f"r{index}"] == "".join(f"r{before}: {ODD}" for before in range(index % 6, index, 6))
    for session in range(6):
        turns = [exchanges[f"r{i}"] for i in range(session, 24, 6)]
        for before, after in pairwise(turns):
            assert before.ended_ns <= after.scheduled_ns <= after.sent_ns


def test_a_stream_is_kept_for_the_next_turn(serve, run):
    """With one stream a session that goes on at once goes before a new one, though its answer must be read first."""
    facts = [{"session_id": "a"}, {"session_id": "a", "holes": hole(1, 0)}, {"session_id": "b"}]
    server = serve(echo({}))
    run(server, 3, concurrency=1, reader=READER, facts=lambda i: facts[i])
    assert server.seen == ["r0", "r1", "r2"]


def test_sessions_that_wait_for_each_other(serve, run):
    """A child begins with its parent's answer, the parent goes on with the child's; all on one worker."""
    seen = {}
    facts = [
        {"session_id": "p"},
        {"session_id": "c", "after": ("r0",), "holes": hole(1, 0)},
        {"session_id": "p", "after": ("r1",), "holes": hole(2, 1)},
        {"session_id": "other"},
    ]
    _, exchanges = run(serve(echo(seen)), 4, concurrency=4, workers=2, reader=READER, facts=lambda i: facts[i])
    assert Counter(e.outcome for e in exchanges.values()) == {"complete": 4}
    assert (seen["r1"], seen["r2"]) == (f"r0: {ODD}", f"r1: {ODD}")
    assert exchanges["r0"].ended_ns <= exchanges["r1"].sent_ns < exchanges["r1"].ended_ns <= exchanges["r2"].sent_ns


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("refusal", "the answer to r1 failed: http_error: HTTP 503: busy"),
        ("reset", "r1 failed: reset: "),
        ("cut", "the answer to r1 failed: truncated: the stream ended without"),
        ("error", "the answer to r1 failed: stream_error: out of memory"),
        ("silence", "r1 failed: timeout: no complete answer within"),
    ],
)
def test_a_failed_turn_ends_its_session(serve, run, how, said):
    """What needs the answer is never sent and says why; other sessions go on."""
    seen = {}
    fine = echo(seen)

    def script(connection, number, request):
        if json.loads(request)["id"] != "r1":
            return fine(connection, number, request)
        if how == "refusal":
            connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
        elif how == "cut":
            connection.sendall(HEADER + event("half") + LAST)
        elif how == "error":
            connection.sendall(HEADER + chunk(b'data: {"error": {"message": "out of memory"}}\n\n') + LAST)
        elif how == "silence":
            time.sleep(0.6)
            return False
        else:
            reset(connection)
        return None

    report, exchanges = run(
        serve(script),
        8,
        concurrency=2,
        timeout_s=0.3,
        reader=READER,
        facts=lambda i: {"session_id": f"s{i % 2}", "holes": hole(i, *range(i % 2, i, 2))},
    )
    assert [exchanges[f"r{i}"].outcome for i in (0, 2, 4, 6)] == ["complete"] * 4
    ended = [exchanges[f"r{i}"] for i in (3, 5, 7)]
    assert {e.outcome for e in ended} == {"session_ended"}
    assert {e.sent_ns for e in ended} == {None}
    assert all(e.error.startswith(said) for e in ended), [e.error for e in ended]
    assert report.sent == 5
    assert not {"r3", "r5", "r7"} & set(seen)


def test_what_had_come_is_history_for_a_user_who_goes_away(serve, run):
    """The turn after one that was broken off has what there was of it."""
    seen = {}

    def script(connection, number, request):
        asked = json.loads(request)
        seen[asked["id"]] = asked["pad"]
        connection.sendall(HEADER + event("half"))
        if asked["id"] == "r0":
            time.sleep(0.4)
            return False
        connection.sendall(chunk(b"data: [DONE]\n\n") + LAST)
        return None

    _, exchanges = run(
        serve(script),
        2,
        concurrency=1,
        reader=READER,
        facts=lambda i: {"session_id": "s", "holes": hole(1, 0)} if i else {"session_id": "s", "cancel_after_s": 0.15},
    )
    assert (exchanges["r0"].outcome, exchanges["r1"].outcome) == ("abandoned", "complete")
    assert seen["r1"] == "half"


def test_think_time_begins_at_the_answers_end(serve, run):
    """However long reading it takes, and also for a turn whose place in the plan comes later."""
    server = serve(echo({}))
    _, exchanges = run(
        server,
        2,
        concurrency=1,
        reader=READER,
        facts=lambda i: {"session_id": "s", "think_s": 0.1, "holes": hole(1, 0) if i else ()},
    )
    first, second = exchanges["r0"], exchanges["r1"]
    assert second.scheduled_ns - first.ended_ns == 100_000_000
    assert 0.1e9 <= second.sent_ns - first.ended_ns < 0.2e9


def test_a_reader_that_is_none(serve, run):
    """The phase does not begin, and one line says why."""
    with pytest.raises(LoadError, match=r"the reader of answers \(servebench\.nothing:here\) did not start"):
        run(serve(echo({})), 2, reader="servebench.nothing:here")


def test_a_reader_that_dies_at_work(serve, run):
    """What waits for its texts is never sent, and the phase ends; what needs none goes on."""
    facts = [{"session_id": "a"}, {"session_id": "a", "holes": hole(1, 0)}, {"session_id": "a"}, {}, {}]
    # takes no arguments, so it breaks at the first answer
    _, exchanges = run(serve(echo({})), 5, concurrency=1, reader="os:abort", facts=lambda i: facts[i])
    found = [exchanges[f"r{i}"].outcome for i in range(5)]
    assert found == ["complete", "session_ended", "complete", "complete", "complete"]
    assert exchanges["r1"].error.startswith("the answer to r0 failed: the reader of answers died")


def test_what_belongs_together_goes_to_one_worker():
    """Sessions that are tied by an answer or an order, also over others, share a worker; the rest is spread."""
    ties = {3: ("r0",), 5: ("r3",)}
    requests = [
        PlannedRequest(request_id=f"r{i}", path="/", body=b"", session_id=f"s{i}", after=ties.get(i, ()))
        for i in range(9)
    ]
    parts = split_plan(PointPlan(requests=requests, concurrency=3, timeout_s=1, connect_timeout_s=1), 3)
    of = {request.request_id: number for number, part in enumerate(parts) for request in part.requests}
    assert of["r0"] == of["r3"] == of["r5"]
    assert Counter(of.values()) == {0: 3, 1: 3, 2: 3}
