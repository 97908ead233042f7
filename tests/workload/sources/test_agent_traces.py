"""Recorded sessions of agents: what is read from a file."""

import json
import random
from importlib.resources import files

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from servebench.util.errors import ConfigError
from servebench.workload.agent_trace import sessions_of
from servebench.workload.build.sessions import interleave
from servebench.workload.sources.agent_traces import AgentJob, AgentStep, SubAgent, agent_jobs, weka_job
from support.weka import weka_lines, weka_traces


def request(t, tokens, out=5, **more):
    return {"t": t, "type": "s", "model": "m", "in": tokens, "out": out, "hash_ids": [1, 2], **more}


def test_the_shipped_set_is_the_generators():
    """Nothing in it was recorded."""
    shipped = files("servebench.workload").joinpath("data", "agent_traces.jsonl").read_text()
    assert shipped == weka_lines()
    assert len(agent_jobs("builtin")) == 24


def test_pauses_are_what_is_recorded_or_what_is_between_answer_and_request():
    """A think time counts; without one the time from the answer, or from the request where its length is unknown."""
    entries = [request(10.0, 100, api_time=2.0), request(15.0, 120), request(16.0, 130, think_time=0.25)]
    (first, second, third) = weka_job({"requests": entries}, 0).steps
    assert (first.pause_s, second.pause_s, third.pause_s) == (0.0, 3.0, 0.25)
    assert first == AgentStep(100, 5, (1, 2), 0.0)


@pytest.mark.parametrize("absolute", [True, False], ids=["times of the job", "times of the sub-agent"])
def test_a_sub_agent_starts_and_is_waited_for_as_recorded(absolute):
    """It starts after the step before its marker; the step after it waits, unless it was launched without waiting."""
    zero = 0.0 if absolute else 4.0
    inner = [request(4.5 - zero, 50, api_time=1.0), request(6.0 - zero, 60, api_time=2.0)]
    marker = {"t": 4.0, "type": "subagent", "status": "completed", "requests": inner}
    entries = [request(1.0, 100, api_time=3.0), marker, request(9.0, 120, api_time=1.0)]
    job = weka_job({"requests": entries, "block_size": 16, "hash_id_scope": "local"}, 3)
    assert job.sub_agents == (SubAgent((AgentStep(50, 5, (1, 2), 0.5), AgentStep(60, 5, (1, 2), 0.5)), 1, 1),)
    # after the end of the sub-agent at 8 s
    assert [step.pause_s for step in job.steps] == [0.0, 1.0]
    assert (job.block_tokens, job.scope, job.requests) == (16, "3", 4)
    marker["status"] = "async_launched"
    assert weka_job({"requests": entries}, 0).sub_agents[0].before is None
    assert weka_job({"requests": entries}, 0).steps[1].pause_s == 5.0
    # nothing comes after it
    assert weka_job({"requests": entries[:2]}, 0).sub_agents[0].before is None


@pytest.mark.parametrize("absolute", [True, False], ids=["times of the job", "times of the sub-agent"])
def test_a_think_time_may_contain_the_time_of_sub_agents(absolute):
    """As in published files: the marker stands at the end, and the next request's think time counts from the answer before."""
    zero = 0.0 if absolute else 8.2
    inner = [request(8.2 - zero, 50, api_time=1.0, think_time=0.0), request(96.2 - zero, 60, api_time=34.0)]
    marker = {"t": 134.2, "type": "subagent", "status": "completed", "duration_ms": 126_000, "requests": inner}
    late = {**marker, "t": 40.2, "duration_ms": 32_000, "requests": [request(8.2 - zero, 50, api_time=1.0)]}
    entries = [request(0.0, 100, api_time=7.3), late, marker, request(153.0, 120, api_time=1.0, think_time=145.7)]
    job = weka_job({"requests": entries, "block_size": 16}, 0)
    assert [one.steps[-1].pause_s for one in job.sub_agents] == pytest.approx([0.9, 87.0])
    assert job.steps[1].pause_s == pytest.approx(153.0 - 130.2)
    # a shorter think time was measured from their end
    entries[-1] = request(153.0, 120, think_time=3.0)
    assert weka_job({"requests": entries}, 0).steps[1].pause_s == 3.0


def test_times_of_a_sub_agent_count_from_its_marker_where_no_answer_has_a_time():
    """Recordings without `api_time`: the marker stands where the sub-agent was sent."""
    inner = [request(0.0, 50), request(2.0, 60)]
    marker = {"t": 5.0, "type": "subagent", "status": "completed", "duration_ms": 3000, "requests": inner}
    job = weka_job({"requests": [request(0.0, 100), marker, request(10.0, 120)]}, 0)
    assert [step.pause_s for step in job.sub_agents[0].steps] == [5.0, 2.0]
    # after the last request of the sub-agent at 7 s
    assert job.steps[1].pause_s == 3.0


def test_sub_agents_may_have_sub_agents():
    """Times of each count from the start of its own agent; all are requests of the job."""
    inmost = {"t": 2.0, "type": "subagent", "status": "completed", "requests": [request(0.5, 40, api_time=1.0)]}
    inner = [request(0.0, 50, api_time=1.5), inmost, request(4.0, 900, api_time=1.0)]
    marker = {"t": 10.0, "type": "subagent", "status": "completed", "requests": inner}
    entries = [request(0.0, 100, api_time=9.5), marker, request(16.0, 120)]
    job = weka_job({"requests": entries}, 0)
    (child,) = job.sub_agents
    assert child == SubAgent(
        (AgentStep(50, 5, (1, 2), 0.5), AgentStep(900, 5, (1, 2), 0.5)),
        1,
        1,
        (SubAgent((AgentStep(40, 5, (1, 2), 1.0),), 1, 1),),
    )
    assert (job.requests, job.longest, job.steps[1].pause_s) == (5, 900, 1.0)


def test_agents_of_one_list_that_worked_at_once_stay_at_once():
    """Two workers are sent before each other's answers: one becomes a sub-agent, which the next step waits for. Prompts say
    whose the later requests are."""
    worker = {"hash_ids": [1, 2, 60, 61], "api_time": 3.0}
    entries = [
        request(0.0, 48, hash_ids=[1, 2, 3], api_time=1.0),
        request(2.0, 64, hash_ids=[1, 2, 50, 51], api_time=2.0),
        request(2.5, 65, **worker),
        request(6.0, 66, **{**worker, "hash_ids": [1, 2, 60, 61, 62]}, think_time=9.0),
        request(6.5, 67, hash_ids=[1, 2, 50, 51, 52], api_time=1.0),
        request(12.0, 68, hash_ids=[1, 2, 50, 51, 52, 53]),
    ]
    job = weka_job({"requests": entries, "block_size": 16}, 0)
    assert [(step.input_tokens, step.pause_s) for step in job.steps] == [(48, 0.0), (64, 1.0), (67, 2.5), (68, 3.0)]
    (beside,) = job.sub_agents
    assert [(step.input_tokens, step.pause_s) for step in beside.steps] == [(65, 1.5), (66, 0.5)]
    assert (beside.after, beside.before, job.requests) == (1, 3, 6)


def test_a_request_beside_others_takes_no_pause_from_them():
    """What one agent thought between two of its own requests is kept."""
    entries = [
        request(0.0, 48, hash_ids=[1, 2, 3], api_time=1.0),
        request(0.5, 64, hash_ids=[9, 8], api_time=0.2),
        request(2.0, 65, hash_ids=[1, 2, 3, 4], api_time=1.0, think_time=9.0),
        request(4.2, 66, hash_ids=[1, 2, 3, 4, 5], think_time=1.0),
    ]
    job = weka_job({"requests": entries, "block_size": 16}, 0)
    assert [step.pause_s for step in job.steps] == [0.0, 1.0, 1.0]
    assert len(job.sub_agents) == 1


@pytest.mark.parametrize(
    "second",
    [
        pytest.param({"hash_ids": [1, 2, 3, 4]}, id="continues the first"),
        pytest.param({"hash_ids": [1, 2, 30, 4]}, id="continues it in a block that was begun"),
        pytest.param({"hash_ids": []}, id="does not say"),
        pytest.param({"hash_ids": [7, 8], "t": 2.95}, id="overlaps by rounding"),
    ],
)
def test_one_agent_stays_one_where_times_are_not_exact(second):
    """Only a request that was sent before another one's answer and does not continue it is of another agent."""
    entries = [request(0.0, 48, hash_ids=[1, 2, 3], api_time=3.0), {**request(2.0, 64), **second}]
    job = weka_job({"requests": entries}, 0)
    assert (len(job.steps), job.sub_agents) == (2, ())


def any_list(rng, depth=0):
    """Entries of an agent in any order of times and blocks, with the number of its requests."""
    entries, count, tails = [], 0, [[1, 2]]
    for at in range(rng.randint(1, 9)):
        blocks = [*rng.choice(tails)[: rng.randint(0, 9)], rng.randint(10, 99)]
        tails.append(blocks)
        entries.append(request(rng.randint(0, 9), 64, hash_ids=blocks, api_time=rng.choice([0, 0.2, 5])))
        count += 1
        if depth < 2 and rng.random() < 0.3:
            inner, more = any_list(rng, depth + 1)
            entries.append({"t": at, "type": "subagent", "status": rng.choice(["completed", "async_launched"])})
            entries[-1]["requests"] = inner
            count += more
    return entries, count


@pytest.mark.parametrize("seed", range(100))
def test_each_request_of_any_list_is_sent_once_and_none_waits_for_ever(seed):
    entries, count = any_list(random.Random(seed))
    sessions = [session for session, _ in sessions_of(weka_job({"requests": entries}, 0), "j")]
    for active in (1, 3):
        order = interleave(sessions, active, random.Random(seed))
        assert len({(session.name, step) for session, step in order}) == len(order) == count


@pytest.mark.parametrize(("stated", "shared"), [("global", True), ("local", False), (None, False)])
def test_blocks_are_a_jobs_own_unless_a_trace_says_otherwise(tmp_path, stated, shared):
    """Older traces do not say it: each numbers its blocks from 1."""
    scope = {} if stated is None else {"hash_id_scope": stated}
    (tmp_path / "t.json").write_text(json.dumps([{"requests": [request(0, 100)], **scope}] * 2))
    first, second = agent_jobs(str(tmp_path / "t.json"))
    assert (first.scope == second.scope) == shared


def as_parquet(path, text):
    rows = [json.loads(line) for line in text.splitlines()]
    pq.write_table(pa.Table.from_pylist(rows), path)


def test_each_kind_of_file_has_the_same_jobs(tmp_path):
    """Lines, a list, a folder with a file each, and the table of a hub."""
    text = weka_lines(4, 6)
    (tmp_path / "t.jsonl").write_text(text)
    (tmp_path / "t.json").write_text(json.dumps(weka_traces(4, 6)))
    as_parquet(tmp_path / "t.parquet", text)
    (tmp_path / "folder").mkdir()
    for number, line in enumerate(text.splitlines()):
        (tmp_path / "folder" / f"trace_{number:03d}.json").write_text(line)
    as_parquet(tmp_path / "folder" / "trace_003.parquet", text.splitlines()[3])
    (tmp_path / "folder" / "trace_003.json").unlink()
    # what a download leaves
    (tmp_path / "folder" / ".cache").mkdir()
    (tmp_path / "folder" / ".cache" / "lock.json").write_text("{}")
    (tmp_path / "folder" / "trace_000.json.metadata").write_text("-")
    (tmp_path / "folder" / "README.md").write_text("-")
    wanted = agent_jobs(str(tmp_path / "t.jsonl"))
    assert [job.name for job in wanted] == [f"synthetic-{number:04d}" for number in range(6)]
    for name in ("t.json", "t.parquet", "folder"):
        assert agent_jobs(str(tmp_path / name)) == wanted


def test_a_stored_run_is_a_trace(tmp_path):
    """Sessions by their names, pauses from answer to request; warm-ups and what was never sent are no part of it."""
    names = ("point", "session_id", "request_id", "sent_ns", "ended_ns", "prompt_tokens", "output_tokens", "warmup")
    second = 10**9
    rows = [
        ("c1", "c1/s0", "r0", 1 * second, 3 * second, 100, 7, False),
        ("c1", "c1/s0", "r1", 5 * second, 6 * second, 150, 8, False),
        ("c1", None, "r2", 2 * second, 3 * second, 64, 9, False),
        ("c1", "c1/s0", "w", 0, second, 64, 9, True),
        ("c1", "c1/s0", "r3", None, 7 * second, None, None, False),
    ]
    pq.write_table(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]), tmp_path / "r.parquet")
    talk, alone = agent_jobs(str(tmp_path / "r.parquet"))
    assert talk.steps == (AgentStep(100, 7, (0, 1), 0.0), AgentStep(150, 8, (0, 1, 2), 2.0))
    assert alone == AgentJob("c1/r2", (AgentStep(64, 9, (0,), 0.0),), scope="1")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.txt", ""),
        ("none.jsonl", None),
        ("t.jsonl", ""),
        ("t.jsonl", '{"id": 1}'),
        ("t.jsonl", '{"requests": [{"t": 0, "in": -1, "out": 1}]}'),
        ("t.jsonl", '{"requests": [{"t": 0, "in": 5, "out": 1, "hash_ids": ["a"]}]}'),
        ("t.jsonl", '{"requests": [{"t": "x", "in": 5, "out": 1}]}'),
        ("t.jsonl", '{"requests": [1]}'),
        ("t.jsonl", "7"),
        ("t.jsonl", "[]"),
        ("t.jsonl", "{"),
        ("t.json", "{"),
        ("t.jsonl", '{"block_size": -4, "requests": [{"t": 0, "in": 5, "out": 1}]}'),
    ],
)
def test_what_is_no_trace_is_an_error_that_names_it(tmp_path, name, text):
    """And never a traceback."""
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=rf"workload\.path={path}"):
        agent_jobs(str(path))


def test_a_recorded_trace_is_a_job_for_each_session(tmp_path):
    """Requests in the order of their arrival, pauses as recorded, blocks of the size that the last line says."""
    names = ("timestamp", "input_length", "output_length", "hash_ids", "session_id", "think_time", "block_size")
    rows = [
        (900.0, 70, 5, [1, 9], "s2", None, 30),
        (5000.0, 130, 7, [1, 2, 3], "s1", 2.5, 31),
        (0.0, 64, 5, [1, 2], "s1", None, 32),
        (9000.0, 64, 0, [], "s3", None, 33),
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    alone, grown = agent_jobs(str(path))
    assert (alone.name, alone.steps) == ("s2", (AgentStep(70, 5, (1, 9), 0.0),))
    assert grown.steps == (AgentStep(64, 5, (1, 2), 0.0), AgentStep(130, 7, (1, 2, 3), 2.5))
    assert {(job.block_tokens, job.scope) for job in (alone, grown)} == {(33, "")}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"in": True}, "in is True, not a number"),
        ({"in": 12.7}, "in 12.7 and out 5 are no token counts"),
        ({"t": float("nan")}, "t is nan, not a number"),
        ({"out": "many"}, "out is 'many', not a number"),
        ({"think_time": []}, r"think_time is \[\], not a number"),
    ],
)
def test_a_value_that_is_no_number_is_named(wrong, said):
    with pytest.raises(ValueError, match=said):
        weka_job({"requests": [request(0.0, 48) | wrong]}, 0)


def test_requests_that_are_no_objects_and_blocks_without_tokens_are_refused():
    with pytest.raises(ValueError, match="request 2 is 'x', not an object"):
        weka_job({"requests": [request(0.0, 48), "x"]}, 0)
    with pytest.raises(ValueError, match="block_size 0"):
        weka_job({"block_size": 0, "requests": [request(0.0, 48)]}, 0)
