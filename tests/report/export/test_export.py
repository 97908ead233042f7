"""Exports that other programs accept."""

import csv
import io
import json

import pytest

from servebench.cli.main import dispatch
from servebench.contracts.results import Doubt
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
