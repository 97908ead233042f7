"""One study sends one set of prompts to all of its engines."""

from dataclasses import replace

import pandas as pd
import pytest

from servebench.engine.launchers.emulated import SimulatedLauncher
from servebench.engine.tokenize import EmulatedTokenizer
from support.fake_engine import CoarseTokenizer


@pytest.mark.slow
def test_three_engines_of_a_study_that_count_differently_get_the_same_prompts(run_main, tmp_path, monkeypatch):
    """Without the study's prompts the second and third engine would get longer ones for the same 128 tokens."""
    tokenizers = {"vllm": EmulatedTokenizer, "sglang": CoarseTokenizer, "trtllm": CoarseTokenizer}
    describe = SimulatedLauncher.describe

    def described(self, engine, context, settings):
        return replace(describe(self, engine, context, settings), tokenizer=tokenizers[engine.name]())

    monkeypatch.setattr(SimulatedLauncher, "describe", described)
    small = ("load.concurrency=[2]", "load.requests=20", "load.warmup_requests=4", "tracking=none", "study.name=s")
    words = ("engine=vllm,sglang,trtllm", "launch=simulated", "workload=unique", "workload.output_tokens=8", *small)
    run_main("-m", "study.starts=1", *words, "gpu=rtx4090", "model=qwen2.5-1.5b-instruct", code=0)
    runs = [
        pd.read_parquet(tmp_path / "outputs" / "s" / run / "requests.parquet").set_index("request_id").sort_index()
        for run in ("00_vllm_unique", "01_sglang_unique", "02_trtllm_unique")
    ]
    counted = [run.loc[~run["filler"], "prompt_tokens"].to_dict() for run in runs]
    assert counted[0] == counted[1] == counted[2]
    points = [pd.read_parquet(p) for p in sorted(tmp_path.glob("outputs/s/*/points.parquet"))]
    assert "prompt_size_approximate" not in str(points[0].to_dict())
    assert "prompt_size_approximate" in str(points[1].to_dict())
    run_main(*words[1:], "engine=sglang", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "study.name=alone", code=0)
    assert not (tmp_path / "outputs" / "alone" / "prompts").exists(), "a study of one run stores none"
