"""Exports that other programs accept."""

import csv
import io
import json

import pytest
import yaml

from servebench.cli.main import dispatch
from servebench.contracts.results import Doubt
from servebench.util.errors import ConfigError
from support.studies import SimulatedEngine, SimulatedLoad


@pytest.fixture
def study(make_study):
    shape = {"requests": 40, "levels": (1, 4)}
    return make_study(
        (SimulatedEngine(name="vllm"), SimulatedLoad(**shape, gpu="h100")),
        (SimulatedEngine(name="sglang", fail_share=0.2), SimulatedLoad(**shape)),
        doubts=[Doubt(code="too_short", message="", remedy="")],
    )


def test_csv_has_a_row_a_point_with_its_study(study, capsys):
    assert dispatch(["export", str(study), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["study"], row["run"], row["concurrency"]) for row in rows] == [
        ("study", "00_vllm_unique", "1"),
        ("study", "00_vllm_unique", "4"),
        ("study", "01_sglang_unique", "1"),
        ("study", "01_sglang_unique", "4"),
    ]
    assert float(rows[0]["ttft_ms_p50"]) > 0
    assert rows[0]["goodput_req_s"] == ""
    assert rows[0]["doubts"] == "too_short"
    assert [row["label"] for row in rows] == ["vllm", "vllm", "sglang", "sglang"]


def test_json_has_manifest_and_points(study, capsys):
    assert dispatch(["export", str(study / "00_vllm_unique"), "--format=json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert run["manifest"]["config"]["engine"]["name"] == "vllm"
    assert run["points"][0]["goodput_req_s"] is None


def test_llm_ds_own_package_accepts_every_report(study, tmp_path, capsys):
    package = pytest.importorskip("llmd_benchmark_report")
    assert dispatch(["export", str(study), "--format", "llm-d", "--out", str(tmp_path / "reports")]) == 0
    paths = sorted((tmp_path / "reports").iterdir())
    assert len(paths) == 4
    for path in paths:
        report = package.load_benchmark_report(yaml.safe_load(path.read_text()))
        aggregate = report.results.request_performance.aggregate
        assert report.scenario.stack[0].standardized.kind == "inference_engine"
        assert report.scenario.load.standardized.tool == "servebench"
        assert aggregate.latency.time_to_first_token.p99 >= aggregate.latency.time_to_first_token.p50 > 0
        assert aggregate.requests.total == 40
    assert aggregate.requests.failures > 0


def test_llm_d_reports_of_a_run_keep_their_ids_and_differ(study, capsys):
    dispatch(["export", str(study / "00_vllm_unique"), "--format", "llm-d"])
    first = capsys.readouterr().out
    dispatch(["export", str(study / "00_vllm_unique"), "--format", "llm-d"])
    assert capsys.readouterr().out == first
    reports = list(yaml.safe_load_all(first))
    assert len({report["run"]["uid"] for report in reports}) == 2
    assert len({report["run"]["eid"] for report in reports}) == 1
    assert reports[0]["scenario"]["load"]["native"]["config"]["servebench"]["verdict"] == "doubtful"


def test_a_run_without_points_has_no_llm_d_report(study):
    (study / "00_vllm_unique" / "points.parquet").unlink()
    with pytest.raises(ConfigError, match="no measured points"):
        dispatch(["export", str(study / "00_vllm_unique"), "--format", "llm-d"])
