"""The scorers through the public command: code that is run, JSON of the load, a judge, and two engines side by side."""

import json
import shutil

import pandas as pd
import pytest

from servebench.engine.supervisor.ports import free_port
from servebench.quality.sandbox import sandbox_errors

SMALL = ("load.concurrency=[2]", "load.requests=4", "load.warmup_requests=0", "load.self_check=never", "tracking=none")


def table(tmp_path, study):
    (path,) = tmp_path.glob(f"outputs/{study}/*/quality.parquet")
    return pd.read_parquet(path)


def attached(url, study, *words):
    load = ("workload=unique", "workload.output_tokens=8", f"study.name={study}", *SMALL)
    return ("engine=openai", "launch=attach", f"launch.base_url={url}", "model.name=tiny", *load, *words)


def verdict_or(say):
    """An endpoint that is its own judge."""
    return lambda prompt: '{"reason": "plain", "score": 4}' if prompt.startswith("You judge") else say(prompt)


@pytest.mark.slow
def test_a_judge_and_two_engines_side_by_side(servebench, tmp_path, endpoint):
    """The second engine says something else to a third of the prompts; a judge that is down is told in a line."""
    first, _ = endpoint(answer=verdict_or(lambda prompt: f"I say {len(prompt)}."))
    second, _ = endpoint(answer=verdict_or(lambda prompt: f"I say {len(prompt) if len(prompt) % 3 else 'nothing'}."))
    words = ("quality=all", "quality.tasks=[parity]", "quality.concurrency=[4]", "quality.items=all")
    for study, url in (("a", first), ("b", second)):
        done = servebench(*attached(url, study, *words))
        assert done.returncode == 0, done.stderr
        (run,) = tmp_path.glob(f"outputs/{study}/*/manifest.json")
        (parity,) = json.loads(run.read_text())["quality"]
        assert (parity["accuracy"], parity["n"]) == (1.0, 64)
    rows = table(tmp_path, "a")
    assert set(rows.benchmark) == {"parity"}
    assert json.loads(rows.detail[0])["alone"] == {"tokens": None, "logprobs": None}
    done = servebench("compare", "a", "b", "--json", "--markdown", "page.md")
    assert done.returncode == 0, done.stderr
    (compared,) = json.loads(done.stdout)["comparisons"]
    (parity,) = compared["parity"]
    assert parity["finding"] == "more than itself"
    assert (parity["across"]["n"], parity["across"]["unit"]) == (64, "words")
    assert compared["quality"] == []
    assert "parity at concurrency 4" in (tmp_path / "page.md").read_text()
    told = servebench("compare", "a", "b").stdout
    assert "parity at concurrency 4" in " ".join(told.split())
    judge = ("quality=judge", "quality.items=6", "quality.concurrency=[2]", "quality.judge.model=tiny")
    done = servebench(*attached(first, "j", *judge, f"quality.judge.base_url={first}"))
    assert done.returncode == 0, done.stderr
    assert "judge 75.0" in done.stdout
    assert set(table(tmp_path, "j").score) == {0.75}
    done = servebench(*attached(first, "d", *judge, "quality.judge.base_url=http://127.0.0.1:9/v1"))
    assert done.returncode == 0, done.stderr
    assert "not_judged" in done.stdout
    assert "http://127.0.0.1:9/v1" in done.stdout
    assert set(table(tmp_path, "d").outcome) == {"ok"}


@pytest.mark.slow
def test_an_emulated_engine_can_be_the_judge(servebench, tmp_path):
    """Held to the schema of a verdict it gives one; so that a study with a judge can be tried without any."""
    port = free_port("127.0.0.1")
    words = ("engine=vllm", "launch=emulated", "launch.time_scale=0.01", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct")
    judge = (f"quality.judge.base_url=http://127.0.0.1:{port}/v1", "quality.judge.model=Qwen/Qwen2.5-1.5B-Instruct")
    asked = ("quality=judge", "quality.items=4", "quality.max_tokens=8", "quality.judge.enforce_schema=true", *judge)
    load = ("workload=unique", "workload.output_tokens=8", f"engine.port={port}", *SMALL)
    done = servebench(*words, *load, *asked, "study.name=s")
    assert done.returncode == 0, done.stderr
    rows = table(tmp_path, "s")
    assert rows.score.between(0, 1).all()
    assert {json.loads(one)["judge_outcome"] for one in rows.detail} == {"ok"}
    assert "quality: judge" in done.stdout


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
    )
    assert done.returncode == 0, done.stderr
    rows = table(tmp_path, "s")
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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_code_is_run(servebench, tmp_path, endpoint):
    if faults := sandbox_errors():
        pytest.skip(faults[0])
    rows = [
        {
            "task_id": f"own/{n}",
            "prompt": f'def add{n}(x):\n    """Add {n}."""\n',
            "entry_point": f"add{n}",
            "test": f"def check(candidate):\n    assert candidate(1) == {n + 1}\n",
        }
        for n in range(4)
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))

    def say(prompt):
        number = prompt.split("def add")[1][0]
        wrong = number == "3"
        return f"```python\ndef add{number}(x):\n    return x + {9 if wrong else number}\n```"

    url, _ = endpoint(answer=say)
    done = servebench(*attached(url, "s", "quality=humaneval", f"quality.path={path}", "quality.concurrency=[2]"))
    assert done.returncode == 0, done.stderr
    found = table(tmp_path, "s").set_index("item_id")
    assert found.correct.to_dict() == {"own/0": True, "own/1": True, "own/2": True, "own/3": False}
    assert found.note["own/3"].startswith("failed: AssertionError")


@pytest.mark.slow
def test_code_is_not_asked_for_where_it_cannot_be_run(servebench, tmp_path, endpoint):
    url, _ = endpoint(answer=lambda prompt: "x")
    done = servebench(*attached(url, "s", "quality=humaneval"), env={"PATH": str(tmp_path)})
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert "bwrap" in line
    assert "bubblewrap" in line
