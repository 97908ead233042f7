"""Scorers on a real model of the embedded engine, through the public command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from servebench.quality.sandbox import sandbox_faults

QUICK = ("load.concurrency=[1]", "load.requests=2", "load.warmup_requests=0", "load.self_check=never", "tracking=none")
SHORT = ("workload=unique", "workload.input_tokens=32", "workload.output_tokens=8")


def servebench(tmp_path, study, *words):
    done = subprocess.run(
        [sys.executable, "-m", "servebench", *QUICK, *words, f"study.name={study}", "engine.threads=1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob(f"outputs/{study}/*/quality.parquet")
    return pd.read_parquet(path)


@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_twenty_functions_of_humaneval(tmp_path):
    """A model of 135 million parameters writes hardly a right one; what counts is that real answers are code that was run."""
    if faults := sandbox_faults():
        pytest.skip(faults[0])
    rows = servebench(tmp_path, "s", *SHORT, "quality=humaneval", "quality.items=20", "quality.max_tokens=200")
    assert len(rows) == rows.item_id.nunique() == 20
    assert set(rows.outcome) == {"ok"}
    assert rows.extracted.notna().mean() > 0.7
    outcomes = [json.loads(one)["outcome"] for one in rows.detail.dropna()]
    assert set(outcomes) <= {"passed", "failed", "left_early", "timeout", "memory", "too_much_output", "killed"}
    assert (rows.correct.astype(bool) == (rows.detail == '{"outcome": "passed"}')).all()


@pytest.mark.timeout(1800)
def test_constrained_json_is_valid_and_its_twins_are_not(tmp_path):
    rows = servebench(
        tmp_path,
        "s",
        "load.requests=12",
        "workload=structured_json",
        "workload.tiers=[flat]",
        "workload.twins=true",
        "workload.output_tokens=200",
        "quality=json",
    )
    shares = rows.groupby("task").correct.mean().astype(float)
    assert shares["constrained"] > shares["unconstrained"]
    constrained = rows[rows.task == "constrained"]
    ended = constrained[constrained.finish_reason == "stop"]
    assert len(ended) >= 3
    assert ended.correct.astype(bool).all()
    assert constrained.score.between(0, 1).all()
    assert constrained.score.max() > 0.2


@pytest.mark.timeout(1800)
def test_an_engine_beside_itself_and_beside_another(tmp_path):
    """llama.cpp twice says the same; vLLM on the same weights, where it is installed, parts from it somewhere."""
    words = (*SHORT, "quality=parity", "quality.items=12", "quality.max_tokens=32", "quality.concurrency=[4]")
    for study in ("a", "b"):
        rows = servebench(tmp_path, study, *words)
        kept = json.loads(rows.detail[0])["alone"]
        assert len(kept["tokens"]) == len(kept["logprobs"]) > 4
        assert "".join(kept["tokens"]).startswith(rows.answer[0])
    assert beside(tmp_path, "a", "b")["across"]["equal"] >= 11
    executable, model = (os.environ.get(f"SERVEBENCH_REAL_{name}") for name in ("VLLM", "MODEL"))
    if not executable or not model:
        pytest.skip("SERVEBENCH_REAL_VLLM and SERVEBENCH_REAL_MODEL are not set: no second engine")
    folder = tmp_path / "my" / "engine"
    folder.mkdir(parents=True)
    (folder / "real.yaml").write_text(
        "defaults: [vllm, _self_]\n"
        f"executable: {executable}\ndtype: bfloat16\nmax_model_len: 2048\nmax_num_seqs: 16\n"
        'extra_args: {enforce-eager: true}\nenv: {HF_HUB_OFFLINE: "1", VLLM_NO_USAGE_STATS: "1", '
        'VLLM_CPU_KVCACHE_SPACE: "1", VLLM_CPU_OMP_THREADS_BIND: "0", VLLM_CPU_NUM_OF_RESERVED_CPU: "0"}\n'
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "servebench",
            "--config-dir",
            str(tmp_path / "my"),
            "engine=real",
            f"model.path={model}",
            *QUICK,
            *words,
            "study.name=v",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = beside(tmp_path, "a", "v")
    assert found["across"]["n"] == 12
    assert found["across"]["unit"] == "tokens"
    assert 0 < found["across"]["logprob_gap_mean"] < 1


def beside(tmp_path, first, second):
    done = subprocess.run(
        [sys.executable, "-m", "servebench", "compare", first, second, "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ((found,),) = (one["parity"] for one in json.loads(done.stdout))
    return found
