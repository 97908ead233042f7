"""Scorers on a real model of the embedded engine, through the public command."""

import json
import shutil

import pandas as pd
import pytest

from servebench.engine.supervisor.ports import free_port
from servebench_graders.sandbox import sandbox_errors
from support.commands import run_servebench

QUICK = ("load.concurrency=[1]", "load.requests=2", "load.warmup_requests=0", "load.self_check=never", "tracking=none")
SHORT = ("workload=unique", "workload.input_tokens=32", "workload.output_tokens=8")


PARITY = ("quality=parity", "quality.items=12", "quality.max_tokens=32", "quality.concurrency=[4]")


def servebench(tmp_path, study, *words, env=None):
    threads = () if "engine=real" in words else ("engine.threads=1",)
    run_servebench(tmp_path, *QUICK, *words, f"study.name={study}", *threads, env=env, code=0, limit_s=1700)
    (path,) = tmp_path.glob(f"outputs/{study}/*/quality.parquet")
    return pd.read_parquet(path)


@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_twenty_functions_of_humaneval(tmp_path):
    """A model of 135 million parameters writes hardly a right one; what counts is that real answers are code that was run."""
    if faults := sandbox_errors():
        pytest.skip(faults[0])
    rows = servebench(tmp_path, "s", *SHORT, "quality=humaneval", "quality.items=20", "quality.max_tokens=200")
    assert len(rows) == rows.item_id.nunique() == 20
    assert set(rows.outcome) == {"ok"}
    assert rows.extracted.notna().mean() > 0.7
    outcomes = [json.loads(one)["outcome"] for one in rows.detail.dropna()]
    assert set(outcomes) <= {"passed", "failed", "left_early", "timeout", "memory", "too_much_output", "killed"}
    graded = rows[rows.detail.notna()]
    assert [outcome == "passed" for outcome in outcomes] == graded.correct.astype(bool).to_list()
    assert graded[~graded.correct.astype(bool)].note.notna().all()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ["llamacpp", "vllm"])
def test_constrained_json_is_valid_and_its_twins_are_not(tmp_path, request, engine):
    load = ("load.requests=12", "workload=structured_json", "workload.tiers=[flat]", "workload.twins=true")
    words = (*words_of(engine, request), *load, "workload.output_tokens=200", "quality=json")
    rows = servebench(tmp_path, "s", *words)
    shares = rows.groupby("task").correct.mean().astype(float)
    assert shares["constrained"] > shares["unconstrained"]
    constrained = rows[rows.task == "constrained"]
    ended = constrained[constrained.finish_reason == "stop"]
    assert len(ended) >= 3
    assert ended.correct.astype(bool).all()
    assert constrained.score.between(0, 1).all()
    assert constrained.score.max() > 0.2


@pytest.mark.timeout(1800)
def test_an_engine_beside_itself(tmp_path):
    """llama.cpp twice says the same."""
    words = (*SHORT, *PARITY)
    for study in ("a", "b"):
        rows = servebench(tmp_path, study, *words)
        kept = json.loads(rows.detail[0])["alone"]
        assert len(kept["tokens"]) == len(kept["logprobs"]) > 4
        assert "".join(kept["tokens"]).startswith(rows.answer[0])
    assert beside(tmp_path, "a", "b")["across"]["equal"] >= 11


@pytest.mark.timeout(1800)
def test_an_engine_beside_itself_and_beside_another(tmp_path, vllm_on_a_cpu):
    """The same weights in two number formats part somewhere; what each differs from itself is told beside."""
    rows = {
        "a": servebench(tmp_path, "a", *SHORT, *PARITY),
        "v": servebench(tmp_path, "v", *SHORT, *PARITY, *vllm_on_a_cpu),
    }
    for own in rows.values():
        kept = json.loads(own.detail[0])["alone"]
        assert len(kept["tokens"]) == len(kept["logprobs"]) > 4
    assert list(rows["a"].item_digest) == list(rows["v"].item_digest)
    found = beside(tmp_path, "a", "v")
    assert found["across"]["n"] == 12
    assert found["across"]["unit"] == "tokens"
    assert found["across"]["equal"] < 12
    assert 0 < found["across"]["logprob_gap_mean"] < 1
    assert found["own_first"]["n"] == found["own_second"]["n"] == 12
    assert found["finding"] in {"more than itself", "no more than itself", "too small to tell"}


def beside(tmp_path, first, second):
    done = run_servebench(tmp_path, "compare", first, second, "--json", code=0)
    ((found,),) = (one["parity"] for one in json.loads(done.stdout)["comparisons"])
    return found


def words_of(engine, request):
    return request.getfixturevalue("vllm_on_a_cpu") if engine == "vllm" else ()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ["llamacpp", "vllm"])
def test_every_scorer_that_asks_on_one_start(tmp_path, request, engine):
    """MMLU, GSM8K, HumanEval and parity, one after another; offline."""
    tasks = ["mmlu", "gsm8k", "parity", *([] if sandbox_errors() else ["humaneval"])]
    asked = ("quality=all", f"quality.tasks=[{','.join(tasks)}]", "quality.items=16", "quality.max_tokens=96")
    rows = servebench(tmp_path, "s", *SHORT, *asked, *words_of(engine, request), env={"HF_HUB_OFFLINE": "1"})
    assert set(rows.benchmark) == set(tasks)
    assert set(rows.groupby("benchmark").size()) == {16}
    assert set(rows.outcome) == {"ok"}
    assert rows.correct.notna().all()
    assert rows.groupby("benchmark").answer.nunique().min() > 2
    mmlu = rows[rows.benchmark == "mmlu"]
    assert mmlu.extracted.notna().mean() > 0.5
    assert set(mmlu.extracted.dropna()) <= set("ABCD")
    assert (rows.output_tokens <= 96).all()
    assert (rows.latency_ms > 0).all()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ["llamacpp", "vllm"])
def test_summaries_of_the_load_are_graded(tmp_path, request, engine):
    """Summaries by ROUGE, which has a score and nothing that is right or wrong."""
    load = ("workload=summarization", "workload.input_tokens=400", "workload.events=3", "workload.output_tokens=64")
    rows = servebench(tmp_path, "r", "load.requests=6", *load, "quality=rouge", *words_of(engine, request))
    assert len(rows) == 6
    assert rows.score.between(0.02, 0.9).all()
    assert rows.correct.isna().all()
    detail = json.loads(rows.detail[0])
    assert set(detail) == {"rouge1", "rouge2", "rougeL"}


@pytest.mark.timeout(1800)
def test_a_real_model_as_a_judge_of_its_own_answers(tmp_path):
    """It is no good judge; every answer has a verdict or a reason, tokens are counted, and the run ends."""
    port = free_port("127.0.0.1")
    judge = (f"quality.judge.base_url=http://127.0.0.1:{port}/v1", "quality.judge.model=judge")
    asked = ("quality=judge", "quality.items=4", "quality.max_tokens=48", "quality.judge.max_tokens=64")
    prices = ("quality.judge.input_usd_per_mtok=1.0", "quality.judge.output_usd_per_mtok=2.0")
    rows = servebench(tmp_path, "j", *SHORT, f"engine.port={port}", *asked, *judge, *prices)
    assert len(rows) == 4
    assert set(rows.outcome) == {"ok"}
    detail = [json.loads(one) for one in rows.detail]
    assert {one["judge_outcome"] for one in detail} <= {"ok", "nonsense"}
    assert all(one["judge_input_tokens"] > 100 and one["judge_output_tokens"] > 1 for one in detail)
    assert all(one["judge_cost_usd"] > 0 for one in detail)
    assert (rows.score.notna() | rows.note.notna()).all()
