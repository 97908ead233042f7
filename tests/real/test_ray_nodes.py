"""Studies on a Ray cluster of three nodes with addresses and disks of their own."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from net_nodes import NetNodes, missing

WORDS = (
    *("-m", "hydra/launcher=ray", "engine=vllm,sglang,trtllm", "workload=unique", "launch=emulated"),
    *("launch.time_scale=0.01", "gpu=rtx5090", "model=qwen2.5-7b-instruct"),
    *("load.concurrency=[1,4]", "load.requests=20"),
    *("study.name=s", "load.self_check=never", "workload.output_tokens=32"),
)
TUNE = (
    *("tune", *(word for word in WORDS if not word.startswith(("-m", "engine=", "load.")))),
    *("engine=vllm", "load.concurrency=[8]", "load.requests=64", "load.self_check=never", "tune.space=space.yaml"),
    *("tune.trials=8", "tune.count=4", "tune.final_starts=2", "tune.finalists=1", "tracking=none"),
)
RUNS = ("00_vllm_unique", "01_sglang_unique", "02_trtllm_unique")

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(600),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    # what the nodes write in `apart` the others do not see
    (folder / "apart").mkdir()
    cluster = NetNodes(folder, private=(folder / "apart",))
    cluster.start()
    yield cluster
    cluster.stop()


def start(nodes, folder, *words):
    folder.mkdir(exist_ok=True)
    command = nodes.inside(0, sys.executable, "-m", "servebench", *words)
    return subprocess.Popen(command, cwd=folder, env=nodes.env(0), stderr=subprocess.PIPE, text=True)


def manifest(folder, name):
    return json.loads((folder / "outputs" / "s" / name / "manifest.json").read_text())


def points(folder, name):
    return list(pd.read_parquet(folder / "outputs" / "s" / name / "points.parquet").point)


@pytest.mark.parametrize("disk", ["shared", "apart"])
def test_runs_are_spread_and_gathered(nodes, disk):
    folder = nodes.folder / disk / "spread" if disk == "apart" else nodes.folder / "spread"
    process = start(nodes, folder, *WORDS)
    told = process.communicate(timeout=250)[1]
    assert process.returncode == 0, told
    assert {manifest(folder, name)["place"]["host"] for name in RUNS} == {"node0", "node1", "node2"}
    for name in RUNS:
        assert points(folder, name) == ["c1-r0", "c4-r0"]
        assert all(entry["stored"] == entry["planned"] for entry in manifest(folder, name)["ledger"])
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder}/outputs/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("servebench").experiment_id])
    parents = [run.info.run_id for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(runs) == 4
    assert len(parents) == 1
    assert {run.info.status for run in runs} == {"FINISHED"}


@pytest.mark.parametrize("disk", ["shared", "apart"])
def test_candidates_of_a_tune_start_on_all_nodes_at_once(nodes, disk):
    folder = nodes.folder / disk / "tune" if disk == "apart" else nodes.folder / "tune"
    folder.mkdir()
    (folder / "space.yaml").write_text("parameters: {engine.max_num_seqs: {values: [1, 2, 4]}}")
    process = start(nodes, folder, *TUNE)
    told = process.communicate(timeout=500)[1]
    assert process.returncode == 0, told
    study = folder / "outputs" / "s"
    names = [path.parent.name for path in study.glob("*/points.parquet")]
    assert {manifest(folder, name)["place"]["host"] for name in names} == {"node0", "node1", "node2"}
    found = json.loads((study / "tune_answer.json").read_text())
    assert found["best"] is not None
    assert found["spent"] <= 8


def test_a_node_that_dies_loses_no_stored_point(nodes):
    """Last: the node is gone afterwards."""
    folder = nodes.folder / "killed"
    process = start(nodes, folder, *WORDS, "tracking=none")
    deadline = time.monotonic() + 200
    found = None
    while found is None:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        for name in RUNS:
            run = folder / "outputs" / "s" / name
            if list(run.glob("raw/c4-r0.spool")):
                host = json.loads((run / "at_work.json").read_text())["host"]
                found = (name, int(host.removeprefix("node"))) if host != "node0" else found
        time.sleep(0.05)
    name, node = found
    nodes.kill(node)
    told = process.communicate(timeout=300)[1]
    assert process.returncode == 0, told
    assert f"{name}: " in told
    assert "submitted again" in told
    assert manifest(folder, name)["place"]["host"] != f"node{node}"
    assert points(folder, name) == ["c1-r0", "c4-r0-a1"]
    requests = pd.read_parquet(folder / "outputs" / "s" / name / "requests.parquet")
    assert requests.groupby("request_id").size().max() == 1
