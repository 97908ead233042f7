"""A study that is killed and resumed: nothing finished is lost, nothing valid is done again."""

import re
import signal

import pandas as pd
import psutil
import pytest

from support.commands import COMMAND_LIMIT_S, servebench_started
from support.results import document, status
from support.waiting import caught, wait_until, words_of

WORDS = (
    *("-m", "engine=vllm,sglang", "workload=unique", "launch=emulated", "launch.time_scale=0.02"),
    *("gpu=rtx5090", "model=qwen2.5-7b-instruct", "load.concurrency=[1,4]", "load.requests=24"),
    *("tracking=none", "study.name=s", "load.self_check=never", "workload.output_tokens=32", "study.starts=1"),
)


def killed_when(folder, seen, *words):
    """Run a study and kill it with SIGKILL while `seen` is true."""
    with servebench_started(folder, *words) as process:
        wait_until(lambda: caught(process.pid, seen), process=process)


def points(folder, run):
    path = folder / "outputs" / "s" / run / "points.parquet"
    return list(pd.read_parquet(path).point) if path.exists() else []


@pytest.mark.slow
def test_a_killed_study_is_resumed(servebench, tmp_path):
    first, second = "00_vllm_unique", "01_sglang_unique"
    # within the second point of the first run, then within the first point of the second
    spools = (tmp_path / "outputs/s" / first).glob
    killed_when(tmp_path, lambda: points(tmp_path, first) and list(spools("raw/c4-r0.spool")), *WORDS)
    measured = pd.read_parquet(tmp_path / "outputs/s" / first / "points.parquet").iloc[0]
    done = servebench("resume", "s", code=0)
    assert re.search(r"\b0 of 2 .*\b2\b.*\b1\b.*point", done.stderr)
    assert points(tmp_path, first) == ["c1-r0", "c4-r0-a1"]
    assert points(tmp_path, second) == ["c1-r0", "c4-r0"]
    kept = pd.read_parquet(tmp_path / "outputs/s" / first / "points.parquet").iloc[0]
    assert kept.window_start_ns == measured.window_start_ns
    requests = pd.read_parquet(tmp_path / "outputs/s" / first / "requests.parquet")
    assert requests.groupby("request_id").size().max() == 1
    assert (requests[~requests.warmup & ~requests.filler].groupby("point").size()[["c1-r0", "c4-r0-a1"]] == 24).all()
    manifest = document(tmp_path / "outputs/s" / second / "manifest.json")
    book = {(one["point"], one["warmup"]): one for one in manifest["ledger"]}
    entry = book["c4-r0", False]
    assert entry.pop("stored") == 24 + entry.pop("fillers")
    assert entry == {
        **{"point": "c4-r0", "warmup": False, "planned": 24, "sent": 24, "not_sent": 0},
        **{"ok": 24, "failed": {}},
    }
    before = (tmp_path / "outputs/s" / second / "requests.parquet").stat().st_mtime_ns
    servebench("resume", "s", code=0)
    assert (tmp_path / "outputs/s" / second / "requests.parquet").stat().st_mtime_ns == before


@pytest.mark.slow
def test_the_telemetry_of_a_point_that_was_killed_is_recovered(servebench, tmp_path):
    run = tmp_path / "outputs/s/00_vllm_unique"
    log = run / "raw/c2-r0.telemetry"
    words = [word for word in WORDS if not word.startswith(("-m", "engine="))]
    slow = ("engine=vllm", "launch.time_scale=1", "load.concurrency=[2]", "load.requests=200")
    # what is logged before the load, and what at the first interval in it
    killed_when(tmp_path, lambda: log.exists() and log.read_bytes().count(b"\n\n") >= 2, *words, *slow)
    assert not (run / "telemetry.parquet").exists()
    servebench("recover", "s", code=0)
    readings = pd.read_parquet(run / "telemetry.parquet")
    requests = pd.read_parquet(run / "requests.parquet")
    first_ns = requests[~requests.warmup].sent_ns.min()
    assert set(readings.point) == {"c2-r0"}
    assert set(readings.run_id) == set(requests.run_id)
    assert {"engine", "machine"} <= set(readings[readings.t_ns > first_ns].source)
    assert pd.read_parquet(run / "points.parquet").engine_memory_gb_max.notna().all()
    assert not list((run / "raw").iterdir())


@pytest.mark.slow
def test_a_point_between_others_is_measured_again_and_they_stay(servebench, tmp_path):
    """A worker died in the first point and the run went on: the later one stands, and is in the table at every moment."""
    words = [word for word in WORDS if not word.startswith(("-m", "engine="))]
    run = "00_vllm_unique"
    spool = tmp_path / "outputs/s" / run / "raw/c1-r0.spool"
    with servebench_started(tmp_path, "engine=vllm", *words) as process:
        begun = lambda: spool.exists() and spool.stat().st_size > 3000  # noqa: E731
        wait_until(lambda: caught(process.pid, begun), process=process)
        for child in psutil.Process(process.pid).children():
            if "servebench.load.client.worker" in words_of(child):
                child.kill()
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=COMMAND_LIMIT_S)
    assert process.returncode == 5, err
    assert err.splitlines()[-1] == "servebench resume s"
    assert points(tmp_path, run) == ["c1-r0", "c4-r0"]
    servebench("resume", "s", code=0)
    assert points(tmp_path, run) == ["c1-r0-a1", "c4-r0"]


@pytest.mark.parametrize(
    ("words", "named"), [(["resume", "nothere"], "nothere"), (["resume", "a", "b"], "b"), (["resume"], "outputs")]
)
def test_what_cannot_be_resumed_is_one_line(run_main, words, named):
    done = run_main(*words)
    assert done.returncode != 0
    assert named in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_repeats_of_engines_take_turns_also_after_a_kill(servebench, tmp_path):
    """First repeat of both, then second of both; killed in the second, what is left is done in the same order."""
    words = (*WORDS, "load.concurrency=[2]", "load.repeats=2", "load.order=interleaved", "load.requests=24")
    first, second = "00_vllm_unique", "01_sglang_unique"
    spools = (tmp_path / "outputs/s" / first).glob
    killed_when(tmp_path, lambda: points(tmp_path, second) and list(spools("raw/c2-r1.spool")), *words)
    servebench("resume", "s", code=0)
    spans = []
    for run in (first, second):
        folder = tmp_path / "outputs/s" / run
        rows = pd.read_parquet(folder / "requests.parquet")
        spans += [
            (group.sent_ns.min(), run, point)
            for point, group in rows[~rows.warmup & (rows.outcome == "ok")].groupby("point")
        ]
        assert points(tmp_path, run)[0] == "c2-r0"
        assert status(folder) == "finished"
        entries = document(folder / "manifest.json")["ledger"]
        assert {one["point"] for one in entries} >= set(points(tmp_path, run)), "no turn's ledger is lost"
    order = [(run, point[:5]) for _, run, point in sorted(spans)]
    assert list(dict.fromkeys(order)) == [(first, "c2-r0"), (second, "c2-r0"), (first, "c2-r1"), (second, "c2-r1")]


@pytest.mark.slow
@pytest.mark.parametrize("moved", ["outputs/s", "outputs"])
def test_a_study_that_is_moved_while_it_runs_ends_with_an_error_that_says_where_it_is(servebench, tmp_path, moved):
    first = tmp_path / "outputs/s/00_vllm_unique"
    with servebench_started(tmp_path, *WORDS) as process:
        begun = lambda: points(tmp_path, first.name) and list(first.glob("raw/c4-r0.spool"))  # noqa: E731
        wait_until(lambda: caught(process.pid, begun), process=process)
        (tmp_path / moved).rename(tmp_path / "elsewhere")
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=COMMAND_LIMIT_S)
    assert process.returncode == 6, err
    assert "Traceback" not in err
    assert " was moved to elsewhere" in err.splitlines()[-1]
    assert not (tmp_path / "outputs/s").exists()
    (tmp_path / "outputs").mkdir(exist_ok=True)
    if moved == "outputs":
        (tmp_path / "outputs").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / moved)
    servebench("resume", "s", code=0)
    assert points(tmp_path, first.name)[0] == "c1-r0"
