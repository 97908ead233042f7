"""The scorers through the public command: code that is run, and a judge."""

import json

import pytest

from support.commands import SMALL, attached, quality_table
from support.servers import own_port


def verdict_or(say):
    """An endpoint that is its own judge."""
    return lambda prompt: '{"reason": "plain", "score": 4}' if prompt.startswith("You judge") else say(prompt)


@pytest.mark.slow
def test_a_judge(servebench, tmp_path, endpoint):
    """A judge that is down is told in a line."""
    first, _ = endpoint(answer=verdict_or(lambda prompt: f"I say {len(prompt)}."))
    judge = ("quality=judge", "quality.items=6", "quality.concurrency=[2]", "quality.judge.model=tiny")
    done = servebench(*attached(first, "study.name=j", *SMALL, *judge, f"quality.judge.base_url={first}"), code=0)
    assert "judge 75.0" in done.stdout
    assert set(quality_table(tmp_path, "j").score) == {0.75}
    done = servebench(
        *attached(first, "study.name=d", *SMALL, *judge, "quality.judge.base_url=http://127.0.0.1:9/v1"), code=0
    )
    assert "not_judged" in done.stdout
    assert "http://127.0.0.1:9/v1" in done.stdout
    assert set(quality_table(tmp_path, "d").outcome) == {"ok"}


@pytest.mark.slow
def test_an_emulated_engine_can_be_the_judge(servebench, tmp_path):
    """Held to the schema of a verdict it gives one; so that a study with a judge can be tried without any."""
    port = own_port()
    words = ("engine=vllm", "launch=emulated", "launch.time_scale=0.01", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct")
    judge = (f"quality.judge.base_url=http://127.0.0.1:{port}/v1", "quality.judge.model=Qwen/Qwen2.5-1.5B-Instruct")
    asked = ("quality=judge", "quality.items=4", "quality.max_tokens=8", "quality.judge.enforce_schema=true", *judge)
    load = (f"engine.port={port}", *SMALL)
    done = servebench(*words, *load, *asked, "study.name=s", code=0)
    rows = quality_table(tmp_path, "s")
    assert rows.score.between(0, 1).all()
    assert {json.loads(one)["judge_outcome"] for one in rows.detail} == {"ok"}
    assert "quality: judge" in done.stdout


@pytest.mark.slow
def test_code_is_run(working, servebench, tmp_path, endpoint):
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
    servebench(
        *attached(url, "study.name=s", *SMALL, "quality=humaneval", f"quality.path={path}", "quality.concurrency=[2]"),
        code=0,
    )
    found = quality_table(tmp_path, "s").set_index("item_id")
    assert found.correct.to_dict() == {"own/0": True, "own/1": True, "own/2": True, "own/3": False}
    assert found.note["own/3"].startswith("failed: AssertionError")


@pytest.mark.slow
def test_code_is_not_asked_for_where_it_cannot_be_run(servebench, tmp_path, endpoint):
    url, _ = endpoint(answer=lambda prompt: "x")
    done = servebench(*attached(url, "study.name=s", *SMALL, "quality=humaneval"), env={"PATH": str(tmp_path)})
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert "bwrap" in line
    assert "bubblewrap" in line
