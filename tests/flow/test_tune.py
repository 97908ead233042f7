"""`servebench tune` through the public command: on a virtual clock, and with emulated engines."""

from __future__ import annotations

import json
import sys

import pytest
import yaml

from support.commands import servebench_started
from support.tunes import SIMULATED, STARTS_OF_NO_TIME, answer, failed_starts, points, statuses, without
from support.waiting import caught, wait_until

SPACE = """
parameters:
  engine.max_num_seqs: {values: [2, 4, 8, 16, 32], source: here}
  engine.extra_args.kv-cache-dtype: {values: [null, fp8], answers: true, source: here}
"""
WORDS = (*SIMULATED, "tune.budget=20m")


FAKE = """#!{python}
# a server that behaves like vLLM; --kv-cache-dtype fp8 makes it fast and wrong, --block-size 128 kills it
import json, os, sys
words = sys.argv[1:]
if "--version" in words:
    sys.exit(print("fake 1.0"))
given = {{word: words[index + 1] for index, word in enumerate(words[:-1]) if word.startswith("--")}}
if given.get("--block-size") == "128":
    sys.exit("torch.OutOfMemoryError: CUDA out of memory")
wrong = "--kv-cache-dtype" in given
spec = {{"engine": "vllm", "model_name": given["--served-model-name"], "host": given["--host"], "port": int(given["--port"])}}
spec |= {{"seed": int(wrong), "time_scale": 0.01, "max_num_seqs": 16 if wrong else int(given.get("--max-num-seqs", 2))}}
spec |= {{"gpu": {{"name": "h100", "memory_gb": 80, "bandwidth_gb_s": 3350, "bf16_tflops": 990}}}}
spec |= {{"model": {{"parameters_b": 8.0}}}}
spec |= {{"tokenize_path": "/tokenize", "version_path": "/version"}}
os.execv(sys.executable, [sys.executable, "-m", "servebench.emulator", "--spec", json.dumps(spec)])
"""


@pytest.fixture
def space(tmp_path):
    (tmp_path / "space.yaml").write_text(SPACE)
    return tmp_path


@pytest.mark.slow
def test_the_best_settings_become_an_engine(run_main, space):
    done = run_main("tune", *WORDS, code=0)
    found = answer(space)
    assert (found["verdict"], found["settings"]) == ("better", {"engine.max_num_seqs": 32})
    assert found["gain"]["low"] > 0.3
    assert found["spent"] <= found["budget"]
    assert "is best: max_num_seqs=32" in done.stdout
    assert statuses(space) == ("finished", {"finished"})
    assert (space / "outputs/t/tune.html").read_text().startswith("<!doctype html>")
    file = space / "outputs/t/conf/engine/llamacpp_tuned.yaml"
    assert yaml.safe_load(file.read_text())["max_num_seqs"] == 32
    shown = run_main("--config-dir", "outputs/t/conf", "engine=llamacpp_tuned", "--cfg", "job", "-p", "engine")
    assert "max_num_seqs: 32" in shown.stdout
    # all candidates had the same prompts, those of the finals were new, and what was refused is said
    rows = points(space)
    in_race = rows[rows["repeat"] < 80]
    assert set(in_race[in_race["repeat"] == 0]["run"]) == set(rows["run"])
    assert rows["repeat"].max() >= 80
    assert "refused before a launch" in done.stdout
    # a finished tune has nothing left to measure
    again = run_main("resume", "t", code=0)
    assert len(points(space)) == len(rows)
    assert "is best: max_num_seqs=32" in again.stdout
    assert "is best: max_num_seqs=32" in run_main("show", "t").stdout
    assert json.loads(run_main("show", "t", "--json").stdout)["verdict"] == "better"
    for command in ("show", "report", "ls"):
        assert run_main(command, *(["t"] if command != "ls" else [])).returncode == 0


@pytest.mark.slow
def test_a_killed_tune_goes_on_and_answers_the_same(servebench, run_main, space):
    """What was measured is kept, and the race takes the way that it would have taken."""
    path = space / "outputs/t"
    with servebench_started(space, "tune", *WORDS) as process:
        three = lambda: len(list(path.glob("*/points.parquet"))) >= 3  # noqa: E731
        wait_until(lambda: caught(process.pid, three), process=process)
    before = points(space)
    assert statuses(space)[0] != "finished"
    servebench("resume", "t", code=0)
    after = points(space)
    kept = after.merge(before[["run", "point", "window_start_ns"]], on=["run", "point"], suffixes=("", "_before"))
    assert len(kept) == len(before)
    assert (kept["window_start_ns"] == kept["window_start_ns_before"]).all()
    assert after.groupby(["run", "repeat", "concurrency"]).size().max() == 1
    assert answer(space)["settings"] == {"engine.max_num_seqs": 32}


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_finalists_take_turns_slice_by_slice(run_main, space, killed):
    """A killed tune goes on in the finals. What slices make of a machine that wanders is counted in
    `tests/calibration/tuning.py`."""
    steady = ("launch.start_sd=0", "launch.wander_sd=0", "launch.step_noise=0")
    words = (*without(WORDS, "load.requests", "launch."), "load.duration_s=10", "study.slices=always", *steady)
    if killed:
        path = space / "outputs/t"
        with servebench_started(space, "tune", *words) as process:
            final = lambda: list(path.glob("*/points.parquet")) and points(space)["repeat"].max() >= 80  # noqa: E731
            wait_until(lambda: caught(process.pid, final), process=process)
        assert statuses(space)[0] != "finished"
    done = run_main(*(("resume", "t") if killed else ("tune", *words)), code=0)
    found, rows = answer(space), points(space)
    assert (found["verdict"], found["settings"]) == ("better", {"engine.max_num_seqs": 32})
    assert found["gain"]["method"]["slice_by_slice"]
    assert found["spent"] <= found["budget"]
    assert "slice by slice" in done.stdout
    finals = rows[rows["repeat"].between(80, 159)]
    assert set(finals["verdict"]) == {"valid"}
    together = finals.groupby("slice_group")["run"].nunique()
    # of a pair that was killed one may have been stored
    assert (together.min() if not killed else together.max()) == 2
    assert rows[rows["repeat"] < 80]["slices"].isna().all()
    assert json.loads(run_main("show", "t", "--json").stdout)["gain"] == found["gain"]


@pytest.mark.slow
def test_more_budget_continues_it(run_main, space):
    done = run_main("tune", *SIMULATED, "tune.trials=6", "tune.final_starts=2", "tune.finalists=1", code=0)
    assert answer(space)["spent"] <= 6
    measured = len(points(space))
    assert "tune --continue t tune.trials=6" in done.stdout
    run_main("tune", "--continue", "t", "tune.trials=14", code=0)
    assert 6 < answer(space)["spent"] <= 20
    assert len(points(space)) > measured
    assert answer(space)["settings"] == {"engine.max_num_seqs": 32}
    wrong = run_main("tune", "--continue", "t", "tune.budget=5m", code=2)
    assert "t has tune.trials; continue it with tune.trials=" in wrong.stderr


def test_what_is_void_for_all_alike_is_not_measured_again_and_again(run_main, space):
    """32 users are never in flight with 20 requests. The first such point has all its attempts, the others one."""
    words = without(SIMULATED, "load.requests")
    done = run_main("tune", *words, "load.requests=20", "tune.trials=6", "tune.count=3", "tune.finalists=1")
    assert done.stderr.count("the point is void and is measured again") == 2
    attempts = {name: [one for one in names if "-a" in one] for name, names in points(space).groupby("run")["point"]}
    assert {name for name, found in attempts.items() if found} == {"00_llamacpp_stock"}
    assert "points are void" in done.stdout


@pytest.mark.slow
def test_two_engines_and_the_highest_load(run_main, space):
    """Engine and settings together: the winner's file inherits its own engine."""
    words = without(SIMULATED, "engine=", "load.concurrency")
    run_main(
        *("tune", "engine=llamacpp,vllm", *words, "load.concurrency=[4,16,32]"),
        *("slo.ttft_ms=200", "slo.attainment=0.9"),
        *("tune.objective=max_load", "tune.trials=16", "tune.count=6", "tune.finalists=2", "tune.final_starts=2"),
        code=0,
    )
    found = answer(space)
    names = {one["name"] for one in found["tried"]}
    assert {"llamacpp stock", "vllm stock"} <= names
    assert found["verdict"] == "better"
    assert found["value"] >= 16
    assert list((space / "outputs/t/conf/engine").glob("*_tuned.yaml")) or found["best_name"] == "vllm stock"


@pytest.mark.slow
def test_settings_that_kill_the_engine_do_not_end_the_study(run_main, tmp_path):
    """Here it has no time to become ready. Each is started once, and the answer says why it left."""
    (tmp_path / "space.yaml").write_text(STARTS_OF_NO_TIME)
    (tmp_path / "mine.yaml").write_text(
        "- {name: mine, set: {engine.max_num_seqs: 16}}\n- {set: {engine.threads: many}}\n"
    )
    done = run_main(
        *("tune", "engine=vllm", "launch=emulated", "gpu=rtx5090", "model=qwen2.5-7b-instruct", "workload=unique"),
        *("workload.input_tokens=16", "workload.output_tokens=8", "load.concurrency=[16]", "load.requests=32"),
        *("tracking=none", "study.name=t", "tune.space=space.yaml", "tune.candidates=mine.yaml", "tune.trials=12"),
        *("tune.final_starts=2", "tune.finalists=1", "tune.count=6"),
        code=0,
    )
    found = answer(tmp_path)
    dead = failed_starts(tmp_path)
    assert dead
    assert all("ready_timeout_s=0.05" in one["settings"] for one in dead)
    assert found["best"] is not None
    assert statuses(tmp_path)[0] == "finished"
    assert "mine" in {one["name"] for one in found["tried"]}
    assert "recipe 2: engine.threads: unknown key" in done.stdout


@pytest.mark.slow
def test_a_setting_that_spoils_answers_cannot_win(run_main, tmp_path):
    """Though it is by far the fastest; and one that kills the engine is started once."""
    fake = tmp_path / "vllm"
    fake.write_text(FAKE.format(python=sys.executable))
    fake.chmod(0o755)
    (tmp_path / "space.yaml").write_text(
        "parameters:\n"
        "  engine.max_num_seqs: {values: [null, 4]}\n"
        "  engine.extra_args.block-size: {values: [null, 128]}\n"
        "  engine.extra_args.kv-cache-dtype: {values: [null, fp8], answers: true}\n"
    )
    run_main(
        *("tune", "engine=vllm", f"engine.executable={fake}"),
        *("model.name=m", "workload=unique", "workload.input_tokens=16"),
        *("workload.output_tokens=16", "load.concurrency=[8]", "load.requests=30", "tracking=none", "study.name=t"),
        *("tune.space=space.yaml", "tune.trials=20", "tune.finalists=1", "tune.final_starts=2", "quality=parity"),
        *("quality.items=16", "quality.max_tokens=16", "load.self_check=never"),
        code=0,
    )
    found = answer(tmp_path)
    assert found["settings"] == {"engine.max_num_seqs": 4}
    left = {one["settings"]: one["left"] for one in found["tried"]}
    assert left["kv-cache-dtype=fp8"]["reason"] == "answers"
    assert left["block-size=128"]["reason"] == "start failed"
    assert [one["settings"] for one in found["tried"] if one["status"] == "best"] == ["max_num_seqs=4"]
    starts = {one["settings"]: one["starts"] for one in found["tried"]}
    assert starts["block-size=128"] == 0


def test_a_dry_run_starts_nothing(run_main, space, tmp_path):
    done = run_main("tune", *WORDS, "--dry-run", "--json", code=0)
    found = json.loads(done.stdout)
    assert found["candidates"][0]["name"] == "stock"
    assert found["starts"] == 6
    assert found["budget_s"] == 1200
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("engine=openai", "launch=attach", "launch.base_url=http://127.0.0.1:1/v1"),
            "launch=attach: servebench cannot",
        ),
        (("launch=simulated", "load=slo", "slo=interactive"), "a tune measures at fixed levels"),
        (("launch=simulated", "workload=unique,short"), "only engine= may have several values"),
        (("launch=simulated", "study.starts=3"), "study.starts and study.until have no meaning"),
        (("launch=simulated", "tune.objective=goodput"), "tune.objective=goodput needs limits"),
        (
            ("launch=simulated", "tune.objective=max_load", "slo=interactive", "load.concurrency=[8]"),
            "needs several levels",
        ),
        (("launch=simulated", "tune.objective=cost_usd_per_mtok"), "needs gpu.price_usd_per_hour"),
        (
            ("launch=simulated", "study.slices=always", "load.concurrency=null", "load.rate=[2]"),
            "study.slices=always: only",
        ),
        (
            ("launch=simulated", "study.slices=always", "hydra/launcher=submitit_local"),
            "study.slices=always: on a cluster",
        ),
        (
            ("launch=simulated", "study.slices=always", "tune.objective=max_load", "slo=interactive"),
            "study.slices=always: tune.objective=max_load",
        ),
        (("launch=simulated", "tune.only=[engine.none]"), "has no parameter engine.none"),
        (("launch=simulated", "tune.space=none.yaml"), "none.yaml cannot be read"),
        (("launch=simulated", "tune.levels=[1.5]"), "a concurrency is a whole number"),
        (("launch=simulated", "tune.budget=9"), "tune.budget must be a duration"),
        (("launch=simulated", "engine.max_num_seqs=2", "tune.space=one.yaml"), "there is nothing to tune"),
        (("--continue", "none"), "none"),
        (("--trust", "launch=simulated"), "are for --continue STUDY"),
        (("--dry-run", "--continue", "last"), "--dry-run is for a new tune"),
    ],
)
def test_a_wrong_question_is_one_line(run_main, tmp_path, words, said):
    (tmp_path / "one.yaml").write_text("parameters: {engine.max_num_seqs: {values: [2, 3]}}")
    done = run_main("tune", *words)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("outputs/*/study.json"))
