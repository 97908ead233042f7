"""Rounds of starts as jobs, on a cluster that executes orders in this process as soon as they are submitted."""

from __future__ import annotations

import json
import signal

import pandas as pd
import pytest

from support.clusters import InProcess, cluster_commands

WORDS = (
    *("-m", "hydra/launcher=submitit_local", "hydra.launcher.runs_per_machine=4", "engine=vllm", "launch=simulated"),
    *("gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "workload=unique", "workload.output_tokens=16", "tracking=none"),
    *("load.concurrency=[1,4]", "load.requests=400", "launch.wander_sd=0.005", "launch.start_sd=0.005"),
    *("launch.slowdown=1,1.2", "study.until=decided", "study.name=s", "study.budget=4h"),
)
RUNS = ["00_vllm_unique", "01_vllm_unique"]


@pytest.fixture
def command(run_main, tmp_path, monkeypatch):
    return cluster_commands(run_main, tmp_path, monkeypatch)


def points(tmp_path):
    files = sorted((tmp_path / "outputs/s").glob("*/points.parquet"))
    return pd.concat([pd.read_parquet(file).assign(run=file.parent.name) for file in files])


def stored(tmp_path, run, file="run.json"):
    return json.loads((tmp_path / "outputs/s" / run / file).read_text())


def check(tmp_path, done):
    """All is decided, each start is a job with prompts of its own, and no point is measured twice."""
    assert done.returncode == 0, done.stderr
    assert "is slower; " in done.stdout
    assert [stored(tmp_path, run)["status"] for run in RUNS] == ["finished"] * 2
    found = points(tmp_path)
    assert found.groupby(["run", "repeat", "concurrency"]).size().max() == 1
    assert (found.groupby(["run", "repeat"])["start_id"].nunique() == 1).all()
    assert found["start_id"].nunique() == len(found.groupby(["run", "repeat"]))


def test_a_start_of_each_run_is_submitted_at_once_until_all_is_decided(command, tmp_path):
    done, cluster = command(*WORDS)
    check(tmp_path, done)
    assert cluster.batches[:2] == [RUNS, RUNS[::-1]]
    assert all(sorted(batch) == RUNS for batch in cluster.batches), "what ends a run needs no job"
    assert cluster.closed
    assert len(cluster.orders) == points(tmp_path)["start_id"].nunique()
    manifest = stored(tmp_path, RUNS[0], "manifest.json")
    assert manifest["place"]["host"]
    assert manifest["status"] == "finished"
    again, cluster = command("resume", "s")
    assert (again.returncode, cluster.orders) == (0, {})


def test_the_budget_counts_what_all_engines_took(command, tmp_path):
    words = ("launch.slowdown=1,1.0001", "study.budget=200s", "study.starts=12")
    done, cluster = command(*WORDS, *words)
    assert done.returncode == 0, done.stderr
    assert "study.budget=200s" in done.stderr
    assert 4 <= len(cluster.orders) < 24
    assert [stored(tmp_path, run)["status"] for run in RUNS] == ["finished"] * 2


def test_a_lost_job_is_submitted_again(command, tmp_path):
    done, cluster = command(*WORDS, cluster=InProcess(lambda job, _: job == "j2" and "gone"))
    check(tmp_path, done)
    assert len(cluster.orders) == points(tmp_path)["start_id"].nunique() + 1


def test_a_job_that_is_lost_too_often_ends_its_run_and_a_resume_goes_on(command, tmp_path):
    def lost(_, order):
        return order.run == RUNS[1] and order.turns[0].start == 1 and "gone"

    done, _ = command(*WORDS, cluster=InProcess(lost))
    assert done.returncode not in (0, 130)
    assert "servebench resume" in done.stderr
    before = points(tmp_path)
    assert stored(tmp_path, RUNS[1])["status"] == "interrupted"
    done, cluster = command("resume", "s")
    check(tmp_path, done)
    assert cluster.orders["j0"].run == RUNS[1]
    assert set(before["window_start_ns"]) <= set(points(tmp_path)["window_start_ns"])


def test_ctrl_c_and_then_on_this_machine(command, tmp_path):
    def interrupt(job, _):
        if job == "j2":
            signal.raise_signal(signal.SIGINT)

    done, _ = command(*WORDS, cluster=InProcess(interrupt))
    assert done.returncode == 130
    before = points(tmp_path)
    done, cluster = command("resume", "s", "--here")
    check(tmp_path, done)
    assert not cluster.orders
    assert set(before["window_start_ns"]) <= set(points(tmp_path)["window_start_ns"])


def test_questions_that_are_left_at_the_end_are_a_job(command, tmp_path):
    words = [word for word in WORDS if not word.startswith(("engine", "launch", "load.requests"))]
    more = ("engine=vllm,sglang", "launch=emulated", "launch.time_scale=0.01", "load.self_check=never")
    done, cluster = command(*words, *more, "load.requests=16", "study.starts=2", "quality=parity", "quality.items=4")
    assert done.returncode == 0, done.stderr
    last = list(cluster.orders.values())[-2:]
    assert [order.turns[0].measures for order in last] == [False, False]
    assert all(stored(tmp_path, order.run, "manifest.json")["quality"] for order in last)
