"""The scorers through the public command: JSON of the load, and two engines side by side."""

import json

import pandas as pd
import pytest

from support.commands import SMALL, attached, quality_table


@pytest.mark.slow
def test_two_engines_side_by_side(servebench, tmp_path, endpoint):
    """The second engine says something else to a third of the prompts."""
    first, _ = endpoint(answer=lambda prompt: f"I say {len(prompt)}.")
    second, _ = endpoint(answer=lambda prompt: f"I say {len(prompt) if len(prompt) % 3 else 'nothing'}.")
    words = ("quality=all", "quality.tasks=[parity]", "quality.concurrency=[4]", "quality.items=all")
    for study, url in (("a", first), ("b", second)):
        servebench(*attached(url, f"study.name={study}", *SMALL, *words), code=0)
        (run,) = tmp_path.glob(f"outputs/{study}/*/manifest.json")
        (parity,) = json.loads(run.read_text())["quality"]
        assert (parity["accuracy"], parity["n"]) == (1.0, 64)
    rows = quality_table(tmp_path, "a")
    assert set(rows.benchmark) == {"parity"}
    assert json.loads(rows.detail[0])["alone"] == {"tokens": None, "logprobs": None}
    done = servebench("compare", "a", "b", "--json", "--markdown", "page.md", code=0)
    (compared,) = json.loads(done.stdout)["comparisons"]
    (parity,) = compared["parity"]
    assert parity["finding"] == "more than itself"
    assert (parity["across"]["n"], parity["across"]["unit"]) == (64, "words")
    assert compared["quality"] == []
    assert "parity at concurrency 4" in (tmp_path / "page.md").read_text()
    told = servebench("compare", "a", "b").stdout
    assert "parity at concurrency 4" in " ".join(told.split())


@pytest.mark.slow
def test_json_of_the_load_is_graded_at_each_level(servebench, tmp_path):
    words = ("engine=vllm", "launch=emulated", "launch.time_scale=0.002", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct")
    load = ("load.concurrency=[1,4]", "load.requests=8", "load.warmup_requests=2", "load.self_check=never")
    done = servebench(
        *words,
        *load,
        "workload=structured_json",
        "workload.twins=true",
        "quality=json",
        "study.name=s",
        "tracking=none",
        code=0,
    )
    rows = quality_table(tmp_path, "s")
    assert set(rows.benchmark) == {"json.constrained", "json.unconstrained"}
    assert list(rows.groupby("point").size()) == [8, 8]
    assert set(rows.concurrency) == {1, 4}
    assert not rows.item_id.str.startswith("warmup").any()
    constrained = rows[rows.benchmark == "json.constrained"]
    assert constrained.correct.astype(bool).all()
    points = pd.read_csv(next(tmp_path.glob("outputs/s/*/points.csv")))
    share = constrained.groupby("concurrency").correct.mean().astype(float)
    assert list(points.json_compliance) == list(share)
    assert "json.constrained" in done.stdout
