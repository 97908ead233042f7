"""A tune whose starts are jobs, on a cluster that executes orders in this process as soon as they are submitted."""

from __future__ import annotations

import signal

import pytest

from support.clusters import InProcess, cluster_commands
from support.tunes import SIMULATED, STARTS_OF_NO_TIME, answer, failed_starts, points, statuses, without

SPACE = "parameters: {engine.max_num_seqs: {values: [2, 4, 8, 16, 32]}}"
WORDS = (*SIMULATED, "tune.trials=14", "tune.count=5", "tune.final_starts=2", "tune.finalists=2")
LAUNCHER = ("hydra/launcher=submitit_local", "hydra.launcher.runs_per_machine=4")


@pytest.fixture
def tune(run_main, tmp_path, monkeypatch):
    (tmp_path / "space.yaml").write_text(SPACE)
    return cluster_commands(run_main, tmp_path, monkeypatch)


def test_starts_of_a_round_are_submitted_together_and_the_winner_is_the_same(tune, tmp_path):
    done, cluster = tune("tune", *WORDS, *LAUNCHER)
    assert done.returncode == 0, done.stderr
    found = answer(tmp_path)
    assert (found["verdict"], found["settings"]) == ("better", {"engine.max_num_seqs": 32})
    assert cluster.batches[0] == ["00_llamacpp_stock"]
    assert len(cluster.batches[1]) == 4
    assert cluster.closed
    assert found["spent"] == len(cluster.orders) <= 14
    assert statuses(tmp_path) == ("finished", {"finished"})
    # one start of the engine for each order, each with prompts of its own
    rows = points(tmp_path)
    assert rows["start_id"].nunique() == len(cluster.orders)
    assert rows.groupby(["run", "repeat"]).size().max() == 1
    again, cluster = tune("resume", "t")
    assert (again.returncode, cluster.orders) == (0, {})
    assert answer(tmp_path) == found


def test_a_lost_machine_is_submitted_again_and_then_ends_the_command(tune, tmp_path):
    done, cluster = tune("tune", *WORDS, *LAUNCHER, cluster=InProcess(lambda job, _: job in ("j1", "j6") and "gone"))
    assert done.returncode == 0, done.stderr
    assert answer(tmp_path)["spent"] == len(cluster.orders) - 2


def test_a_machine_that_is_lost_too_often_ends_the_command_and_a_resume_goes_on(tune, tmp_path):
    lost = InProcess(lambda _, order: order.run.startswith("02") and "gone")
    done, _ = tune("tune", *WORDS, *LAUNCHER, cluster=lost)
    assert done.returncode not in (0, 130)
    assert "servebench resume" in done.stderr
    before = points(tmp_path)
    assert before["run"].nunique() >= 4, "what was measured beside it is kept"
    done, cluster = tune("resume", "t")
    assert done.returncode == 0, done.stderr
    assert cluster.orders["j0"].run.startswith("02")
    after = points(tmp_path)
    assert set(before["window_start_ns"]) <= set(after["window_start_ns"])
    assert answer(tmp_path)["settings"] == {"engine.max_num_seqs": 32}


def test_ctrl_c_and_then_on_this_machine(tune, tmp_path):
    def interrupt(job, _):
        if job == "j3":
            signal.raise_signal(signal.SIGINT)

    done, _ = tune("tune", *WORDS, *LAUNCHER, cluster=InProcess(interrupt))
    assert done.returncode == 130
    done, cluster = tune("resume", "t", "--here")
    assert done.returncode == 0, done.stderr
    assert not cluster.orders
    assert answer(tmp_path)["settings"] == {"engine.max_num_seqs": 32}
    assert statuses(tmp_path) == ("finished", {"finished"})


@pytest.mark.slow
def test_an_engine_that_does_not_start_is_a_result(tune, tmp_path):
    (tmp_path / "space.yaml").write_text(STARTS_OF_NO_TIME)
    words = (*without(WORDS, "launch"), "launch=emulated")
    more = ("load.self_check=never", "launch.time_scale=0.01", "load.requests=64")
    done, cluster = tune("tune", *words, *more, *LAUNCHER)
    assert done.returncode == 0, done.stderr
    dead = failed_starts(tmp_path)
    assert dead
    ordered = [order.run for order in cluster.orders.values()]
    assert all(ordered.count(one["run"]) == 1 for one in dead)
    assert answer(tmp_path)["best"] is not None


def test_levels_that_are_not_needed_are_not_measured(tune, tmp_path):
    words = without(WORDS, "load.concurrency")
    more = ("load.concurrency=[1,4,32]", "slo.ttft_ms=100000", "slo.attainment=0.9", "tune.objective=max_load")
    done, _ = tune("tune", *words, *more, *LAUNCHER)
    assert done.returncode in (0, 1), done.stderr
    assert set(points(tmp_path)["concurrency"]) == {32}
