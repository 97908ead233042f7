"""Studies whose runs are jobs: gathered, tracked, cancelled and resumed."""

import os
import re
import shutil
import signal

import pandas as pd
import pytest

from support.clusters import job_within_point
from support.commands import COMMAND_LIMIT_S, servebench_started
from support.results import document, status
from support.waiting import has_ended, wait_ended, wait_until

WORDS = (
    *("-m", "hydra/launcher=submitit_local", "engine=vllm,sglang", "workload=unique", "launch=emulated"),
    *("launch.time_scale=0.01", "gpu=rtx5090", "model=qwen2.5-7b-instruct"),
    *("load.concurrency=[1,4]", "load.requests=8"),
    *("study.name=s", "load.self_check=never", "workload.output_tokens=16"),
)
RUNS = ("00_vllm_unique", "01_sglang_unique")


@pytest.fixture(autouse=True)
def own_leases(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("SERVEBENCH_LEASES", str(tmp_path / "leases"))


@pytest.mark.slow
def test_runs_are_jobs_and_their_results_come_together(servebench, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    # both at once, and both ask for the same port: one waits for the other
    done = servebench(*WORDS, "hydra.launcher.runs_per_machine=2", "engine.port=28123", code=0)
    for name in RUNS:
        assert f"{name}: finished on" in done.stderr
        manifest = document(tmp_path / "outputs/s" / name / "manifest.json")
        assert manifest["status"] == "finished"
        assert "port-28123" in manifest["place"]["leases"]
        assert all(entry["stored"] == entry["planned"] + entry["fillers"] for entry in manifest["ledger"])
        assert len(pd.read_csv(tmp_path / "outputs" / "s" / name / "points.csv")) == 2
    assert "next: servebench report" in done.stdout
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/outputs/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("servebench").experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert [run.info.status for run in runs] == ["FINISHED"] * 3
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parents[0].info.run_id}
    assert len(parents) == 1
    assert re.search(r"\b2 of 2\b", servebench("resume", "s").stderr)


def within_point(study, folder, point):
    """Wait until the point has begun; return the id of the process that runs it, which is stopped."""
    return wait_until(lambda: job_within_point(folder, f"raw/{point}.spool"), process=study)


LONG = (*WORDS, "tracking=none", "load.requests=32", "workload.output_tokens=48")


@pytest.mark.slow
def test_a_job_that_is_killed_is_ordered_again_and_its_points_stand(tmp_path):
    folder = tmp_path / "outputs" / "s" / RUNS[0]
    with servebench_started(tmp_path, *LONG) as study:
        os.kill(within_point(study, folder, "c4-r0"), signal.SIGKILL)
        told = study.communicate(timeout=COMMAND_LIMIT_S)[1]
    assert study.returncode == 0, told
    assert f"{RUNS[0]}: job" in told
    assert list(pd.read_parquet(folder / "points.parquet").point) == ["c1-r0", "c4-r0-a1"]
    requests = pd.read_parquet(folder / "requests.parquet")
    assert requests.groupby("request_id").size().max() == 1


@pytest.mark.slow
def test_ctrl_c_ends_the_jobs_in_order(tmp_path):
    folder = tmp_path / "outputs" / "s" / RUNS[0]
    # so long that the job is still in it when the signal has reached it
    with servebench_started(tmp_path, *LONG, "load.requests=64", "load.concurrency=[4,1]") as study:
        job = within_point(study, folder, "c1-r0")
        study.send_signal(signal.SIGINT)
        os.kill(job, signal.SIGCONT)
        told = study.communicate(timeout=COMMAND_LIMIT_S)[1]
    assert study.returncode == 130, told
    assert has_ended(job)
    assert status(tmp_path / "outputs/s" / RUNS[0]) == "interrupted"
    assert status(tmp_path / "outputs/s") == "interrupted"
    assert pd.read_parquet(folder / "points.parquet").point.iloc[0] == "c4-r0"
    assert not (tmp_path / "outputs" / "s" / RUNS[1]).exists()


@pytest.mark.slow
def test_jobs_outlive_the_command_and_are_not_disturbed(servebench, tmp_path):
    folder = tmp_path / "outputs" / "s" / RUNS[0]
    with servebench_started(tmp_path, *WORDS, "tracking=none", "load.requests=60", "load.concurrency=[1]") as study:
        # stopped for as long as the other command needs
        job = within_point(study, folder, "c1-r0")
    early = servebench("resume", "s")
    os.kill(job, signal.SIGCONT)
    assert early.returncode == 2
    assert re.search(rf"{RUNS[0]} on \S+, job \d+", early.stderr)
    wait_ended(job)
    assert status(tmp_path / "outputs/s" / RUNS[0]) == "finished"
    servebench("resume", "s", "--here", code=0)
    assert list(pd.read_parquet(folder / "points.parquet").point) == ["c1-r0"]


@pytest.mark.slow
def test_a_study_without_its_launcher_is_refused_before_anything_starts(servebench, tmp_path):
    done = servebench(*WORDS, "hydra/launcher=submitit_slurm", env={"PATH": ""}, code=3)
    assert "hydra/launcher=submitit_slurm" in done.stderr
    assert "sbatch" in done.stderr
    assert not list((tmp_path / "outputs").glob("*/plan.json"))


@pytest.mark.slow
def test_a_stored_run_can_be_done_by_hand_and_an_old_order_is_refused(servebench, tmp_path):
    from servebench.cluster.agent import execute_order
    from support.orchestration import run_order

    servebench(*WORDS, "tracking=none", "load.concurrency=[1]", "hydra.launcher.retries=0", "engine=vllm", code=0)
    folder = tmp_path / "outputs" / "s"
    reply = execute_order(run_order(study=str(folder), run="00_vllm_unique", ticket="of an older command"))
    assert reply.outcome is None
    assert reply.refused is not None
    twice = servebench("work", "s", "00_vllm_unique")
    assert (twice.returncode, len(twice.stderr.splitlines())) == (2, 1)
    shutil.rmtree(folder / "00_vllm_unique")
    servebench("work", "s", "00_vllm_unique", code=0)
    unknown = servebench("work", "s", "07_x", code=2)
    assert "07_x" in unknown.stderr
    assert "00_vllm_unique" in unknown.stderr
