"""Several starts of each engine: in turns, each with an id, compared in pairs, continued after an interruption."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from support.results import points

SMALL = ("load.concurrency=[2]", "load.requests=20", "load.warmup_requests=0", "tracking=none", "workload=unique")
SHORT = ("workload.output_tokens=8", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "study.name=s")


@pytest.mark.slow
def test_engines_take_turns_start_by_start_and_are_compared_in_pairs(run_main, tmp_path):
    run_main("-m", "engine=vllm,sglang", "launch=emulated", "study.starts=2", *SMALL, *SHORT, code=0)
    vllm, sglang = (
        points(tmp_path / "outputs/s" / "00_vllm_unique"),
        points(tmp_path / "outputs/s" / "01_sglang_unique"),
    )
    for run in (vllm, sglang):
        assert list(run["repeat"]) == [0, 1]
        assert run["start_id"].nunique() == 2
    order = pd.concat([vllm, sglang]).sort_values("window_start_ns")["engine"]
    assert list(order) == ["vllm", "sglang", "sglang", "vllm"], "rounds alternate, so that drift falls on both alike"
    compared = run_main("compare", "s", "--json", "--with-doubtful")
    rows = [row for row in json.loads(compared.stdout)["comparisons"][0]["rows"] if row["starts"]]
    assert rows
    assert all((row["starts"], row["paired"]) == ([2, 2], True) for row in rows)


@pytest.mark.slow
def test_a_start_that_is_missing_is_measured_by_resume(run_main, tmp_path):
    """The points of the finished start are kept, and the missing one comes from a start of its own."""
    words = ("engine=vllm", "launch=simulated", "study.starts=3", *SMALL, *SHORT)
    assert run_main(*words).returncode == 0
    folder = tmp_path / "outputs" / "s" / "00_vllm_unique"
    before = points(tmp_path / "outputs/s" / "00_vllm_unique")
    before[before["repeat"] < 2].to_parquet(folder / "points.parquet")
    state = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(state | {"status": "interrupted"}))
    requests = pd.read_parquet(folder / "requests.parquet")
    requests[~requests["point"].str.contains("-r2")].to_parquet(folder / "requests.parquet")
    run_main("resume", "s", code=0)
    after = points(tmp_path / "outputs/s" / "00_vllm_unique")
    assert list(after["repeat"]) == [0, 1, 2]
    assert list(after["start_id"][:2]) == list(before["start_id"][:2])
    assert after["start_id"].nunique() == 3


def test_a_running_server_cannot_be_started_again(run_main):
    done = run_main(
        "engine=vllm", "launch=attach", "launch.base_url=http://127.0.0.1:9/v1", "study.starts=2", *SMALL, code=2
    )
    assert "study.starts=2" in done.stderr.splitlines()[-1]


def test_a_search_has_one_start(run_main):
    done = run_main("engine=vllm", "launch=simulated", "load=slo", "study.starts=2", "slo=interactive", code=2)
    assert "study.starts=2" in done.stderr
