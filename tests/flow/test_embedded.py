"""The main job, whole: the embedded engine, a real model, files, MLflow, and nothing left running."""

from pathlib import Path

import pandas as pd
import psutil
import pytest

from support.commands import run_servebench
from support.results import document


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two runs on one start of the engine."""
    folder = tmp_path_factory.mktemp("main")
    words = ["-m", "workload=unique,sharegpt", "load.concurrency=[1,2]", "load.requests=4", "load.warmup_requests=1"]
    words += ["workload.output_tokens=8", "engine.max_num_seqs=2", "engine.threads=1", "load.self_check=never"]
    done = run_servebench(folder, *words, "study.name=s", "study.quiet_wait_s=0", code=0)
    return done, folder / "outputs" / "s"


@pytest.mark.slow
def test_the_tables_are_on_standard_output(study):
    """Each run has its table, and the study the answer of all."""
    done, _ = study
    assert done.stdout.count("trust") >= 2
    assert "next: servebench report" in done.stdout


def test_every_request_is_a_row_with_exact_counts(study):
    """Prompts of `unique` are exactly as long as asked, by the server's own count; answers too; no cache hit of note."""
    _, folder = study
    frame = pd.read_parquet(folder / "00_llamacpp_unique" / "requests.parquet")
    measured = frame[~frame.warmup]
    assert len(measured) == 8
    assert set(measured.outcome) == {"ok"}
    assert set(measured.prompt_tokens) == {128}
    assert set(measured.output_tokens) == {8}
    assert set(measured.counted_by) == {"usage"}
    assert measured.cached_tokens.max() <= 1
    assert set(measured.stamp_source) == {"kernel"}
    assert (measured.first_event_ns > measured.sent_ns).all()
    assert all(len(stamps) >= 7 and sorted(stamps) == list(stamps) for stamps in measured.event_ns)


def test_the_points_are_a_row_each(study):
    """The public columns are there, and the numbers make sense."""
    _, folder = study
    points = pd.read_csv(folder / "01_llamacpp_sharegpt" / "points.csv")
    assert list(points.concurrency) == [1, 2]
    assert (points.requests_ok == 4).all()
    assert (points.output_throughput_tok_s > 0).all()
    # where other programs disturbed every request of a point, there is no latency to tell
    assert ((points.ttft_ms_p50 > 0) | points.doubts.str.contains("machine_shared")).all()
    assert set(points.doubts.str.contains("too_few_requests")) == {True}


def test_the_manifest_tells_the_whole_start(study):
    """Phases in order, the exact command, version and endpoint; the second run shared the start of the first."""
    _, folder = study
    first, second = (document(path) for path in sorted(folder.glob("*/manifest.json")))
    names = [phase["name"] for phase in first["cold_start"]["phases"]]
    assert names[0] == "spawned"
    assert names[-1] == "first_token"
    assert {"listening", "healthy"} <= set(names)
    seconds = [phase["seconds"] for phase in first["cold_start"]["phases"]]
    assert seconds == sorted(seconds)
    assert first["engine_version"].startswith("xllamacpp ")
    assert "servebench_llamacpp.server" in first["command"]["argv"]
    assert (first["cold_start"]["shared"], second["cold_start"]["shared"]) == (False, True)
    assert second["stop"]["leftover"] == []
    assert first["endpoint"] == second["endpoint"]


def test_nothing_is_left_running(study):
    """No process of the command outlives it."""
    _, folder = study
    argv = document(folder / "00_llamacpp_unique/manifest.json")["command"]["argv"]
    assert [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == argv] == []


@pytest.mark.slow
def test_mlflow_has_a_parent_and_two_children(study):
    """Metrics have the load level as step; statuses and tags are right."""
    from mlflow import MlflowClient

    _, folder = study
    client = MlflowClient(tracking_uri=f"sqlite:///{folder.parent / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("servebench").experiment_id])
    parents = [run for run in runs if run.data.tags["servebench.kind"] == "study"]
    children = [run for run in runs if run.data.tags["servebench.kind"] == "run"]
    assert [run.info.status for run in runs] == ["FINISHED"] * 3
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parents[0].info.run_id}
    assert {run.data.params["workload.name"] for run in children} == {"unique", "sharegpt"}
    steps = [metric.step for metric in client.get_metric_history(children[0].info.run_id, "output_throughput_tok_s")]
    assert sorted(steps) == [1, 2]
    (first,) = [run for run in children if run.data.params["workload.name"] == "unique"]
    artifacts = {item.path for item in client.list_artifacts(first.info.run_id)}
    assert {"points.csv", "manifest.json", "requests.parquet", "engine.log"} <= artifacts


@pytest.mark.slow
def test_a_manifest_can_be_run_again(study, tmp_path):
    """`run --lock` gives a run with the same config and the same prompts."""
    _, folder = study
    manifest = folder / "00_llamacpp_unique" / "manifest.json"
    run_servebench(tmp_path, "run", "--lock", str(manifest), code=0)
    (again,) = Path(tmp_path).glob("outputs/*/*/manifest.json")
    old, new = document(manifest), document(again)
    assert {k: v for k, v in new["config"].items() if k != "study"} == {
        k: v for k, v in old["config"].items() if k != "study"
    }
    one, two = (pd.read_parquet(path.parent / "requests.parquet").query("not warmup") for path in (manifest, again))
    assert list(one.sort_values("request_id").prompt_tokens) == list(two.sort_values("request_id").prompt_tokens)
