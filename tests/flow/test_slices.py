"""Engines that are alive at once, their load slice by slice (`study.slices`), through the public command."""

from __future__ import annotations

import json
import signal

import psutil
import pytest

from support.commands import EMULATED, servebench_started
from support.results import points, requests, status
from support.waiting import wait_ended, wait_until

PAIR = ("-m", "engine=vllm", "workload=unique", "workload.output_tokens=16", "quality=none", "tracking=none")
STUDY = ("study.slices=always", "study.name=s")
SIMULATED = ("launch=simulated", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "launch.slowdown=1,1.1")
RUNS = ("00_vllm_unique", "01_vllm_unique")


def compared(run_main):
    return json.loads(run_main("compare", "s", "--json").stdout)["comparisons"][0]["rows"]


def test_points_in_slices_are_valid_take_turns_and_decide(run_main, tmp_path):
    """With nothing random in it, so that it holds each time; what slices make of a machine that wanders is counted
    in `tests/calibration/slices.py`."""
    steady = ("launch.start_sd=0", "launch.wander_sd=0", "launch.step_noise=0")
    load = ("load.concurrency=[1,4]", "load.duration_s=20", "study.starts=2", *steady)
    run_main(*PAIR, *STUDY, *SIMULATED, *load, code=0)
    both = [points(tmp_path / "outputs/s" / run) for run in RUNS]
    for run, other in (both, both[::-1]):
        assert set(run["verdict"]) == {"valid"}
        assert run["slices"].min() >= 5
        assert list(run["slice_group"]) == list(other["slice_group"])
        assert run["slice_group"].nunique() == len(run) == 4
        assert run["start_id"].nunique() == 2
    rows = [row for row in compared(run_main) if row["metric"] == "output_throughput_tok_s"]
    assert rows
    for row in rows:
        assert row["slice_by_slice"]
        assert row["low"] < 1 / 1.1 - 1 < row["high"]
        assert row["high"] - row["low"] < 0.2


def test_added_starts_that_cost_little_have_some_of_the_levels_in_turn(run_main, tmp_path):
    """All levels of the first start show that it takes no longer than two of them."""
    engines = (
        "engine=llamacpp",
        "launch=simulated",
        "gpu=rtx4090",
        "model=qwen2.5-1.5b-instruct",
        "launch.slowdown=1,1.05",
    )
    study = ("load.concurrency=[1,2,4,8]", "study.until=decided", "study.margin=3%")
    done = run_main(*PAIR[:1], *engines, *PAIR[2:], *STUDY, *study, code=0)
    assert "further starts have 2 of the 4 levels each, in turn" in done.stderr
    for name in ("00_llamacpp_unique", "01_llamacpp_unique"):
        run = points(tmp_path / "outputs/s" / name)
        users = [sorted(own["concurrency"]) for _, own in run.groupby("repeat")]
        assert len(users) >= 3
        assert users == [[1, 2, 4, 8], *[[1, 4], [2, 8]] * len(users)][: len(users)]
        assert set(run["slices"]) == {1}
        # the first start tells how long answers take; later engines are warm after one level, and each slice has its lead-in
        first = [f"c{1 if start % 2 else 2}-r{start}" for start in range(1, len(users))]
        warmed = requests(tmp_path / "outputs/s" / name, warmup=True)
        assert set(warmed["point"]) == {"c1-r0", "c2-r0", "c4-r0", "c8-r0", *first}
    (found,) = json.loads(run_main("compare", "s", "--json").stdout)["comparisons"]
    assert found["first"]["result"] == "slower"
    shown = " ".join(run_main("compare", "s").stdout.split())
    assert f"from {len(users)} starts of each, slice by slice, for all looks together (a level has" in shown


def test_what_slices_would_make_too_long_is_measured_in_ordinary_points(run_main, tmp_path):
    load = ("load.concurrency=[2]", "load.duration_s=5", "workload.output_tokens=400", "study.starts=2")
    run_main(*PAIR, *STUDY, *SIMULATED, *load, code=0)
    for run in RUNS:
        assert points(tmp_path / "outputs/s" / run)["slices"].isna().all()
    assert not any(row["slice_by_slice"] for row in compared(run_main))


def test_a_cluster_and_a_single_engine_cannot_take_turns(run_main):
    for words in (("study.slices=always", "engine=vllm", *SIMULATED[:3]), (*PAIR[:2], "hydra/launcher=submitit_local")):
        done = run_main(*words, "load.concurrency=[1]", "study.slices=always", "tracking=none", code=2)
        assert "study.slices=always" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_in_the_middle_nothing_is_left_and_the_study_goes_on(tmp_path, servebench, number):
    load = ("load.concurrency=[2]", "load.duration_s=8", "study.starts=2", "engine.env.SIDE=a,b")
    running: list[psutil.Process] = []

    def both_are_loaded():
        folders = [tmp_path / "outputs/s" / run for run in RUNS]
        running[:] = psutil.Process(process.pid).children(recursive=True)
        return all(any(folder.glob("**/c2-r0.spool")) for folder in folders)

    with servebench_started(tmp_path, *PAIR, *STUDY, *EMULATED, *load) as process:
        wait_until(both_are_loaded, process=process)
        process.send_signal(number)
        process.wait()
    wait_ended(*(one.pid for one in running))
    if number == signal.SIGINT:
        assert {status(tmp_path / "outputs/s" / run) for run in RUNS} == {"interrupted"}
    servebench("resume", "s", code=0)
    for run in RUNS:
        assert status(tmp_path / "outputs/s" / run) == "finished"
        assert list(points(tmp_path / "outputs/s" / run)["repeat"]) == [0, 1]
        assert points(tmp_path / "outputs/s" / run)["slices"].notna().any()
