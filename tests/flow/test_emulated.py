"""Whole studies on emulated engines, and their faults, through the public command."""

import pandas as pd
import psutil
import pytest

from support.results import document, run_of

CARD = ("launch=emulated", "launch.time_scale=0.002", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "tracking=none")
SMALL = ("load.concurrency=[4]", "load.requests=40", "load.warmup_requests=4", "load.hold_level=false", "study.name=s")
SHORT = ("workload=unique", "workload.output_tokens=16")


@pytest.mark.slow
def test_three_engines_without_any_of_them(servebench, tmp_path):
    """Nothing installed, no weights, no GPU: a study of three, and everything made is marked."""
    done = servebench(
        "-m",
        "engine=vllm,sglang,trtllm",
        "workload=rag_prefix",
        "workload.output_tokens=64",
        "study.starts=1",
        *CARD,
        *SMALL,
        code=0,
    )
    for engine in ("vllm", "sglang", "trtllm"):
        point = pd.read_csv(run_of(tmp_path, run=f"*_{engine}_*") / "points.csv").iloc[0]
        assert (point.launch, point.requests_ok, point.requests_failed) == ("emulated", 40, 0)
        assert point.emulated in (True, "true")
        assert "emulated" in point.doubts.split(";")
        assert point.prefix_cache_hit_rate > 0.3
        assert point.server_generation_tokens == 40 * 64
        manifest = document(run_of(tmp_path, run=f"*_{engine}_*") / "manifest.json")
        assert manifest["config"]["launch"]["name"] == "emulated"
        assert f"emulated {engine};" in (run_of(tmp_path, run=f"*_{engine}_*") / "engine.log").read_text()
    assert done.stdout.count("(emulated)") >= 3


FAULTS = {
    # fault: (words, exit code, in stderr or stdout)
    "dies in loading": (["launch.faults.die_in_loading=true"], 4, "lower engine.gpu_memory_fraction"),
    "hangs in loading": (
        ["launch.faults.hang_in_loading=true", "engine.ready_timeout_s=2"],
        4,
        "was not ready within 2 s",
    ),
    "out of memory": (["launch.faults.out_of_memory_at=4"], 4, "died"),
    "no such fault": (["launch.faults.explode=true"], 2, "launch.faults"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_clear_line(name, servebench, run_main, tmp_path):
    """With an exit code, and no process is left running."""
    words, code, expected = FAULTS[name]
    done = (run_main if name == "no such fault" else servebench)(
        "engine=vllm", *CARD, *SMALL, *SHORT, *words, code=code
    )
    assert expected in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]
    assert left == []


@pytest.mark.slow
def test_requests_that_break_are_rows(servebench, tmp_path):
    """Every tenth reset: four of forty, counted, doubted, and the rest measured."""
    servebench("engine=vllm", *CARD, *SMALL, *SHORT, "launch.faults.reset_every=10", code=0)
    requests = pd.read_parquet(run_of(tmp_path) / "requests.parquet")
    broken = requests[requests.outcome != "ok"]
    assert len(broken) == 4
    assert set(broken.outcome) <= {"reset", "truncated"}
    assert "errors" in pd.read_csv(run_of(tmp_path) / "points.csv").doubts.item()


@pytest.mark.slow
def test_a_lying_usage_is_caught(servebench, tmp_path):
    """Twice the tokens asked for: the answers do not have their length."""
    servebench("engine=vllm", *CARD, *SMALL, *SHORT, "launch.faults.usage_factor=2.0", code=0)
    point = pd.read_csv(run_of(tmp_path) / "points.csv").iloc[0]
    assert point.output_tokens_mean == 32
    assert "short_answers" in point.doubts


@pytest.mark.slow
def test_conversations_go_on_with_what_was_answered(run_main, tmp_path):
    """Two workers, real history: the engine finds the answers in its cache, so hits come near to the ideal's."""
    words = ("workload=multi_turn", "workload.output_tokens=32", "load.workers=2", "load.self_check=never")
    run_main("engine=vllm", *CARD, *SMALL, *words, code=0)
    point = pd.read_csv(run_of(tmp_path) / "points.csv").iloc[0]
    requests = pd.read_parquet(run_of(tmp_path) / "requests.parquet")
    assert (point.requests_ok, point.requests_failed) == (40, 0)
    assert point.prefix_cache_hit_rate_ideal > 0.7
    assert abs(point.prefix_cache_hit_rate - point.prefix_cache_hit_rate_ideal) < 0.1
    for _, session in requests[~requests.warmup].groupby("session_id"):
        growth = session.sort_values("request_id").prompt_tokens.diff().dropna()
        # 48 new tokens, 32 of the answer, and the words for two roles
        assert growth.between(80, 90).all()
        assert session.planned_prompt_tokens.isna().sum() == len(session) - 1
