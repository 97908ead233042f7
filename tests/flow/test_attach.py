"""Whole runs against an endpoint that somebody else runs, and everything a user can get wrong on the way there."""

import os
import signal

import pandas as pd
import psutil
import pytest

from support.commands import COMMAND_LIMIT_S, servebench_started
from support.results import attached_study, run_of, status
from support.waiting import wait_ended, wait_until

SMALL = ("load.concurrency=[4]", "load.requests=40", "load.warmup_requests=4", "load.hold_level=false")


@pytest.mark.slow
def test_counts_are_exact_and_the_approximation_is_doubted(endpoint, servebench, tmp_path):
    """Tokens are the server's; prompts were sized by a stated approximation, which a doubt says."""
    url, behaviour = endpoint()
    done = servebench(*attached_study(url, *SMALL, "workload=unique", "workload.output_tokens=32"), code=0)
    points = pd.read_csv(run_of(tmp_path) / "points.csv")
    requests = pd.read_parquet(run_of(tmp_path) / "requests.parquet")
    measured = requests[~requests.warmup]
    assert (len(measured), set(measured.outcome), set(measured.output_tokens)) == (40, {"ok"}, {32})
    assert (points.requests_ok.item(), points.output_tokens_mean.item()) == (40, 32)
    assert "prompt_size_approximate" in points.doubts.item()
    assert "prompt_size_approximate (at 4)" in done.stdout
    assert len(behaviour.seen) == 40 + 4 + 1
    sent = {f"{run.replace('/', '.')}.{name}" for run, name in zip(requests.run_id, requests.request_id, strict=True)}
    assert sorted(sent) == sorted(name for name in behaviour.names if name)


@pytest.mark.slow
def test_four_tokens_in_an_event_do_not_fool_tpot(endpoint, run_main, tmp_path):
    """TPOT is time over tokens, ITL is time between events."""
    url, _ = endpoint(tokens_per_event=4, gap_s=0.02)
    words = ("workload=unique", "workload.output_tokens=32", "telemetry.enabled=false")
    run_main(*attached_study(url, *SMALL, *words), code=0)
    point = pd.read_csv(run_of(tmp_path) / "points.csv").iloc[0]
    requests = pd.read_parquet(run_of(tmp_path) / "requests.parquet")
    counted = requests.sent_ns.between(point.window_start_ns, point.window_end_ns) & ~requests.warmup
    truth = ((requests.last_event_ns - requests.first_event_ns) / 31 / 1e6)[counted].mean()
    assert point.tpot_ms_mean == pytest.approx(truth, rel=1e-3)
    # 31 / 7 of it, in which a busy machine sends events late
    assert point.itl_ms_mean > 2.5 * truth


@pytest.mark.slow
def test_a_missing_usage_is_told_and_not_made_up(endpoint, run_main, tmp_path):
    """No count from the server and no tokenizer: tokens are unknown, never the number of events."""
    url, _ = endpoint(usage=False)
    run_main(*attached_study(url, *SMALL, "workload=unique", "workload.output_tokens=8"), code=0)
    point = pd.read_csv(run_of(tmp_path) / "points.csv").iloc[0]
    assert pd.isna(point.output_tokens_mean)
    assert "tokens_disagree" in point.doubts


MISTAKES = {
    "nobody there": (attached_study("http://127.0.0.1:1"), 4, "refused"),
    "no address": (["engine=openai", "launch=attach", "model.name=m"], 2, "launch.base_url"),
    "no such key": (attached_study("http://127.0.0.1:1", "launch.api_key_env=NOPE_KEY"), 2, "NOPE_KEY"),
    "no model": (["model.path=/dev/null"], 3, "model.path=/dev/null"),
    "a file for a folder": (["study.dir=/dev/null"], 3, "study.dir"),
    "an engine that is not here": (["engine=trtllm", "model.name=m"], 3, "trtllm"),
    "no such manifest": (["run", "--lock", "nowhere.json"], 6, "nowhere.json"),
    "no such study": (["sync", "nowhere"], 2, "'nowhere'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_line(servebench, run_main, name):
    """Exit code not 0, the value and the way out, no traceback, nothing left running."""
    words, code, expected = MISTAKES[name]
    extra = [] if words[0] in ("run", "sync") else ["tracking=none"]
    # as a command of its own where a run had begun
    done = (servebench if name in ("nobody there", "no model") else run_main)(*words, *extra, code=code)
    problems = [line for line in done.stderr.splitlines() if line.startswith("servebench: ")]
    assert len(problems) == 1
    assert expected in problems[0]
    assert "Traceback" not in done.stderr
    assert psutil.Process().children() == []


def test_a_command_can_be_printed_without_the_engine(run_main):
    """Exact, quoted, without secrets; what is missing is told beside it."""
    words = ("engine=vllm", "model.path=/m/x", "engine.max_model_len=4096")
    done = run_main(*words, "engine.env.HF_TOKEN=hf_0123456789abcdefghij", "--cfg", "command", code=0)
    assert done.stdout.startswith("VLLM_SERVER_DEV_MODE=1 HF_TOKEN=[redacted] vllm serve /m/x --served-model-name x ")
    assert " --max-model-len 4096" in done.stdout
    refused = run_main("engine=trtllm", "engine.quantization=fp8", "model.name=m", "--cfg", "command", code=3)
    assert "engine.quantization=fp8" in refused.stderr


@pytest.mark.slow
def test_a_rate_is_an_open_loop(endpoint, run_main, tmp_path):
    """Arrivals at the asked rate, latencies from the schedule beside those from the sending."""
    url, _ = endpoint(ttft_s=0.2)
    words = [
        word
        for word in attached_study(
            url, *SMALL, "load=rate", "load.rate=[20]", "load.arrival=constant", "telemetry.enabled=false"
        )
        if "concurrency" not in word and "hold_level" not in word
    ]
    run_main(*words, "workload.output_tokens=4", code=0)
    point = pd.read_csv(run_of(tmp_path) / "points.csv").iloc[0]
    assert (point.rate, point.requests_ok) == (20.0, 40)
    assert pd.isna(point.concurrency)
    requests = pd.read_parquet(run_of(tmp_path) / "requests.parquet")
    due = requests[~requests.warmup].scheduled_ns.sort_values()
    assert due.diff().dropna().to_numpy() == pytest.approx(50e6, abs=1e3)
    within = (point.window_start_ns, point.window_end_ns)
    answered = sum(pd.Series(own).between(*within).mean() for own in requests[~requests.warmup].event_ns)
    assert point.request_throughput_req_s == pytest.approx(answered / point.window_s, rel=1e-3)
    assert point.ttft_from_schedule_ms_p50 >= point.ttft_ms_p50 > 199


def test_all_mistakes_are_told_together(run_main):
    """Three of them, three lines, before anything starts."""
    done = run_main("engine.port=abc", "load.concurrency=[0]", "workload.sed=1", code=2)
    assert len(done.stderr.splitlines()) == 3


def test_a_port_in_use_is_told_with_its_owner(run_main):
    """Before the engine starts, with the way out."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_main(f"engine.port={port}", "tracking=none")
    assert done.returncode == 3
    assert f"127.0.0.1:{port}" in done.stderr
    assert f"pid {os.getpid()}" in done.stderr


@pytest.fixture
def long_run(endpoint, tmp_path):
    """A run that would take minutes, in the middle of its point."""
    url, behaviour = endpoint(ttft_s=0.05)
    words = attached_study(url, *SMALL, "load.requests=5000", "workload.output_tokens=4")
    with servebench_started(tmp_path, *words, start_new_session=True) as process:
        wait_until(lambda: len(behaviour.seen) >= 40, process=process)
        yield process


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured(long_run, tmp_path):
    """130, a table of what there is, a doubt about it, nothing left running."""
    children = psutil.Process(long_run.pid).children(recursive=True)
    os.killpg(long_run.pid, signal.SIGINT)
    out, err = long_run.communicate(timeout=COMMAND_LIMIT_S)
    assert long_run.returncode == 130, err
    wait_ended(*(child.pid for child in children))
    requests = pd.read_parquet(run_of(tmp_path) / "requests.parquet")
    assert (requests.outcome == "ok").sum() >= 30
    points = pd.read_csv(run_of(tmp_path) / "points.csv")
    assert points.verdict.item() in ("doubtful", "void")
    assert "interrupted" in points.doubts.item()
    assert status(run_of(tmp_path)) == "interrupted"
    assert "stopped by Ctrl-C" in err
    assert "interrupted" in out


@pytest.mark.slow
def test_kill_9_loses_no_finished_request(long_run, servebench, tmp_path):
    """The spool has them; `recover` makes the table; nothing is left running."""
    children = psutil.Process(long_run.pid).children(recursive=True)
    long_run.kill()
    wait_ended(*(child.pid for child in children))
    servebench("recover", code=0)
    requests = pd.read_parquet(run_of(tmp_path) / "requests.parquet")
    assert (requests.outcome == "ok").sum() >= 30
    assert status(run_of(tmp_path)) == "interrupted"
    before = (run_of(tmp_path) / "requests.parquet").stat().st_mtime_ns
    assert servebench("recover").returncode == 0
    assert (run_of(tmp_path) / "requests.parquet").stat().st_mtime_ns == before
