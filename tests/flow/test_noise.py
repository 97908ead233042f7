"""What one long point shows of how an engine wanders is the prior of later points, through the public command."""

from __future__ import annotations

import json

import pytest

from support.results import points, run_of

ENGINE = ("engine=vllm", "launch=simulated", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "tracking=none")
LOAD = ("workload=unique", "workload.output_tokens=16", "load.concurrency=[8]")
LONG = ("load.duration_s=220", "load.warmup_requests=8")
SHORT = ("load.requests=400",)


def point(tmp_path, study):
    return points(run_of(tmp_path, study)).iloc[0]


@pytest.mark.slow
def test_a_long_point_is_the_prior_of_later_points_of_this_engine(run_main, tmp_path):
    wandering = (*ENGINE, *LOAD, "launch.wander_sd=0.04", "launch.wander_s=30")
    said = {
        name: run_main(*wandering, *words, f"study.name={name}", code=0).stderr
        for name, words in (("before", SHORT), ("long", LONG), ("after", SHORT))
    }
    learned = "intervals of this engine on this machine now rest on how much it wandered in this point"
    assert [learned in said[name] for name in ("before", "long", "after")] == [False, True, False]
    before, long, after = (point(tmp_path, name) for name in ("before", "long", "after"))
    assert (before.interval_prior, long.interval_prior) == ("flat", "flat")
    assert after.interval_prior == "long/00_vllm_unique/c8-r0"
    # the window is the same; that the engine wanders by 4% over 30 s is now known
    assert after.output_throughput_tok_s == before.output_throughput_tok_s
    known, unknown = (one.output_throughput_tok_s_high - one.output_throughput_tok_s_low for one in (after, before))
    assert known > unknown
    (noise,) = json.loads(run_main("selfcheck", "--json").stdout)["noise"]
    assert noise["point"] == after.interval_prior
    assert noise["facts"]["engine"] == "vllm"


@pytest.mark.slow
def test_a_steady_engine_has_narrower_intervals_and_others_do_not_share_them(run_main, tmp_path):
    steady = (*ENGINE, *LOAD, "launch.wander_sd=0")
    words = {
        "before": (*steady, *SHORT), "long": (*steady, *LONG), "after": (*steady, *SHORT),
        "other": (*ENGINE, *LOAD, *SHORT, "launch.wander_sd=0.01"),
        "rate": (*steady, "load=rate", "load.concurrency=null", "load.rate=[8]", "load.requests=100"),
    }  # fmt: skip
    for name, one in words.items():
        run_main(*one, f"study.name={name}", code=0)
    before, after = point(tmp_path, "before"), point(tmp_path, "after")
    widths = [one.output_throughput_tok_s_high - one.output_throughput_tok_s_low for one in (before, after)]
    assert widths[1] < 0.8 * widths[0]
    assert [point(tmp_path, name).interval_prior for name in ("other", "rate")] == ["flat", "flat"]
    # a damaged file says nothing, and stops nothing
    (path,) = (tmp_path / "outputs/.noise").glob("*.json")
    path.write_text(path.read_text()[:200])
    run_main(*words["after"], "study.name=damaged", code=0)
    assert point(tmp_path, "damaged").interval_prior == "flat"
    # what cannot be stored costs no point
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("a file")
    run_main(*words["long"], "study.name=unwritable", code=0)
    assert point(tmp_path, "unwritable").verdict == "valid"


@pytest.mark.slow
def test_what_was_cut_off_as_a_warm_up_counts_where_the_rest_is_short(run_main, tmp_path):
    warming = (*ENGINE, *LOAD, "launch.shift=-0.1", "launch.shift_s=60")
    run_main(*warming, "load.warmup_requests=8", "load.duration_s=220", "study.name=long", code=0)
    assert point(tmp_path, "long").window_s < 200
    (noise,) = json.loads(run_main("selfcheck", "--json").stdout)["noise"]
    assert noise["point"] == "long/00_vllm_unique/c8-r0"
    assert noise["window_s"] > 200


@pytest.mark.slow
def test_a_long_point_in_doubt_says_that_it_teaches_nothing(run_main, tmp_path):
    words = (*ENGINE, *LOAD, *LONG, "launch.drift=0.05")
    shown = run_main(*words, "study.name=long", code=0).stderr
    assert point(tmp_path, "long").verdict == "doubtful"
    assert "later intervals do not rest on this long point: it is doubtful\n" in shown
    assert not (tmp_path / "outputs/.noise").exists()
