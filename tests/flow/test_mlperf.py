"""`report --as mlperf` of simulated studies: one that keeps every rule, and one that breaks some."""

import json

import pytest

SIMULATED = (
    *("engine=vllm", "launch=simulated", "gpu=h100", "model=qwen2.5-7b-instruct", "workload=unique", "study.starts=1"),
    *("workload.output_tokens=8", "tracking=none", "telemetry.enabled=false", "load=mlperf_endpoints"),
    # answers of a minute: a run of hours has few of them
    *("launch.slowdown=1000", "load.duration_s=null", "load.concurrency=[1,2,4,8,16,32,40]"),
)


def report(run_main, *words):
    return json.loads(run_main("report", *words, "--as", "mlperf", "--json", code=0).stdout)


@pytest.mark.slow
def test_a_simulated_run_keeps_every_rule_that_its_records_show(run_main):
    run_main(*SIMULATED, "load.requests=1040", "study.name=kept", code=0)
    document = report(run_main, "kept", "--data-set", "104")
    assert document["unofficial"]
    (run,) = document["runs"]
    assert run["broken"] == []
    assert [one["region"] for one in run["points"]] == ["low_latency", "low", "low", "med", "high", "high", "high"]
    assert {one["steady"]["status"] for one in run["points"]} == {"windowable"}
    text = run_main("report", "kept", "--as", "mlperf", "--data-set", "104", code=0).stdout
    assert text.count("UNOFFICIAL") >= 3
    refused = run_main("report", "kept", "--data-set", "104")
    assert refused.returncode == 2


@pytest.mark.slow
def test_a_short_run_that_slows_down_is_caught_by_the_names_of_its_rules(run_main):
    words = ("load.requests=52", "launch.slowdown=100", "launch.drift=0.02", "study.name=short")
    run_main(*SIMULATED, *words, "load.concurrency=[1,16,24,32,40]", code=0)
    (run,) = report(run_main, "short", "--data-set", "13")["runs"]
    assert {"point-count", "low-concurrency-coverage", "point-duration", "steady-state-basis"} <= set(run["broken"])
