"""A gate that measures until it is decided (`study.until=gate`), through the public commands."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from support.results import points

STUDY = (
    "-m", "engine=vllm", "workload=unique", "workload.output_tokens=16", "quality=none", "tracking=none", "launch=simulated",
    "gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "load.concurrency=[4]", "load.duration_s=30", "study.slices=always",
    "study.until=gate", "study.margin=5%",
)  # fmt: skip
STEADY = ("launch.start_sd=0.002", "launch.wander_sd=0", "launch.step_noise=0")
GATE = ("--max-regression", "5%", "--junit", "junit.xml")


def starts_of(tmp_path, study):
    return points(tmp_path / f"outputs/{study}/00_vllm_unique")["start_id"].nunique()


def cases(tmp_path):
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    return {name: int(suite.get(name)) for name in ("failures", "errors")}


@pytest.mark.slow
def test_equal_builds_pass_and_a_planted_loss_fails(run_main, tmp_path):
    equal = run_main(*STUDY, *STEADY, "+engine.env.SIDE=a,b", "study.name=equal", code=0)
    assert "gate: a limit of 5%, and no earlier" in equal.stderr
    assert run_main("compare", "equal", *GATE, code=0).stdout.splitlines()[-2].startswith("Gate: passed")
    assert cases(tmp_path) == {"failures": 0, "errors": 0}
    slower = run_main(*STUDY, *STEADY, "launch.slowdown=1,1.15", "study.name=slower", code=0)
    # by the pairs of the study before: with nothing earlier two of four starts may be slow ones, so that takes a third pair
    assert "starts of each" in slower.stderr
    assert "by 3 earlier starts here" in slower.stderr
    assert (starts_of(tmp_path, "equal"), starts_of(tmp_path, "slower")) == (3, 2)
    run_main("compare", "slower", *GATE, code=1)
    assert cases(tmp_path)["failures"] > 0


@pytest.mark.slow
def test_a_faster_build_ends_the_study_before_it_is_known_how_much_faster_it_is(run_main, tmp_path):
    words = (*STUDY, *STEADY[1:], "launch.start_sd=0.03", "launch.slowdown=1,0.85", "study.starts=12")
    run_main(*words, "study.name=gate", code=0)
    run_main("compare", "gate", *GATE, code=0)
    verdicts = json.loads(run_main("compare", "gate", "--json", code=0).stdout)["decisions"][0]["pairs"]
    assert [one["gate"] for one in verdicts] == ["not worse"]
    assert starts_of(tmp_path, "gate") < 12


@pytest.mark.slow
def test_what_cannot_be_decided_is_an_error_and_not_green(run_main, tmp_path):
    run_main(*STUDY, "study.starts=2", "launch.start_sd=0.05", "+engine.env.SIDE=a,b", "study.name=open", code=0)
    run_main("compare", "open", *GATE, code=7)
    assert cases(tmp_path)["errors"] > 0
    run_main("compare", "open", *GATE, "--metric", "ttft_ms_p99", code=7)
    assert cases(tmp_path)["errors"] > 0


def test_unknown_metrics_and_a_metric_without_a_limit_are_refused(run_main):
    for words in (("compare", "x", *GATE, "--metric", "ttft"), ("compare", "x", "--metric", "tpot_ms_p50")):
        done = run_main(*words, code=2)
        assert done.stderr.count("\n") == 1
    done = run_main(*STUDY, "+engine.env.SIDE=a,b", "study.metrics=[ttft]", code=2)
    assert "study.metrics" in done.stderr
    done = run_main(*STUDY[:-2], "+engine.env.SIDE=a,b", "study.metrics=[ttft_ms_p50]", code=2)
    assert "study.until=gate" in done.stderr
