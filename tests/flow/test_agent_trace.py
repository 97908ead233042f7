"""A trace of agents that was not seen before, through the public command and by the engine's own counts."""

import csv
import json
from collections import defaultdict
from itertools import pairwise

import pandas as pd
import pytest

from servebench.workload.sources.agent_traces import agent_jobs
from support.results import run_of
from support.weka import weka_lines

WORDS = (
    *("workload=agent_trace", "load.concurrency=[6]", "load.warmup_requests=4", "load.hold_level=false", "gpu=rtx4090"),
    *("model=qwen2.5-1.5b-instruct", "tracking=none", "study.starts=1", "workload.api=completions"),
)

HITS = ("prefix_cache_hit_rate", "prefix_cache_hit_rate_ideal")


@pytest.fixture
def unseen(tmp_path):
    path = tmp_path / "unseen.jsonl"
    path.write_text(weka_lines(7, 10, 32, absolute=False))
    return path


def replay(run_main, tmp_path, path, *words):
    jobs = agent_jobs(str(path))
    requests = sum(job.requests for job in jobs)
    run_main(*WORDS, *words, f"workload.path={path}", f"load.requests={requests}", "study.name=s", code=0)
    run = run_of(tmp_path)
    found = pd.read_parquet(run / "requests.parquet")
    found = found[~found["warmup"]].sort_values("sent_ns")
    assert len(found) == requests
    assert set(found["outcome"]) == {"ok"}
    return jobs, found, pd.read_parquet(run / "points.parquet").iloc[0], run


def sessions(found):
    by_name = defaultdict(list)
    for one in found.itertuples():
        by_name[one.session_id.rpartition("/")[2]].append(one)
    return by_name


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_sessions_prefixes_lengths_and_gaps_are_those_of_the_trace(run_main, tmp_path, unseen, engine):
    """Each request as long as recorded, sent the recorded pause after what it waits for; hits are those of its blocks."""
    jobs, found, point, run = replay(run_main, tmp_path, unseen, f"engine={engine}", "launch=simulated")
    by_name = sessions(found)
    assert by_name.keys() == {
        name
        for number, job in enumerate(jobs)
        for name in (f"j{number}", *(f"j{number}.{n}" for n in range(len(job.sub_agents))))
    }
    for number, job in enumerate(jobs):
        main = by_name[f"j{number}"]
        for child, one in enumerate(job.sub_agents):
            its = by_name[f"j{number}.{child}"]
            assert its[0].sent_ns >= main[one.after - 1].ended_ns + one.steps[0].pause_s * 1e9 - 1e3
            assert one.before is None or main[one.before].sent_ns >= its[-1].ended_ns
        for its, steps in [
            (main, job.steps),
            *((by_name[f"j{number}.{n}"], s.steps) for n, s in enumerate(job.sub_agents)),
        ]:
            assert [(one.prompt_tokens, one.output_tokens) for one in its] == [
                (s.input_tokens, s.output_tokens) for s in steps
            ]
            gaps = [(later.sent_ns - sooner.ended_ns) / 1e9 for sooner, later in pairwise(its)]
            assert all(gap >= step.pause_s - 1e-6 for gap, step in zip(gaps, steps[1:], strict=True))
            for one, before, step, earlier in zip(its[1:], its, steps[1:], steps, strict=False):
                whole = next(
                    (n for n, (a, b) in enumerate(zip(step.blocks, earlier.blocks, strict=False)) if a != b), 0
                )
                assert one.cached_tokens >= whole * 32 - 32
                assert before.cached_tokens <= before.prompt_tokens
    assert point["jobs"] == len(jobs)
    assert point["jobs_per_h"] > 0
    assert point["job_s_p50"] <= point["job_s_p90"]
    assert point["prefix_cache_hit_rate"] == pytest.approx(point["prefix_cache_hit_rate_ideal"], abs=0.05)
    with (run / "sessions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["session"].rpartition("/")[2] for row in rows} == by_name.keys()
    for row in rows:
        its = by_name[row["session"].rpartition("/")[2]]
        hits = sum(one.cached_tokens for one in its) / sum(one.prompt_tokens for one in its)
        assert float(row["prefix_cache_hit_rate"]) == pytest.approx(hits)
    # of those that were sent at the same moment the cache may have seen either one first
    measured, best = (sum(float(row[name]) * int(row["input_tokens"]) for row in rows) for name in HITS)
    assert 0.9 * best <= measured <= best


def asked(t, tokens, ids, **more):
    return {"t": t, "type": "n", "in": tokens, "out": 5, "hash_ids": ids, "api_time": 0.2, **more}


@pytest.mark.slow
def test_a_job_as_published_sets_have_it(run_main, tmp_path):
    """The marker of a sub-agent at its end, its times from its start, think times that contain its work, a sub-agent within it,
    ids for whole blocks only, and the same ids in other jobs for other text."""
    inmost = {"t": 0.5, "type": "subagent", "status": "completed", "duration_ms": 300, "requests": [asked(0, 70, [9])]}
    inner = [asked(0, 130, [8, 9], think_time=0.0), inmost, asked(0.9, 200, [8, 9, 10], think_time=0.7)]
    marker = {"t": 1.5, "type": "subagent", "status": "completed", "duration_ms": 1200, "requests": inner}
    entries = [asked(0, 200, [1, 2, 3]), marker, asked(2.0, 330, [1, 2, 3, 4, 5], think_time=1.8)]
    path = tmp_path / "published.json"
    path.write_text(json.dumps([{"id": f"j{n}", "block_size": 64, "requests": entries} for n in range(2)]))
    _, found, _, _ = replay(run_main, tmp_path, path, "engine=vllm", "launch=simulated")
    by_name = sessions(found)
    assert by_name.keys() == {f"j{n}{child}" for n in range(2) for child in ("", ".0", ".0.0")}
    for number in range(2):
        main, child, (leaf,) = (by_name[f"j{number}{name}"] for name in ("", ".0", ".0.0"))
        assert [one.prompt_tokens for one in (*main, *child, leaf)] == [200, 330, 130, 200, 70]
        # a cache of blocks of 16 tokens may miss the last one: a tokenizer joins its end with what follows
        assert [one.cached_tokens for one in (*main, *child, leaf)] == pytest.approx([0, 192, 0, 128, 0], abs=16)
        pauses = [
            (after.sent_ns - before.ended_ns) / 1e9
            for before, after in ((main[0], child[0]), (child[0], leaf), (leaf, child[1]), (child[1], main[1]))
        ]
        assert pauses == pytest.approx([0, 0, 0.5, 0.6], abs=0.05)


@pytest.mark.slow
def test_real_answers_and_a_stored_run(run_main, tmp_path, unseen):
    """The model's own answers in the history against a server; the run's requests are a trace of their own."""
    words = (
        "engine=vllm",
        "launch=emulated",
        "launch.time_scale=0.002",
        "workload.history=real",
        "workload.idle_cap_s=0.1",
    )
    _, found, _, run = replay(run_main, tmp_path, unseen, *words)
    stored = agent_jobs(str(run / "requests.parquet"))
    assert len(stored) == len(sessions(found))
    assert {step.input_tokens for job in stored for step in job.steps} == set(found["prompt_tokens"])
    words = ("engine=sglang", "launch=simulated", "study.name=again", f"workload.path={run / 'requests.parquet'}")
    run_main(*WORDS, *words, f"load.requests={len(found)}", code=0)
    again = pd.read_parquet(run_of(tmp_path, "again") / "requests.parquet")
    assert sorted(again[~again["warmup"]]["prompt_tokens"]) == sorted(found["prompt_tokens"])


def test_a_preview_needs_no_file(run_main):
    """The set that ships."""
    done = run_main("workload=agent_trace", "--preview", code=0)
    assert "agent_trace" in done.stdout
