"""A study that decides and a tune, with jobs in processes of their own (submitit_local), killed at bad moments."""

from __future__ import annotations

import os
import signal
import time

import pandas as pd
import pytest

from support.clusters import job_within_point
from support.commands import COMMAND_LIMIT_S, servebench_started
from support.results import document, status
from support.waiting import wait_until

COMMON = (
    *("hydra/launcher=submitit_local", "hydra.launcher.runs_per_machine=2"),
    *("launch=emulated", "launch.time_scale=0.01"),
    *("gpu=rtx5090", "model=qwen2.5-7b-instruct", "workload=unique", "workload.input_tokens=16", "study.name=s"),
    *("workload.output_tokens=48", "load.concurrency=[8]"),
    *("load.requests=64", "load.self_check=never", "tracking=none"),
)
KINDS = {
    "decided": ("-m", *COMMON, "engine=vllm,sglang", "study.until=decided", "study.starts=3"),
    "tune": (
        *("tune", *COMMON, "engine=vllm", "tune.space=space.yaml", "tune.trials=8", "tune.count=4"),
        *("tune.final_starts=2", "tune.finalists=1"),
    ),
}


@pytest.fixture
def study(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("SERVEBENCH_LEASES", str(tmp_path / "leases"))
    (tmp_path / "space.yaml").write_text("parameters: {engine.max_num_seqs: {values: [1, 2, 4]}}")
    return tmp_path / "outputs/s"


def points(study):
    return pd.concat([pd.read_parquet(file).assign(run=file.parent.name) for file in study.glob("*/points.parquet")])


def check(study, kind, said):
    assert status(study) == "finished"
    assert {status(file.parent) for file in study.glob("*/run.json")} == {"finished"}
    found = points(study)
    assert found.groupby(["run", "repeat"]).size().max() == 1
    assert not list(study.glob("*/at_work.json"))
    if kind == "tune":
        answer = document(study / "tune_answer.json")
        assert answer["best"] is not None
        assert answer["spent"] <= 8
    else:
        assert found.groupby("run")["start_id"].nunique().min() >= 2
        assert "engine minutes" in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_starts_run_at_once_and_a_killed_job_is_submitted_again(study, tmp_path, kind):
    # not the stock settings of a tune, without which there is none
    spools = "0[1-9]*/raw/*.spool" if kind == "tune" else "*/raw/*.spool"
    with servebench_started(tmp_path, *KINDS[kind]) as process:
        wait_until(lambda: len(list(study.glob("*/at_work.json"))) == 2, process=process)
        os.kill(wait_until(lambda: job_within_point(study, spools), process=process), signal.SIGKILL)
        said, failed = process.communicate(timeout=COMMAND_LIMIT_S)
    assert process.returncode == 0, failed
    assert "it is submitted again" in failed
    check(study, kind, said)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_after_kill_9_of_the_command_its_jobs_end_and_a_resume_goes_on(study, tmp_path, servebench, kind):
    with servebench_started(tmp_path, *KINDS[kind]) as process:
        wait_until(lambda: len(list(study.glob("*/points.parquet"))) >= 2, process=process)
    before = points(study)
    # a busy machine may make points void, which are measured again
    kept = before[before["verdict"] != "void"]
    deadline = time.monotonic() + COMMAND_LIMIT_S
    while (done := servebench("resume", "s")).returncode == 2 and time.monotonic() < deadline:
        # a job of the killed command
        assert "is still running" in done.stderr
    assert done.returncode == 0, done.stderr
    check(study, kind, done.stdout)
    assert set(kept["window_start_ns"]) <= set(points(study)["window_start_ns"])
