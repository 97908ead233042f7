"""Conversations with the model's own answers in their history: where they stand, who waits, what they are filled with."""

from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from servebench.contracts.engine import Engine
from servebench.contracts.point_row import PointRow
from servebench.contracts.request import answer_mark
from servebench.protocol.kinds.table import compose
from servebench.run.phase import split_at_answers
from servebench.util.errors import ConfigError
from servebench.workload.agent_loop import AgentLoopWorkload
from servebench.workload.ideal_cache import ideal_columns, ideal_hits_of
from servebench.workload.multi_turn import MultiTurnWorkload
from support.workloads import requests_of

from .build.test_sessions import by_session

turns = partial(requests_of, MultiTurnWorkload)
agents = partial(requests_of, AgentLoopWorkload)


def sent_body(request, texts):
    """The body as a server gets it: made by the dialect, cut at its holes, filled as the load fills it."""
    _, body = compose(Engine(), request, "m")
    plain, holes = split_at_answers(orjson.dumps(body), request)
    made, before = b"", 0
    for offset, of in holes:
        made += plain[before:offset] + orjson.dumps(texts[of])[1:-1]
        before = offset
    found: dict[str, Any] = orjson.loads(made + plain[before:])
    return found


@pytest.mark.parametrize("make", [turns, agents])
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_history_is_what_was_answered(pieces, make, api):
    """Each turn's prompt is the one before it, its answer to the letter, and something new; nothing told its length."""
    requests = make(pieces, api=api)
    texts = {request.request_id: f' an "odd"\\ answer\nto {request.request_id} é' for request in requests}
    for session in by_session(requests).values():
        assert [len(r.answers) for r in session] == list(range(len(session)))
        assert [r.prompt_tokens is None for r in session] == [bool(number) for number in range(len(session))]
        for before, after in pairwise(session):
            one, other = sent_body(before, texts), sent_body(after, texts)
            if api == "completions":
                assert other["prompt"].startswith(one["prompt"] + texts[before.request_id] + "\nUser: ")
            else:
                said = {"role": "assistant", "content": texts[before.request_id]}
                assert other["messages"][:-1] == [*one["messages"], said]
            assert after.filled(texts).answers == ()
            assert "<<answer to" not in str(after.filled(texts))


def test_stand_ins_are_as_long_as_answers(pieces):
    """What a preview shows in the place of an answer is what scripted history would have there."""
    for real, scripted in zip(turns(pieces), turns(pieces, history="scripted"), strict=True):
        assert real.filled({}).messages == scripted.messages
        assert (real.session_id, real.request_id, real.output_tokens) == (
            scripted.session_id,
            scripted.request_id,
            scripted.output_tokens,
        )


@pytest.mark.parametrize("history", ["real", "scripted"])
def test_sub_agents_wait_and_report(pieces, history):
    """A sub-agent waits for its parent's first answer, the parent for the last of each; real ones bring what they said."""
    requests = agents(pieces, 80, fan_out=2, steps=3, sub_steps=2, active=2, history=history)
    sessions = by_session(requests)
    checked = 0
    for name, steps in sessions.items():
        children = [sessions[f"{name}.{n}"] for n in range(2) if f"{name}.{n}" in sessions]
        if "." in name.rpartition("/")[2] or len(steps) < 2:
            continue
        checked += 1
        assert [child[0].after for child in children] == [(steps[0].request_id,)] * 2
        assert set(steps[1].after) == {child[-1].request_id for child in children}
        assert not steps[0].after
        if history == "real":
            assert {answer.of for answer in children[0][0].answers} == {steps[0].request_id}
            reports = [m.content for m in (steps[1].messages or ()) if m.content.startswith("Result of ")]
            assert [r.endswith(f"\n{answer_mark(c[-1].request_id)}") for r, c in zip(reports, children, strict=True)]
    assert checked > 5


def test_ideal_hits_know_the_answers(pieces):
    """Over the prompts as they were sent; an answer counts from its end on."""
    first, second = turns(pieces, 2, turns=2, active=1, system_tokens=0)
    said = "w " * 320
    row = PointRow(window_start_ns=0, window_end_ns=99)

    def record(request_id, sent_ns, ended_ns, text):
        return SimpleNamespace(
            request_id=request_id,
            sent_ns=sent_ns,
            ended_ns=ended_ns,
            outcome="ok",
            measured=True,
            text=text,
            prompt_tokens=None,
        )

    records = [record(first.request_id, 10, 20, said), record(second.request_id, 30, 40, "")]
    found = ideal_columns(ideal_hits_of([first, second], records, pieces), records, row)["prefix_cache_hit_rate_ideal"]
    assert found is not None
    # 50 tokens of the first prompt with its role, 2 of the role, 320 of the answer; then 50 new ones
    assert found == pytest.approx(368 / 474, abs=0.05)
    late = [record(first.request_id, 10, 35, said), records[1]]
    without = ideal_columns(ideal_hits_of([first, second], late, pieces), late, row)["prefix_cache_hit_rate_ideal"]
    assert without == pytest.approx(48 / 474, abs=0.02)


def test_a_dialect_that_changes_the_prompt(pieces):
    """Then there is nowhere to put an answer: one line says what to do."""
    with pytest.raises(ConfigError, match=r"history=scripted"):
        split_at_answers(b'{"prompt": "something else"}', turns(pieces, 8, turns=2, active=1)[1])


@pytest.mark.parametrize(("first", "second"), [("c1-r0-0001", "c1-r0-00010")])
def test_marks_do_not_begin_alike(first, second):
    """An id that begins another is not taken for it."""
    assert answer_mark(first) not in answer_mark(second)
