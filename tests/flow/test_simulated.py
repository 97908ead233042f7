"""Studies on a virtual clock through the public command."""

import json
from contextlib import ExitStack

import pandas as pd
import pytest

from support.commands import COMMAND_LIMIT_S, servebench_started

SMALL = ("launch=simulated", "load.concurrency=[1,4]", "load.requests=20", "tracking=none", "workload=unique")
ONCE = ("study.starts=1",)
SHORT = ("workload.output_tokens=16", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct")

ON_H100 = (
    "engine=vllm",
    "launch=simulated",
    "workload=unique",
    "tracking=none",
    "gpu=h100",
    "model=qwen2.5-7b-instruct",
)


def points(tmp_path, study):
    frames = [pd.read_parquet(path) for path in sorted((tmp_path / "outputs" / study).glob("*/points.parquet"))]
    stamps = [name for name in frames[0] if name.endswith("_ns")]
    return [frame.drop(columns=["run_id", *stamps], errors="ignore") for frame in frames]


@pytest.mark.slow
def test_a_simulated_study_has_the_files_of_a_real_one(run_main, tmp_path):
    """Marked, reproducible to the digit, and other runs of the study are other starts."""
    for study in ("a", "b"):
        run_main("-m", "engine=vllm", "launch.slowdown=1,1.05", *ONCE, *SMALL, *SHORT, f"study.name={study}", code=0)
    first, again = points(tmp_path, "a"), points(tmp_path, "b")
    for one, two in zip(first, again, strict=True):
        pd.testing.assert_frame_equal(one.drop(columns="start_id"), two.drop(columns="start_id"), rtol=1e-9)
    fast, slow = first
    assert set(fast["launch"]) == {"simulated"}
    assert [set(one["label"]) for one in (fast, slow)] == [{"slowdown=1.0"}, {"slowdown=1.05"}]
    assert all(fast["emulated"])
    assert "emulated" in fast["doubts"].iloc[0]
    assert list(fast["requests_ok"]) == [20, 20]
    assert list(fast["ttft_ms_p50"]) != list(slow["ttft_ms_p50"])
    (folder, _) = sorted((tmp_path / "outputs" / "a").glob("*/"))[:2]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["engine_version"] == "simulated"
    assert manifest["cold_start"]["phases"][-1]["name"] == "first_token"
    assert "simulated start 1" in (folder / "engine.log").read_text()
    runs = [f"a/{path.parent.name}" for path in sorted((tmp_path / "outputs" / "a").glob("*/run.json"))]
    run_main("compare", *runs, code=0)
    assert run_main("recommend", "a").returncode == 0


@pytest.mark.slow
def test_each_start_draws_its_own_speed(run_main, tmp_path):
    """With several starts of the engine, each measures the level at its own speed."""
    words = ("launch.start_sd=0.2", "study.starts=3", "load.concurrency=[2]", "study.name=s")
    done = run_main("engine=vllm", *SMALL, *SHORT, *words, code=0)
    (found,) = points(tmp_path, "s")
    assert found["start_id"].nunique() == 3
    speeds = found["output_throughput_tok_s"]
    assert speeds.max() / speeds.min() > 1.1
    (log,) = (tmp_path / "outputs" / "s").glob("*/engine.log")
    assert log.read_text().count("simulated start") == 3
    # the table of the run knows how far to trust its points, as the answer does
    assert not [line for line in done.stdout.splitlines() if line.split()[-1:] == ["unknown"]]


@pytest.mark.slow
def test_streams_of_fixed_answers_do_not_run_in_step(run_main, tmp_path):
    """16 users of vLLM whose answers all have one length: by default each finds a running engine, and its TTFT is a quarter of
    what it is when all prompts arrive together in each round, which is a warning."""
    found = {}
    for stagger in ("true", "false"):
        words = ("load.concurrency=[16]", "load.requests=160", f"load.stagger={stagger}", f"study.name=s-{stagger}")
        run_main(*ON_H100, "workload.output_tokens=64", *words, code=0)
        (frame,) = points(tmp_path, f"s-{stagger}")
        found[stagger] = frame.iloc[0]
    assert "lock_step" not in found["true"]["doubts"]
    assert "lock_step" in found["false"]["doubts"]
    assert found["true"]["lock_step"] < 0.2 < 0.9 < found["false"]["lock_step"]
    assert found["true"]["ttft_ms_p50"] < 0.5 * found["false"]["ttft_ms_p50"]
    assert found["true"]["output_throughput_tok_s"] > found["false"]["output_throughput_tok_s"]


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [240, 1100, 2000])
def test_an_open_loop_is_measured_while_it_is_steady(run_main, tmp_path, tokens):
    """Answers of 1.5, 7 and 15 s that arrive evenly: throughput and goodput are those offered, the engine keeps up, and TTFT is
    that of an engine under its load."""
    load = (
        "load=rate",
        "load.rate=[4]",
        "load.arrival=constant",
        f"workload.output_tokens={tokens}",
        "slo.ttft_ms=1000",
    )
    run_main(*ON_H100, "study.name=o", "launch.wander_sd=0", *load, code=0)
    (frame,) = points(tmp_path, "o")
    row = frame.iloc[0]
    assert row["output_throughput_tok_s"] == pytest.approx(4 * tokens, rel=0.02)
    assert row["request_throughput_req_s"] == pytest.approx(4, rel=0.02)
    assert row["goodput_req_s"] == pytest.approx(4, rel=0.02)
    assert row["kept_up"] >= 0.95
    assert "not_stationary" not in row["doubts"]


@pytest.mark.slow
def test_a_point_ends_when_it_is_precise_and_says_why(run_main, tmp_path):
    """Within the share that was asked, after fewer requests than a longer ask; what the time does not allow ends at once, and the
    warning has what it would take."""
    until = "load.until={ttft_ms_p50: 8%, output_throughput_tok_s: 8%}"
    words = ("launch=simulated", "load.concurrency=[4]", "tracking=none", "workload=unique", *SHORT)
    assert run_main("engine=vllm", *words, until, "load.max_duration_s=60", "study.name=rough").returncode == 0
    assert run_main("engine=vllm", *words, "load.until=1%", "load.max_duration_s=7", "study.name=never").returncode == 0
    ((rough,), (never,)) = (
        [row for _, row in frame.iterrows()] for (frame,) in (points(tmp_path, "rough"), points(tmp_path, "never"))
    )
    assert rough["ended_by"] == "precise"
    for name in ("ttft_ms_p50", "output_throughput_tok_s"):
        low, high = rough[f"{name}_low"], rough[f"{name}_high"]
        assert (high - low) / (high + low) < 0.09
    assert rough["requests_planned"] == rough["requests_ok"]
    assert never["ended_by"] in ("out_of_reach", "time")
    assert "not_precise" in never["doubts"]
    assert "not_precise" not in rough["doubts"]


@pytest.mark.slow
@pytest.mark.parametrize("sweep", [(), ("-m", "engine=vllm,sglang", *ONCE)])
def test_of_several_starts_with_one_name_one_runs_and_the_others_end_with_code_2(tmp_path, sweep):
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                servebench_started(tmp_path, *(sweep or ("engine=vllm",)), *SMALL, *SHORT, "study.name=s")
            )
            for _ in range(4)
        ]
        ended = [(process.communicate(timeout=COMMAND_LIMIT_S)[1], process.returncode) for process in started]
    assert sorted(code for _, code in ended) == [0, 2, 2, 2], ended
    assert all("study.name" in said.splitlines()[-1] and "Traceback" not in said for said, code in ended if code)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "starts"), [((), range(2, 9)), (ONCE, [1]), (("study.starts=3",), [3])])
def test_a_study_of_two_engines_has_the_starts_of_a_verdict_or_those_that_were_asked_for(
    run_main, tmp_path, words, starts
):
    run_main("-m", "engine=vllm", "launch.slowdown=1,1.3", *SMALL, *SHORT, "study.name=s", *words, code=0)
    (count,) = {
        one["start_id"].nunique() for one in (pd.read_parquet(p) for p in tmp_path.glob("outputs/s/*/points.parquet"))
    }
    assert count in starts
    decided = json.loads(run_main("compare", "s", "--json", code=0).stdout)["decisions"]
    assert [pair["verdict"] for one in decided for pair in one["pairs"]] == ([] if words else ["slower"])


@pytest.mark.slow
def test_levels_end_where_throughput_stops_growing(run_main, tmp_path):
    """Eight requests run at once: 16 users have more than 4, and 64 no more than 16."""
    words = ("load=climb", "load.requests=64", "engine.max_num_seqs=8", "workload.output_tokens=64", "study.name=s")
    run_main("engine=vllm", "launch=simulated", "tracking=none", "workload=unique", *SHORT[1:], *words, code=0)
    (found,) = points(tmp_path, "s")
    assert list(found["concurrency"]) == [1, 4, 16, 64]
    run_main("show", "s", code=0)
