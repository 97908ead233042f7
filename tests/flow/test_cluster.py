"""Studies whose runs are jobs: gathered, tracked, cancelled and resumed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pandas as pd
import psutil
import pytest

WORDS = (
    *("-m", "hydra/launcher=submitit_local", "engine=vllm,sglang", "workload=unique", "launch=emulated"),
    *(
        "launch.time_scale=0.01",
        "gpu=rtx5090",
        "model=qwen2.5-7b-instruct",
        "load.concurrency=[1,4]",
        "load.requests=8",
    ),
    *("study.name=s", "load.self_check=never", "workload.output_tokens=16"),
)
RUNS = ("00_vllm_unique", "01_sglang_unique")


@pytest.fixture(autouse=True)
def own_leases(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("SERVEBENCH_LEASES", str(tmp_path / "leases"))


def stored(tmp_path, name, file):
    return json.loads((tmp_path / "outputs" / "s" / name / file).read_text())


@pytest.mark.timeout(200)
def test_runs_are_jobs_and_their_results_come_together(servebench, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    # both at once, and both ask for the same port: one waits for the other
    done = servebench(*WORDS, "hydra.launcher.runs_per_machine=2", "engine.port=28123")
    assert done.returncode == 0, done.stderr
    for name in RUNS:
        assert f"{name}: finished on" in done.stderr
        manifest = stored(tmp_path, name, "manifest.json")
        assert manifest["status"] == "finished"
        assert "port-28123" in manifest["place"]["leases"]
        assert all(entry["stored"] == entry["planned"] for entry in manifest["ledger"])
        assert len(pd.read_csv(tmp_path / "outputs" / "s" / name / "points.csv")) == 2
    assert "study" in done.stdout
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/outputs/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("servebench").experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert [run.info.status for run in runs] == ["FINISHED"] * 3
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parents[0].info.run_id}
    assert len(parents) == 1
    assert servebench("resume", "s").stderr.startswith("s: 2 of 2 runs are finished, 0 to do")


def started(tmp_path, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "servebench", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )


def within_point(study, folder, point):
    """Wait for it; the process that is at work on the run."""
    deadline = time.monotonic() + 100
    while not list(folder.glob(f"raw/{point}.spool")):
        assert study.poll() is None, study.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return json.loads((folder / "at_work.json").read_text())["pid"]


LONG = (*WORDS, "tracking=none", "load.requests=16", "workload.output_tokens=48")


@pytest.mark.timeout(200)
def test_a_job_that_is_killed_is_ordered_again_and_its_points_stand(tmp_path):
    study = started(tmp_path, *LONG)
    folder = tmp_path / "outputs" / "s" / RUNS[0]
    os.kill(within_point(study, folder, "c4-r0"), signal.SIGKILL)
    told = study.communicate(timeout=100)[1]
    assert study.returncode == 0, told
    assert f"{RUNS[0]}: job" in told
    assert "submitted again" in told
    assert list(pd.read_parquet(folder / "points.parquet").point) == ["c1-r0", "c4-r0-a1"]
    requests = pd.read_parquet(folder / "requests.parquet")
    assert requests.groupby("request_id").size().max() == 1


@pytest.mark.timeout(200)
def test_ctrl_c_ends_the_jobs_in_order(tmp_path):
    study = started(tmp_path, *LONG)
    folder = tmp_path / "outputs" / "s" / RUNS[0]
    job = within_point(study, folder, "c4-r0")
    study.send_signal(signal.SIGINT)
    told = study.communicate(timeout=100)[1]
    assert study.returncode == 130, told
    assert not psutil.pid_exists(job)
    assert stored(tmp_path, RUNS[0], "run.json")["status"] == "interrupted"
    assert stored(tmp_path, "", "study.json")["status"] == "interrupted"
    assert pd.read_parquet(folder / "points.parquet").point.iloc[0] == "c1-r0"
    assert not (tmp_path / "outputs" / "s" / RUNS[1]).exists()


@pytest.mark.timeout(200)
def test_jobs_outlive_the_command_and_are_not_disturbed(servebench, tmp_path):
    # long enough for the command that is to be refused
    study = started(tmp_path, *WORDS, "tracking=none", "load.requests=60", "load.concurrency=[1]")
    folder = tmp_path / "outputs" / "s" / RUNS[0]
    job = within_point(study, folder, "c1-r0")
    study.kill()
    study.wait()
    # the job has it too, so that its end would be waited for
    study.stderr.close()
    early = servebench("resume", "s")
    assert early.returncode == 2
    assert re.search(rf"s is still running \({RUNS[0]} on \S+, job \d+\); it cannot be resumed", early.stderr)
    deadline = time.monotonic() + 60
    while psutil.pid_exists(job) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert stored(tmp_path, RUNS[0], "run.json")["status"] == "finished"
    done = servebench("resume", "s", "--here")
    assert done.returncode == 0, done.stderr
    assert "1 of 2 runs are finished, 1 to do" in done.stderr
    assert list(pd.read_parquet(folder / "points.parquet").point) == ["c1-r0"]


def test_a_study_without_its_launcher_is_refused_before_anything_starts(servebench, tmp_path):
    done = servebench(*WORDS, "hydra/launcher=submitit_slurm", env={"PATH": ""})
    assert done.returncode == 3
    assert "needs sbatch" in done.stderr
    assert not list((tmp_path / "outputs").glob("*/plan.json"))


def test_a_stored_run_can_be_done_by_hand_and_an_old_order_is_refused(servebench, tmp_path):
    from servebench.cluster.agent import execute_order
    from servebench.contracts.cluster import RunOrder

    done = servebench(*WORDS, "tracking=none", "load.concurrency=[1]", "hydra.launcher.retries=0", "engine=vllm")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "outputs" / "s"
    order = RunOrder(
        study=str(folder),
        run="00_vllm_unique",
        title="t",
        ticket="of an older command",
        gpus=0,
        runs_per_machine=1,
        cluster_gives_gpus=True,
    )
    reply = execute_order(order)
    assert reply.outcome is None
    assert reply.refused is not None
    twice = servebench("work", "s", "00_vllm_unique")
    assert (twice.returncode, len(twice.stderr.splitlines())) == (2, 1)
    shutil.rmtree(folder / "00_vllm_unique")
    again = servebench("work", "s", "00_vllm_unique")
    assert (again.returncode, again.stderr) == (0, "00_vllm_unique: finished\n")
    unknown = servebench("work", "s", "07_x")
    assert (unknown.returncode, unknown.stderr) == (2, "servebench: s has no run '07_x'; it has 00_vllm_unique\n")
