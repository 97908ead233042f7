"""Conversations and agents: growing histories, in an order in which sessions mingle."""

import random
from collections import defaultdict
from functools import partial
from itertools import pairwise

import pytest

from servebench.contracts.request import Request
from servebench.contracts.settings import LengthSettings
from servebench.util.errors import ConfigError
from servebench.workload.agent_loop import CALL_SCHEMA, AgentLoopSettings, AgentLoopWorkload
from servebench.workload.build.sessions import Piece, Session, SessionStep, interleave
from servebench.workload.multi_turn import MultiTurnWorkload
from support.workloads import requests_of

STEP = SessionStep((), 1, Piece("assistant", "", 1))


turns = partial(requests_of, MultiTurnWorkload, history="scripted")
agents = partial(requests_of, AgentLoopWorkload, history="scripted")


def by_session(requests):
    found: dict[str, list[Request]] = defaultdict(list)
    for request in requests:
        assert request.session_id is not None
        found[request.session_id].append(request)
    return found


@pytest.mark.parametrize("make", [turns, agents])
def test_history_grows(pieces, make):
    """Each request of a session has all messages of the one before, an answer, and something new, users last."""
    requests = make(pieces)
    assert len(requests) == len({request.request_id for request in requests}) == 60
    for session in by_session(requests).values():
        for before, after in pairwise(session):
            assert after.messages[: len(before.messages)] == before.messages
            roles = [message.role for message in after.messages[len(before.messages) :]]
            assert roles == ["assistant", "user"]
    assert {request.messages[0].role for request in requests} == {"system"}
    assert {request.messages[-1].role for request in requests} == {"user"}


@pytest.mark.parametrize("make", [turns, agents])
def test_messages_have_exact_lengths(any_tokenizer, make):
    """Each message is as long as asked for, scripted answers as long as the answers; the sum is the prompt's."""
    requests = make(any_tokenizer, 12, input_tokens=120, output_tokens=100, system_tokens=500)
    for request in requests:
        counts = any_tokenizer.count([message.content for message in request.messages])
        assert sum(counts) == request.prompt_tokens
        assert counts[0] == 500
        of_role = {
            role: {c for m, c in zip(request.messages, counts, strict=True) if m.role == role}
            for role in ("user", "assistant")
        }
        assert of_role["user"] <= {120, 128}
        assert of_role["assistant"] <= {100}
        assert request.output_tokens == 100


@pytest.mark.parametrize("make", [turns, agents])
def test_completions_are_transcripts(any_tokenizer, make):
    """As completions the whole text is counted, and history is a common beginning too."""
    requests = make(any_tokenizer, 20, api="completions", input_tokens=100, system_tokens=400)
    assert any_tokenizer.count([r.prompt for r in requests]) == [r.prompt_tokens for r in requests]
    for session in by_session(requests).values():
        for before, after in pairwise(session):
            assert after.prompt.startswith(before.prompt)


@pytest.mark.parametrize("make", [turns, agents])
def test_what_is_shared(pieces, make):
    """Sessions share the system message and nothing else; cold streams not even that."""
    for cache, systems in (("cold", 2), ("warm", 1)):
        requests = [r for stream in ("c1-0", "c2-0") for r in make(pieces, stream=stream, cache=cache)]
        assert len({r.messages[0].content for r in requests}) == systems
        firsts = {session: found[0].messages[1].content[:13] for session, found in by_session(requests).items()}
        assert len(set(firsts.values())) == len(firsts)


def test_turns_and_active(pieces):
    """As many turns as asked for; never more sessions open than `active`; they really mingle."""
    requests = turns(pieces, 80, turns=4, active=5)
    sessions = by_session(requests)
    assert [len(found) for found in sessions.values()] == [4] * 20
    places = {name: [requests.index(r) for r in found] for name, found in sessions.items()}
    open_at = [sum(found[0] <= at <= found[-1] for found in places.values()) for at in range(80)]
    assert max(open_at) == 5
    assert any(found[-1] - found[0] > 4 for found in places.values())
    spec = LengthSettings(kind="uniform", min=1, max=6)
    assert {len(found) for found in by_session(turns(pieces, 200, turns=spec)).values()} >= {1, 2, 3, 4, 5, 6}


def test_think_times(pieces):
    """None before the first turn; exponential with the mean asked for before the others."""
    assert {r.think_s for r in turns(pieces)} == {None}
    sessions = by_session(turns(pieces, 800, think_s=2.0))
    assert {found[0].think_s for found in sessions.values()} == {None}
    times = [r.think_s for found in sessions.values() for r in found[1:] if r.think_s is not None]
    assert len(times) == 600
    assert sum(times) / len(times) == pytest.approx(2.0, rel=0.2)


def test_fan_out(pieces):
    """Sub-agents begin with their parent's first step and an answer, end before its second, and report to it."""
    requests = agents(pieces, 100, fan_out=3, steps=3, sub_steps=2, active=2)
    sessions = by_session(requests)
    parents = [name for name in sessions if "." not in name.rpartition("/")[2]]
    checked = 0
    for name in parents:
        children = [found for other, found in sessions.items() if other.startswith(f"{name}.")]
        if len(sessions[name]) < 2:
            continue
        checked += 1
        assert [len(found) for found in children] == [2, 2, 2]
        second = requests.index(sessions[name][1])
        for found in children:
            assert found[0].messages[: len(sessions[name][0].messages)] == sessions[name][0].messages
            assert requests.index(sessions[name][0]) < requests.index(found[0])
            assert requests.index(found[-1]) < second
        news = sessions[name][1].messages[len(sessions[name][0].messages) + 1 :]
        assert [message.content.split(" [")[0] for message in news[:3]] == [
            f"Result of {name.rpartition('/')[2]}.{n}" for n in range(3)
        ]
        assert len(news) == 4
    assert checked > 5


def test_enforced_calls(pieces):
    """Then each request has the schema of a call, and answers may end."""
    assert {str(r.schema) for r in agents(pieces, enforce_calls=True, exact_output=False)} == {str(CALL_SCHEMA)}
    settings = AgentLoopSettings(name="agent_loop", enforce_calls=True)
    assert ["exact_output=false" in line for line in AgentLoopWorkload(settings).check()] == [True]
    assert {r.schema for r in agents(pieces)} == {None}


@pytest.mark.parametrize("make", [turns, agents])
def test_too_short_is_an_error(pieces, make):
    """Messages are never alike for want of room."""
    with pytest.raises(ConfigError, match="too short"):
        make(pieces, input_tokens=3)


def test_interleave_keeps_what_depends_in_order():
    """A session that is opened by another begins after that step; one that waits goes on after the others."""
    parent = Session("p", (STEP, STEP), waits_for={1: ("c",)})
    child = Session("c", (STEP, STEP), opens_after=("p", 1))
    for seed in range(20):
        names = [(s.name, n) for s, n in interleave([parent, child, Session("x", (STEP,))], 2, random.Random(seed))]
        assert [one for one in names if one[0] != "x"] == [("p", 0), ("c", 0), ("c", 1), ("p", 1)]
        assert ("x", 0) in names
