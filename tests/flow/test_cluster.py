"""Studies whose runs are jobs: gathered, tracked, cancelled and resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pandas as pd
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
    assert servebench("resume", "s").stderr.startswith("s: 2 of 2 runs are done, 0 to do")


@pytest.mark.timeout(200)
def test_a_job_that_is_killed_is_ordered_again_and_its_points_stand(tmp_path):
    words = [*WORDS, "tracking=none", "load.requests=12", "workload.output_tokens=48"]
    study = subprocess.Popen(
        [sys.executable, "-m", "servebench", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    folder = tmp_path / "outputs" / "s" / RUNS[0]
    deadline = time.monotonic() + 100
    # within the second point
    while not list(folder.glob("raw/c4-r0.spool")):
        assert study.poll() is None, study.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(json.loads((folder / "at_work.json").read_text())["pid"], signal.SIGKILL)
    told = study.communicate(timeout=100)[1]
    assert study.returncode == 0, told
    assert f"{RUNS[0]}: job" in told
    assert "it is ordered again, and the points that are stored stand" in told
    assert list(pd.read_parquet(folder / "points.parquet").point) == ["c1-r0", "c4-r0-a1"]
    requests = pd.read_parquet(folder / "requests.parquet")
    assert requests.groupby("request_id").size().max() == 1


def test_a_study_without_its_launcher_is_refused_before_anything_starts(servebench, tmp_path):
    done = servebench(*WORDS, "hydra/launcher=submitit_slurm", env={"PATH": ""})
    assert done.returncode == 3
    assert "hydra/launcher=submitit_slurm needs sbatch, and there is none on PATH" in done.stderr
    assert not list((tmp_path / "outputs").glob("*/plan.json"))


def test_a_stored_run_can_be_done_by_hand_and_an_old_order_is_refused(servebench, tmp_path):
    from servebench.contracts.cluster import Order
    from servebench.node import carry_out

    done = servebench(*WORDS, "tracking=none", "load.concurrency=[1]", "hydra.launcher.retries=0", "engine=vllm")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "outputs" / "s"
    order = Order(
        study=str(folder),
        run="00_vllm_unique",
        title="t",
        ticket="of an older command",
        gpus=0,
        runs_per_machine=1,
        cluster_gives_gpus=True,
    )
    answer = carry_out(order)
    assert answer.outcome is None
    assert answer.refused == "00_vllm_unique was ordered by a command that has ended since; a later one has it done"
    twice = servebench("work", "s", "00_vllm_unique")
    assert (twice.returncode, twice.stderr) == (2, "servebench: 00_vllm_unique is finished already\n")
    shutil.rmtree(folder / "00_vllm_unique")
    again = servebench("work", "s", "00_vllm_unique")
    assert (again.returncode, again.stderr) == (0, "00_vllm_unique: finished\n")
    unknown = servebench("work", "s", "07_x")
    assert (unknown.returncode, unknown.stderr) == (2, "servebench: s has no run '07_x'; it has 00_vllm_unique\n")
