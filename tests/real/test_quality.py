"""Quality of a real model on the embedded engine, through the public command."""

import importlib.util
import json

import pandas as pd
import pytest

from support.commands import run_servebench

LOAD = (
    *("load.concurrency=[1]", "load.requests=4", "load.warmup_requests=0"),
    *("workload=unique", "workload.output_tokens=8"),
    *("study.name=s", "tracking=none", "engine.threads=1"),
)


def servebench(tmp_path, *words):
    run_servebench(tmp_path, *LOAD, *words, code=0, limit_s=1700)
    return [pd.read_parquet(path) for path in sorted(tmp_path.glob("outputs/s/*/quality.parquet"))]


@pytest.mark.timeout(1800)
def test_a_hundred_questions_of_mmlu_and_twenty_of_gsm8k(tmp_path):
    """A model of 135 million parameters guesses; what counts is that answers are real, read and graded."""
    for name in ("mmlu", "gsm8k"):
        (tmp_path / name).mkdir()
    (mmlu,) = servebench(tmp_path / "mmlu", "quality=mmlu", "quality.items=100")
    (gsm8k,) = servebench(tmp_path / "gsm8k", "quality=gsm8k", "quality.items=20", "quality.max_tokens=200")
    assert (len(mmlu), len(gsm8k)) == (100, 20)
    for frame in (mmlu, gsm8k):
        assert set(frame.outcome) == {"ok"}
        assert frame.output_tokens.min() >= 1
        assert frame.answer.nunique() > 10
    assert set(mmlu.extracted.dropna()) <= set("ABCD")
    assert mmlu.extracted.notna().mean() > 0.8
    assert 0.08 <= mmlu.correct.astype(float).mean() <= 0.45
    assert gsm8k.extracted.notna().mean() > 0.5


@pytest.mark.timeout(900)
def test_a_local_task_of_the_harness(tmp_path):
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm-eval is not installed: pip install 'servebench-graders[lm-eval]'")
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    data = tasks / "sums.jsonl"
    data.write_text("\n".join(json.dumps({"question": f"{n} + 1 =", "answer": str(n + 1)}) for n in range(8)))
    (tasks / "sums.yaml").write_text(
        "task: sums\ndataset_path: json\noutput_type: generate_until\ntest_split: test\n"
        f"dataset_kwargs: {{data_files: {{test: {data}}}}}\n"
        'doc_to_text: "{{question}}"\ndoc_to_target: "{{answer}}"\n'
        "generation_kwargs: {max_gen_toks: 8}\nmetric_list:\n  - metric: exact_match\n"
    )
    words = ("quality=lm_eval", "quality.tasks=[sums]", f"quality.path={tasks}", "quality.items=6")
    (rows,) = servebench(tmp_path, *words)
    assert list(rows.benchmark.unique()) == ["lm_eval.sums"]
    assert rows.item_id.nunique() == len(rows) == 6
    assert (rows.answer.str.len() > 0).all()
    assert rows.correct.notna().all()
