"""Studies on a real Slurm of two nodes on this machine."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from local_slurm import NODES, LocalSlurm, missing

WORDS = (
    *("-m", "hydra/launcher=submitit_slurm", "hydra.launcher.partition=bench", "hydra.launcher.cpus_per_task=1"),
    "hydra.launcher.additional_parameters.exclusive=true",
    *("engine=vllm,sglang", "workload=unique", "launch=emulated"),
    *("launch.time_scale=0.01", "gpu=rtx5090", "model=qwen2.5-7b-instruct"),
    *("load.concurrency=[1,4]", "load.requests=20"),
    *("study.name=s", "load.self_check=never", "workload.output_tokens=32", "tracking=none"),
)
TUNE = (
    *("tune", *(word for word in WORDS if not word.startswith(("-m", "engine=", "load.")))),
    *("engine=vllm", "load.concurrency=[8]", "load.requests=64", "load.self_check=never", "tune.space=space.yaml"),
    *("tune.trials=8", "tune.count=4", "tune.final_starts=2", "tune.finalists=1"),
)
RUNS = ("00_vllm_unique", "01_sglang_unique")
BOTH_POINTS = ["c1-r0", "c4-r0"]

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(600),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    # Slurm's sockets want a short path
    cluster = LocalSlurm(tmp_path_factory.mktemp("slurm"))
    cluster.start()
    yield cluster
    cluster.stop()


class Study:
    def __init__(self, folder: Path, slurm: LocalSlurm) -> None:
        self.folder = folder
        self.env = {**slurm.env, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "servebench", *words]
        return subprocess.Popen(command, cwd=self.folder, env=self.env, stderr=subprocess.PIPE, text=True)

    def run(self, name: str) -> Path:
        return self.folder / "outputs" / "s" / name

    def within_second_point(self, study: subprocess.Popen[str], name: str) -> dict:
        deadline = time.monotonic() + 120
        while not list(self.run(name).glob("raw/c4-r0.spool")):
            assert study.poll() is None, study.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return json.loads((self.run(name) / "at_work.json").read_text())

    def points(self, name: str) -> list[str]:
        return list(pd.read_parquet(self.run(name) / "points.parquet").point)

    def node(self, name: str) -> str:
        return json.loads((self.run(name) / "manifest.json").read_text())["place"]["host"]


def test_a_study_runs_on_both_nodes(slurm, tmp_path):
    study = Study(tmp_path, slurm)
    process = study.start(*WORDS)
    told = process.communicate(timeout=200)[1]
    assert process.returncode == 0, told
    assert {study.node(name) for name in RUNS} == set(NODES)
    assert [study.points(name) for name in RUNS] == [BOTH_POINTS, BOTH_POINTS]


def test_a_cancelled_job_is_resumed(slurm, tmp_path):
    study = Study(tmp_path, slurm)
    process = study.start(*WORDS)
    job = study.within_second_point(process, RUNS[1])["job"]
    subprocess.run([shutil.which("scancel"), job], env=study.env, check=True)
    told = process.communicate(timeout=200)[1]
    assert process.returncode == 130, told
    assert f"{RUNS[1]}: stopped by Ctrl-C or a signal; what was measured is kept" in told
    resumed = study.start("resume", "s")
    told = resumed.communicate(timeout=200)[1]
    assert resumed.returncode == 0, told
    assert "1 of 2 runs are finished, 1 to do; 1 of their points are kept" in told
    assert study.points(RUNS[1]) == ["c1-r0", "c4-r0-a1"]


def test_candidates_of_a_tune_start_on_both_nodes_at_once(slurm, tmp_path):
    (tmp_path / "space.yaml").write_text("parameters: {engine.max_num_seqs: {values: [1, 2, 4]}}")
    study = Study(tmp_path, slurm)
    process = study.start(*TUNE)
    told = process.communicate(timeout=500)[1]
    assert process.returncode == 0, told
    runs = [path.parent.name for path in study.run("").glob("*/points.parquet")]
    assert {study.node(name) for name in runs} == set(NODES)
    found = json.loads((study.run("") / "tune_answer.json").read_text())
    assert found["best"] is not None
    assert found["spent"] <= 8


def test_a_node_that_dies_loses_no_point(slurm, tmp_path):
    """Last: the node is gone afterwards."""
    study = Study(tmp_path, slurm)
    process = study.start(*WORDS)
    for name in RUNS:
        study.within_second_point(process, name)
    squeue = ["squeue", "--noheader", "--array", "--format=%i %N"]
    jobs = dict(line.split() for line in subprocess.check_output(squeue, env=study.env, text=True).splitlines())
    dead = NODES[1]
    lost = next(
        name for name in RUNS if jobs[json.loads((study.run(name) / "at_work.json").read_text())["job"]] == dead
    )
    slurm.kill_node(dead)
    told = process.communicate(timeout=500)[1]
    assert process.returncode == 0, told
    assert study.node(lost) == NODES[0]
    assert study.points(lost) == ["c1-r0", "c4-r0-a1"]
    requests = pd.read_parquet(study.run(lost) / "requests.parquet")
    assert requests.groupby("request_id").size().max() == 1
