"""Requests whose bodies need the answers to others: what is inserted where, and what a failure ends."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest

from servebench.util.errors import LoadError
from support.servers import LAST_CHUNK, SSE_HEAD, Abandon, chunk, content_event, reset
from support.streams import sent_ids

READER = "servebench.measure.derive:spoken"
ODD = 'a "quoted" \\ word\nand é, \U0001f600'


def hole(index, *of):
    """Holes inside the empty text of the body of request `index`, for the answers to these."""
    at = len(json.dumps({"id": f"r{index}", "pad": ""})) - 2
    return tuple((at, f"r{one}") for one in of)


def echo(seen):
    """Return a script that answers with the request's id and a text that JSON must escape, and records what it received."""

    def script(connection, request):
        asked = request.json()
        seen[asked["id"]] = asked["pad"]
        end = chunk(b"data: [DONE]\n\n") + LAST_CHUNK
        connection.sendall(SSE_HEAD + content_event(f"{asked['id']}: ") + content_event(ODD) + end)

    return script


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_answers_are_inserted_into_later_requests(serve, run, workers):
    """Six sessions of four turns: each turn has all answers before it, byte for byte, and none is sent too early."""
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
    """With one stream a session that continues at once precedes a new one, although its answer must be read first."""
    facts = [{"session_id": "a"}, {"session_id": "a", "holes": hole(1, 0)}, {"session_id": "b"}]
    server = serve(echo({}))
    run(server, 3, concurrency=1, reader=READER, facts=lambda i: facts[i])
    assert sent_ids(server) == ["r0", "r1", "r2"]


def test_sessions_that_wait_for_each_other(serve, run):
    """A child starts with its parent's answer, the parent continues with the child's; all on one worker."""
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


@pytest.mark.slow
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
    """Requests that need its answer are never sent, with the reason; other sessions continue."""
    seen = {}
    fine = echo(seen)

    def script(connection, request):
        if request.json()["id"] != "r1":
            return fine(connection, request)
        if how == "refusal":
            connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
        elif how == "cut":
            connection.sendall(SSE_HEAD + content_event("half") + LAST_CHUNK)
        elif how == "error":
            connection.sendall(SSE_HEAD + chunk(b'data: {"error": {"message": "out of memory"}}\n\n') + LAST_CHUNK)
        elif how == "silence":
            raise Abandon
        else:
            reset(connection)
        return None

    report, exchanges = run(
        serve(script),
        8,
        concurrency=2,
        timeout_s=4.0 if how == "silence" else 30.0,
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


@pytest.mark.slow
def test_a_partial_answer_is_history_after_its_user_went_away(serve, run):
    """The next turn has the part of the answer that had arrived."""
    seen = {}

    def script(connection, request):
        asked = request.json()
        seen[asked["id"]] = asked["pad"]
        connection.sendall(SSE_HEAD + content_event("half"))
        if asked["id"] == "r0":
            raise Abandon
        connection.sendall(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)
        return None

    _, exchanges = run(
        serve(script),
        2,
        concurrency=1,
        reader=READER,
        facts=lambda i: {"session_id": "s", "holes": hole(1, 0)} if i else {"session_id": "s", "cancel_after_s": 2.0},
    )
    assert (exchanges["r0"].outcome, exchanges["r1"].outcome) == ("abandoned", "complete")
    assert seen["r1"] == "half"


def test_think_time_starts_at_the_end_of_the_answer(serve, run):
    """It does not matter how long reading the answer takes."""
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
    assert second.sent_ns - first.ended_ns >= 100_000_000


def test_a_reader_that_does_not_exist(serve, run):
    """The phase does not start, and the error names the function."""
    with pytest.raises(LoadError, match=r"servebench\.nothing:here"):
        run(serve(echo({})), 2, reader="servebench.nothing:here")


def test_a_reader_that_dies(serve, run):
    """Requests that wait for its texts are never sent; all others are, and the phase ends."""
    facts = [{"session_id": "a"}, {"session_id": "a", "holes": hole(1, 0)}, {"session_id": "a"}, {}, {}]
    # takes no arguments, so it breaks at the first answer
    _, exchanges = run(serve(echo({})), 5, concurrency=1, reader="os:abort", facts=lambda i: facts[i])
    found = [exchanges[f"r{i}"].outcome for i in range(5)]
    assert found == ["complete", "session_ended", "complete", "complete", "complete"]
    assert "r0" in exchanges["r1"].error
