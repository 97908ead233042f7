"""Studies that end when they have decided between their engines, through the public command on a virtual clock."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from servebench.store import studies as read
from servebench.study.tracking import note
from support.commands import servebench_started
from support.results import document, points, status
from support.waiting import caught, wait_until

ENGINE = ("-m", "engine=vllm", "launch=simulated", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "workload=unique")
LOAD = ("load.concurrency=[1,4]", "load.requests=100", "workload.output_tokens=16", "launch.wander_sd=0.005")
STUDY = ("tracking=none", "study.until=decided", "study.name=s", "study.budget=4h")
FAST, SLOW = "00_vllm_unique", "01_vllm_unique"


def rows_now(run):
    return len(points(run)) if (run / "points.parquet").exists() else 0


def table(output):
    """The rows of the table of a comparison: (load, metric, the rest)."""
    metrics = ("output throughput", "TTFT ", "E2E ")
    lines = [line.split(None, 1) for line in output.splitlines()]
    rows = [(words[0], words[1]) for words in lines if len(words) > 1 and words[0] in ("1", "4")]
    return [(load, rest) for load, rest in rows if rest.startswith(metrics) and "[" in rest]


def _printed(run_main, *words):
    return json.loads(run_main(*words, "--json").stdout)


@pytest.mark.slow
def test_a_slower_engine_is_decided_with_few_starts(run_main, tmp_path):
    """Both runs are finished, all starts are from engines of their own, and `compare` shows the decision, too."""
    done = run_main(
        *ENGINE, *LOAD, *STUDY, "launch.slowdown=1,1.2", "launch.start_sd=0.005", "load.requests=400", code=0
    )
    for run in (FAST, SLOW):
        found = points(tmp_path / "outputs/s" / run)
        starts = found["start_id"].nunique()
        assert 2 <= starts <= 3
        assert list(found["repeat"]) == [start for start in range(starts) for _ in range(2)]
        assert status(tmp_path / "outputs/s" / run) == "finished"
    assert f"round {starts}: 1 of 1 pairs decided" in done.stderr
    # the answer is the decision, though two starts are too few for a comparison with a fixed number of them
    assert "slowdown=1.0 gives" in done.stdout
    assert "on average over 1 to 4 users: sure" in " ".join(done.stdout.split())
    assert "no clear difference" not in done.stdout
    chosen = {one["use_case"]: one["best"] for one in _printed(run_main, "recommend", "s")["recommendations"]}
    assert (chosen["batch"], chosen["one_user"]) == (f"s/{FAST}", f"s/{FAST}")
    assert document(tmp_path / "outputs/s" / SLOW / "manifest.json")["cold_start"]["phases"]
    pair = f"s/{FAST}", f"s/{SLOW}"
    for words in (("s",), pair):
        (found,) = _printed(run_main, "compare", *words)["comparisons"]
        assert (found["verdict"], found["margin"]) == ("slower", 0.03)
    assert run_main("resume", "s").returncode == 0
    assert len(points(tmp_path / "outputs/s" / SLOW)) == 2 * starts


@pytest.mark.slow
def test_equal_engines_are_equal(run_main, tmp_path):
    words = ("launch.slowdown=1,1.0001", "launch.start_sd=0.001", "study.margin=8%", "load.concurrency=[1,2]")
    run_main(*ENGINE, *LOAD, *STUDY, *words, code=0)
    counts = points(tmp_path / "outputs/s" / FAST).groupby("concurrency").size()
    assert counts[1] <= 6
    assert list(counts) == list(points(tmp_path / "outputs/s" / SLOW).groupby("concurrency").size())
    # no screen names one of them, and MLflow's description says what the last screen says
    said = _printed(run_main, "report", "s")
    assert not any(lead["clear"] for one in said["answer"]["workloads"] for lead in one["leads"])
    assert not any(one["best"] for one in said["recommendations"])
    (compared,) = _printed(run_main, "compare", "s")["comparisons"]
    assert (compared["verdict"], compared["margin"]) == ("no difference", 0.08)
    described = " ".join(note(read.load_study(tmp_path / "outputs/s"), ()).split())
    assert said["answer"]["workloads"][0]["sentence"] in described
    # and its one limit
    assert " ".join(said["answer"]["limits"][0].split()) in described
    assert said["answer"] == _printed(run_main, "show", "s")["answer"]


@pytest.mark.slow
def test_the_budget_ends_a_study_and_it_says_what_a_decision_would_take(run_main, tmp_path):
    words = ("launch.slowdown=1,1.03", "launch.start_sd=0.04", "study.budget=260s", "study.starts=12")
    done = run_main(*ENGINE, *LOAD, *STUDY, *words, code=0)
    assert {status(tmp_path / "outputs/s" / run) for run in (FAST, SLOW)} == {"finished"}
    assert 2 <= points(tmp_path / "outputs/s" / FAST)["repeat"].nunique() < 12
    assert "study.budget=260s" in done.stderr
    assert "open: slowdown=1.03 vs slowdown=1.0" in done.stderr
    assert "undecided: would take about" in done.stdout
    assert "engine minutes" in done.stdout


@pytest.mark.slow
def test_more_budget_decides_what_is_open(servebench, run_main, tmp_path):
    """The last screen says the command. Its budget is beside the plan, and survives a kill; what was measured is kept."""
    words = ("launch.slowdown=1,1.04", "launch.start_sd=0.012", "study.budget=2m", "study.starts=3")
    done = run_main(*ENGINE, *LOAD, *STUDY, *words, code=0)
    folder = tmp_path / "outputs/s"
    plan, before = (folder / "plan.json").read_bytes(), points(tmp_path / "outputs/s" / SLOW)
    assert before["repeat"].nunique() == 2
    for said in (done.stdout, run_main("compare", "s").stdout):
        (step,) = [line for line in said.splitlines() if line.startswith("next: servebench resume s --budget ")]
        assert step.split()[5].removesuffix("m").isdigit()
        assert "to decide what is open, about" in step
    with servebench_started(tmp_path, "resume", "s", "--budget", "3h") as process:
        # the other run has not begun to go on
        wait_until(lambda: rows_now(folder / FAST) > len(before), process=process)
    budget_s = document(folder / "study.json")["budget_s"]
    assert 3 * 3600 < budget_s < 3 * 3600 + 600
    done = servebench("resume", "s", code=0)
    after = points(tmp_path / "outputs/s" / SLOW)
    assert after["repeat"].nunique() > 3, "the most starts of the plan end it no more"
    kept = after[after["point"].isin(before["point"])]
    assert list(kept["window_start_ns"]) == list(before["window_start_ns"])
    assert after.groupby(["concurrency", "repeat"]).size().max() == 1
    assert [one["verdict"] for one in _printed(run_main, "compare", "s")["comparisons"]] == ["slower"]
    assert "next: servebench resume s --budget" not in done.stdout
    assert {status(tmp_path / "outputs/s" / run) for run in (FAST, SLOW)} == {"finished"}
    assert document(folder / "study.json")["budget_s"] == budget_s
    assert (folder / "plan.json").read_bytes() == plan
    refused = run_main("resume", "s", "--budget", "30m")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "nothing in s is open" in refused.stderr


@pytest.mark.slow
def test_another_start_replaces_a_void_point(run_main, tmp_path):
    """Long bursts of failures make some points void. No level is lost for it, and the requests of all attempts are kept."""
    words = ("launch.slowdown=1,1.1", "launch.start_sd=0.005", "launch.failure_rate=0.3", "launch.failure_burst=150")
    done = run_main(*ENGINE, *LOAD, *STUDY, *words, code=0)
    assert "a point is void; another start replaces it" in done.stderr
    found = pd.concat([points(tmp_path / "outputs/s" / run) for run in (FAST, SLOW)])
    assert "void" not in set(found["verdict"])
    again = found[found["point"].str.contains("-a")]
    assert len(again) > 0
    sent = pd.read_parquet(tmp_path / "outputs/s" / FAST / "requests.parquet")["point"]
    (first, *_) = [name for name in points(tmp_path / "outputs/s" / FAST)["point"] if "-a" in name]
    assert {first, first.partition("-a")[0]} <= set(sent)
    assert "not compared" not in done.stdout


@pytest.mark.slow
def test_more_budget_that_has_no_sense_is_refused_in_one_line(run_main, tmp_path):
    plain = ("engine=vllm", "launch=simulated", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "workload=unique")
    assert run_main(*plain, "load.concurrency=[1]", "load.requests=50", "tracking=none", "study.name=p").returncode == 0
    for words, said in (
        (("p", "--budget", "30m"), "--budget is for studies with study.until=decided, which p has not"),
        (("p", "--budget", "30"), "--budget must be a duration such as 90s, 30m or 2h (got 30)"),
        (("p", "--budget", "-5m"), "--budget must be a duration"),
        (("p", "--budget", "5m", "--better"), "give one of them"),
        (("none", "--budget", "5m"), "none"),
    ):
        done = run_main("resume", *words)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert said in done.stderr


@pytest.mark.slow
def test_a_killed_study_goes_on_and_decides_the_same(servebench, run_main, tmp_path):
    """Nothing is measured twice, and the decisions come from what is on disk."""
    words = (*ENGINE, *LOAD, *STUDY, "launch.slowdown=1,1.06", "launch.start_sd=0.01")
    with servebench_started(tmp_path, *words) as process:
        wait_until(lambda: caught(process.pid, lambda: rows_now(tmp_path / "outputs/s" / SLOW) >= 3), process=process)
    before = points(tmp_path / "outputs/s" / SLOW)
    assert {"finished"} != {status(tmp_path / "outputs/s" / run) for run in (FAST, SLOW)}
    done = servebench("resume", "s", code=0)
    after = points(tmp_path / "outputs/s" / SLOW)
    kept = after[after["point"].isin(before["point"])]
    assert list(kept["window_start_ns"]) == list(before["window_start_ns"])
    assert after.groupby(["concurrency", "repeat"]).size().max() == 1
    assert table(done.stdout) == table(run_main("compare", "s").stdout)
    assert len(table(done.stdout)) >= 4
    assert {status(tmp_path / "outputs/s" / run) for run in (FAST, SLOW)} == {"finished"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("engine=vllm", "launch=simulated"),
            "study.until=decided needs two runs or more with the same model and workload",
        ),
        (("-m", "engine=vllm", "launch=simulated", "workload=unique,rag_prefix"), "with the same model and workload"),
        (("-m", "engine=vllm,sglang", "launch=simulated", "study.margin=0"), "study.margin must be a share such as 5%"),
        (
            ("-m", "engine=vllm,sglang", "launch=simulated", "study.budget=60"),
            "study.budget must be a duration such as 90s",
        ),
        (("-m", "engine=vllm,sglang", "launch=simulated", "study.budget=-1m"), "study.budget must be a duration"),
        (("-m", "engine=vllm,sglang", "launch=simulated", "study.until=done"), "study.until must be"),
        (
            ("-m", "engine=vllm,sglang", "launch=simulated", "study.margin=1%,5%"),
            "study.margin=1%,5%: all runs of a study",
        ),
        (("-m", "engine=vllm,sglang", "launch=simulated", "study.until=null,decided"), "study.until=null,decided: all"),
        (
            ("-m", "engine=vllm,sglang", "launch=simulated", "load=slo", "slo=interactive"),
            "study.until=decided has no effect in a search",
        ),
        (
            ("-m", "engine=vllm,sglang", "launch=attach", "launch.base_url=http://127.0.0.1:9/v1"),
            "study.until=decided needs an engine that servebench starts",
        ),
    ],
)
def test_what_cannot_be_decided_is_refused_in_one_line(run_main, words, said):
    done = run_main("study.until=decided", *words, code=2)
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
