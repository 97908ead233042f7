"""`workload.hit_rate`: the prefix cache as a dial, through the public command."""

import pandas as pd
import pytest

WORDS = (
    *("workload=unique", "workload.input_tokens=512", "workload.output_tokens=16", "gpu=rtx4090"),
    *("model=qwen2.5-1.5b-instruct", "tracking=none", "study.starts=1", "load.concurrency=[8]", "load.requests=100"),
)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_the_cache_finds_the_share_that_was_asked_for(run_main, tmp_path, engine):
    """By the counts of engines that keep blocks, single tokens, or a prompt in each slot."""
    run_main(
        f"engine={engine}", "launch=simulated", *WORDS, "workload.hit_rate=[0,0.5,0.8,0.95]", "study.name=h", code=0
    )
    paths = sorted((tmp_path / "outputs" / "h").glob("*/points.parquet"))
    points = pd.concat([pd.read_parquet(path) for path in paths])
    assert list(points["prefix_cache_hit_rate_asked"]) == [0, 0.5, 0.8, 0.95]
    assert list(points["prefix_cache_hit_rate"]) == pytest.approx([0, 0.5, 0.8, 0.95], abs=0.02)
    assert not points["doubts"].map(lambda codes: "hit_rate_missed" in codes or "cache_contaminated" in codes).any()


@pytest.mark.slow
def test_a_rate_that_was_not_reached_is_a_warning(run_main, tmp_path):
    """Here the cache is off."""
    words = ("engine=vllm", "launch=simulated", "engine.prefix_caching=false", "workload.hit_rate=0.5", "study.name=h")
    run_main(*WORDS, *words, code=0)
    (path,) = (tmp_path / "outputs" / "h").glob("*/points.parquet")
    assert "hit_rate_missed" in pd.read_parquet(path)["doubts"].iloc[0]
