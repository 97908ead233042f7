"""Recorded sessions of agents, replayed: prefixes, lengths, pauses and sub-agents of a trace that nobody has seen before."""

import json
from collections import Counter
from itertools import pairwise

import pytest

from servebench.util.common_prefix import common_prefix_length
from servebench.util.errors import ConfigError
from servebench.workload.agent_trace import AgentTraceSettings, AgentTraceWorkload
from servebench.workload.sources.agent_traces import agent_jobs
from support.weka import weka_lines
from support.workloads import requests_of, workload_of

SIZE = 32


@pytest.fixture(params=["global", "local"])
def unseen(tmp_path, request):
    path = tmp_path / "unseen.jsonl"
    path.write_text(weka_lines(99, 9, SIZE, scope=request.param))
    return str(path)


def recorded(path):
    """Each step of the file by (job number, session number or None, step number)."""
    found = {}
    for number, job in enumerate(agent_jobs(path)):
        for child, steps in [(None, job.steps), *((n, one.steps) for n, one in enumerate(job.sub_agents))]:
            found |= {(number, child, place): (step, job) for place, step in enumerate(steps)}
    return found


def replayed(requests):
    """The same for requests, by their sessions."""
    seen = Counter()
    found = {}
    for one in requests:
        job, _, child = one.session_id.rpartition("/")[2].partition(".")
        place = (int(job[1:]), int(child) if child else None)
        found[*place, seen[place]] = one
        seen[place] += 1
    return found


def test_lengths_pauses_and_jobs_are_those_of_the_trace(unseen, pieces):
    """Of each request, by the tokenizer's own count."""
    steps = recorded(unseen)
    found = replayed(requests_of(AgentTraceWorkload, pieces, len(steps), path=unseen, api="completions"))
    assert found.keys() == steps.keys()
    for place, one in found.items():
        step, job = steps[place]
        assert pieces.count([one.prompt]) == [step.input_tokens] == [one.prompt_tokens]
        assert (one.output_tokens, one.think_s or 0.0, one.job_requests) == (
            step.output_tokens,
            step.pause_s,
            job.requests,
        )
        assert one.job == f"c1-0/j{place[0]}"


@pytest.mark.parametrize("cap", [0.01, None])
def test_no_pause_is_longer_than_the_cap(unseen, pieces, cap):
    found = requests_of(AgentTraceWorkload, pieces, 60, path=unseen, pause_cap_s=cap)
    longest = max(one.think_s or 0.0 for one in found)
    assert longest == cap if cap else longest > 0.01


def test_equal_ids_are_equal_text_and_others_are_not(unseen, pieces):
    """Prompts share whole blocks exactly as far as their ids do, across sessions; between jobs too where the ids are global."""
    steps = recorded(unseen)
    found = replayed(requests_of(AgentTraceWorkload, pieces, len(steps), path=unseen, api="completions"))
    texts = {place: cut(one.prompt, pieces) for place, one in found.items()}
    places = list(found)
    for at, one in enumerate(places):
        for other in places[at + 1 :]:
            (step, job), (later, its) = steps[one], steps[other]
            whole = min(step.input_tokens, later.input_tokens) // SIZE
            same = [a == b and job.scope == its.scope for a, b in zip(step.blocks, later.blocks, strict=False)][:whole]
            shared = next((n for n, equal in enumerate(same) if not equal), len(same))
            equal = [a == b for a, b in zip(texts[one], texts[other], strict=False)][:whole]
            assert next((n for n, block in enumerate(equal) if not block), len(equal)) == shared


def cut(text, tokenizer):
    """The text's whole blocks."""
    total = tokenizer.count([text])[0]
    ends = [len(tokenizer.truncate(text, tokens)) for tokens in range(0, total + 1, SIZE)]
    return [text[start:end] for start, end in pairwise(ends)]


def test_sub_agents_wait_and_are_waited_for(unseen, pieces):
    """Their first request waits for the step that spawns them, and the step after them for their last."""
    steps = recorded(unseen)
    found = replayed(requests_of(AgentTraceWorkload, pieces, len(steps), path=unseen))
    waits = 0
    for number, job in enumerate(agent_jobs(unseen)):
        for child, one in enumerate(job.sub_agents):
            assert found[number, child, 0].after == (found[number, None, one.after - 1].request_id,)
            last = found[number, child, len(one.steps) - 1].request_id
            for place in range(len(job.steps)):
                assert (last in found[number, None, place].after) == (place == one.before)
            waits += one.before is not None
    assert waits


def test_a_sub_agent_of_a_sub_agent_waits_for_its_own_agent(tmp_path, pieces):
    """Also one that starts before its agent's first request; and each agent waits for its own."""
    one = {"in": 90, "out": 5, "hash_ids": []}
    marker = {"t": 0, "type": "subagent", "status": "completed"}
    early, late = ({**marker, "t": t, "requests": [{"t": t, **one}]} for t in (1, 3))
    nested = {**marker, "t": 1, "requests": [early, {"t": 2, **one}, late, {"t": 4, **one}]}
    path = tmp_path / "nested.json"
    path.write_text(json.dumps({"requests": [{"t": 0, **one}, nested, {"t": 5, **one}]}))
    requests = requests_of(AgentTraceWorkload, pieces, 6, path=str(path))
    by_session = {}
    for made in requests:
        by_session.setdefault(made.session_id.rpartition("/")[2], []).append(made)
    assert {name: len(its) for name, its in by_session.items()} == {"j0": 2, "j0.0": 2, "j0.0.0": 1, "j0.0.1": 1}
    main, child, first, second = (by_session[name] for name in ("j0", "j0.0", "j0.0.0", "j0.0.1"))
    assert first[0].after == (main[0].request_id,)
    assert set(child[0].after) == {main[0].request_id, first[0].request_id}
    assert second[0].after == (child[0].request_id,)
    assert child[1].after == (second[0].request_id,)
    assert main[1].after == (child[1].request_id,)
    assert {made.job_requests for made in requests} == {6}


def test_a_setting_replaces_the_size_of_the_blocks(tmp_path, pieces):
    """Prompts with one common block share as many tokens."""
    path = tmp_path / "trace.json"
    entries = [{"t": n, "in": 200, "out": 5, "hash_ids": [1, 10 + n]} for n in range(2)]
    path.write_text(json.dumps({"block_size": 32, "requests": entries}))
    keys = {"path": str(path), "api": "completions", "block_tokens": 100}
    one, other = (made.prompt for made in requests_of(AgentTraceWorkload, pieces, 2, **keys))
    shared = one[: common_prefix_length(one, other)]
    assert pieces.count([shared])[0] == pytest.approx(100, abs=2)


def test_real_answers_become_part_of_the_next_prompt(unseen, pieces):
    """Which is as long as the recorded one if the answer is; the first prompt of each session has none."""
    steps = recorded(unseen)
    requests = requests_of(AgentTraceWorkload, pieces, len(steps), path=unseen, history="real")
    for place, one in replayed(requests).items():
        assert (one.prompt_tokens is None) == bool(one.answers) == (place[2] > 0)
        filled = one.filled({})
        total = sum(pieces.count([message.content for message in filled.messages]))
        assert total == pytest.approx(steps[place][0].input_tokens, abs=2 * 17)
        assert [message.role for message in one.messages][0::2] == ["user"] * (place[2] + 1)


def test_the_trace_is_repeated_with_other_blocks(pieces):
    """The same bytes from the same seed, and none shared between repetitions."""
    twice = 2 * sum(job.requests for job in agent_jobs("builtin"))
    requests = requests_of(AgentTraceWorkload, pieces, twice, api="completions", cache="as_is")
    assert requests == requests_of(AgentTraceWorkload, pieces, twice, api="completions", cache="as_is")
    found = replayed(requests)
    assert found[0, None, 0].prompt[:40] != found[24, None, 0].prompt[:40]
    assert len({one.prompt[:40] for one in requests}) == 4


def test_long_jobs_can_be_left_out(pieces):
    """All of a job, not a part of it; and not all of them."""
    longest = sorted(job.longest for job in agent_jobs("builtin"))
    kept = requests_of(AgentTraceWorkload, pieces, 40, max_input_tokens=longest[3], api="completions")
    assert max(one.prompt_tokens for one in kept) <= longest[3]
    (note,) = workload_of(AgentTraceWorkload, max_input_tokens=longest[3]).notes()
    assert "20 of 24 jobs" in note
    assert workload_of(AgentTraceWorkload).notes() == []
    with pytest.raises(ConfigError):
        requests_of(AgentTraceWorkload, pieces, 40, max_input_tokens=longest[0] - 1)


@pytest.mark.parametrize(
    "wrong", [{"path": "none.jsonl"}, {"input_tokens": 5}, {"length_scale": 0.1}, {"output_tokens": 5}], ids=str
)
def test_settings_without_sense_are_refused(wrong):
    """Before anything starts."""
    assert len(AgentTraceWorkload(AgentTraceSettings(name="agent_trace", **wrong)).check()) == 1
