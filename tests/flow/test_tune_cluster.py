"""`servebench tune` with jobs in processes of their own (submitit_local), killed at bad moments."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from support.commands import COMMAND_LIMIT_S, servebench_started
from support.tunes import answer, points, statuses
from support.waiting import wait_until

WORDS = (
    *("tune", "hydra/launcher=submitit_local", "hydra.launcher.runs_per_machine=2", "engine=vllm", "launch=emulated"),
    *("launch.time_scale=0.01", "gpu=rtx5090", "model=qwen2.5-7b-instruct", "workload=unique", "tracking=none"),
    *("workload.input_tokens=16", "workload.output_tokens=48", "load.concurrency=[8]", "load.requests=64"),
    *("load.self_check=never", "study.name=t", "tune.space=space.yaml", "tune.trials=8", "tune.count=4"),
    *("tune.final_starts=2", "tune.finalists=1"),
)


@pytest.fixture
def study(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("SERVEBENCH_LEASES", str(tmp_path / "leases"))
    (tmp_path / "space.yaml").write_text("parameters: {engine.max_num_seqs: {values: [1, 2, 4]}}")
    return tmp_path / "outputs/t"


def check_answer(folder):
    found = answer(folder)
    assert found["best"] is not None
    assert found["spent"] <= 8
    assert statuses(folder) == ("finished", {"finished"})
    assert points(folder).groupby(["run", "repeat"]).size().max() == 1
    assert not list((folder / "outputs/t").glob("*/at_work.json"))


@pytest.mark.slow
def test_candidates_are_measured_at_once_and_a_killed_job_is_submitted_again(study, tmp_path):
    with servebench_started(tmp_path, *WORDS) as process:
        wait_until(lambda: len(list(study.glob("*/at_work.json"))) == 2, process=process)
        wait_until(lambda: list(study.glob("0[1-9]*/raw/*.spool")), process=process)
        victim = next(study.glob("0[1-9]*/raw/*.spool")).parents[1]
        os.kill(json.loads((victim / "at_work.json").read_text())["pid"], signal.SIGKILL)
        told = process.communicate(timeout=COMMAND_LIMIT_S)[1]
    assert process.returncode == 0, told
    assert "it is submitted again" in told
    check_answer(tmp_path)


@pytest.mark.slow
def test_after_kill_9_of_the_command_its_jobs_end_and_a_resume_goes_on(study, tmp_path, servebench):
    with servebench_started(tmp_path, *WORDS) as process:
        wait_until(lambda: len(list(study.glob("*/points.parquet"))) >= 2, process=process)
    before = points(tmp_path)
    deadline = time.monotonic() + COMMAND_LIMIT_S
    while (done := servebench("resume", "t")).returncode == 2 and time.monotonic() < deadline:
        # a job of the killed command
        assert "is still running" in done.stderr
    assert done.returncode == 0, done.stderr
    check_answer(tmp_path)
    assert set(before["window_start_ns"]) <= set(points(tmp_path)["window_start_ns"])
