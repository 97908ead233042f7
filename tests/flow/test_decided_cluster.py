"""`study.until=decided` with jobs in processes of their own (submitit_local), killed at bad moments."""

from __future__ import annotations

import json
import os
import signal
import time

import pandas as pd
import pytest

from support.clusters import job_within_point
from support.commands import COMMAND_LIMIT_S, servebench_started
from support.waiting import wait_until

WORDS = (
    *("-m", "hydra/launcher=submitit_local", "hydra.launcher.runs_per_machine=2", "engine=vllm,sglang"),
    *("launch=emulated", "launch.time_scale=0.01", "gpu=rtx5090", "model=qwen2.5-7b-instruct", "workload=unique"),
    *("workload.input_tokens=16", "workload.output_tokens=48", "load.concurrency=[8]", "load.requests=64"),
    *("load.self_check=never", "tracking=none", "study.name=s", "study.until=decided", "study.starts=3"),
)


@pytest.fixture
def study(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("SERVEBENCH_LEASES", str(tmp_path / "leases"))
    return tmp_path / "outputs/s"


def points(study):
    return pd.concat([pd.read_parquet(file).assign(run=file.parent.name) for file in study.glob("*/points.parquet")])


def check(study, said):
    assert json.loads((study / "study.json").read_text())["status"] == "finished"
    assert {json.loads(file.read_text())["status"] for file in study.glob("*/run.json")} == {"finished"}
    found = points(study)
    assert found.groupby("run")["start_id"].nunique().min() >= 2
    assert found.groupby(["run", "repeat"]).size().max() == 1
    assert "engine minutes" in said
    assert not list(study.glob("*/at_work.json"))


@pytest.mark.slow
def test_starts_run_at_once_and_a_killed_job_is_submitted_again(study, tmp_path):
    with servebench_started(tmp_path, *WORDS) as process:
        wait_until(lambda: len(list(study.glob("*/at_work.json"))) == 2, process=process)
        os.kill(wait_until(lambda: job_within_point(study, "*/raw/*.spool"), process=process), signal.SIGKILL)
        told, failed = process.communicate(timeout=COMMAND_LIMIT_S)
    assert process.returncode == 0, failed
    assert "it is submitted again" in failed
    check(study, told)


@pytest.mark.slow
def test_after_kill_9_of_the_command_its_jobs_end_and_a_resume_goes_on(study, tmp_path, servebench):
    with servebench_started(tmp_path, *WORDS) as process:
        wait_until(lambda: len(list(study.glob("*/points.parquet"))) == 2, process=process)
    before = points(study)
    # a busy machine may make points void, which are measured again
    kept = before[before["verdict"] != "void"]
    deadline = time.monotonic() + COMMAND_LIMIT_S
    while (done := servebench("resume", "s")).returncode == 2 and time.monotonic() < deadline:
        # a job of the killed command
        assert "is still running" in done.stderr
    assert done.returncode == 0, done.stderr
    check(study, done.stdout)
    assert set(kept["window_start_ns"]) <= set(points(study)["window_start_ns"])
