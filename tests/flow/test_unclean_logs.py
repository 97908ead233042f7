"""servebench is stopped before keys are out of what others wrote; whoever comes next finishes that before anything else."""

import shutil
import signal

import pandas as pd
import pytest

from support.commands import COMMAND_LIMIT_S, run_servebench, servebench_started
from support.waiting import wait_until

KEY = "plantedLOG0123456789zq"
RUN = "outputs/s/00_vllm_unique"
LINES = (100_000, 400_000, 1_600_000)
"""Of the log: on a machine that is slow to send the signal, cleaning it takes longer."""
ENGINE = """#!/bin/sh
[ "$1" = serve ] || exit 0
echo "args: api_key=[$VLLM_API_KEY] twice $VLLM_API_KEY"
yes "INFO 01-01 12:00:00 a line of a long log, with token_ids: 5" | head -n {lines}
echo "again $VLLM_API_KEY"
exit 1
"""


@pytest.fixture
def stopped(tmp_path):
    """Run a study and send servebench a signal while it cleans the log. Returns the folder of the run."""

    def stop(number):
        for lines in LINES:
            run, cut = start(number, lines)
            if cut:
                assert (run / ".engine.log.unclean").exists()
                return run
            shutil.rmtree(tmp_path / "outputs")
        pytest.fail("the clean-up was always over before the signal came")

    def start(number, lines):
        engine = tmp_path / "vllm"
        engine.write_text(ENGINE.replace("{lines}", str(lines)))
        engine.chmod(0o755)
        run = tmp_path / RUN
        words = (
            *("engine=vllm", f"engine.executable={engine}", "model.name=tiny", "workload=unique", "study.name=s"),
            *("load.concurrency=[2]", "load.requests=4", "load.self_check=never", f"++engine.env.VLLM_API_KEY={KEY}"),
        )
        with servebench_started(tmp_path, *words, env=home(tmp_path)) as process:
            wait_until(
                lambda: list(run.glob(".engine.log.*.tmp")) or process.poll() is not None, limit_s=COMMAND_LIMIT_S
            )
            process.send_signal(number)
            process.wait(COMMAND_LIMIT_S)
        return run, KEY in (run / "engine.log").read_text()

    return stop


def home(folder):
    return {"HOME": str(folder), "SERVEBENCH_CACHE": str(folder / "cache")}


def assert_clean(run):
    log = (run / "engine.log").read_text()
    assert KEY not in log
    assert log.count("token_ids: 5") in LINES
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_recover_finishes_the_log(stopped, tmp_path, number):
    """In a shell without the key, which servebench has from the command line."""
    run = stopped(number)
    done = run_servebench(tmp_path, "recover", env=home(tmp_path), code=0)
    assert "engine.log" in done.stdout
    assert_clean(run)
    assert "nothing to recover" in run_servebench(tmp_path, "recover", env=home(tmp_path)).stdout


@pytest.mark.slow
def test_resume_finishes_the_log(stopped, tmp_path):
    """Also one that then cannot go on, because it does not have the key again."""
    run = stopped(signal.SIGKILL)
    run_servebench(tmp_path, "resume", "s", "--failed", env=home(tmp_path))
    log = (run / "engine.log").read_text()
    assert KEY not in log


@pytest.mark.slow
def test_sync_sends_no_log_with_keys(stopped, tmp_path):
    run = stopped(signal.SIGKILL)
    run_servebench(tmp_path, "sync", "s", env=home(tmp_path), code=0)
    assert_clean(run)
    sent = [path for path in (tmp_path / "outputs").rglob("engine.log") if path != run / "engine.log"]
    assert sent
    assert not any(KEY in path.read_text() for path in sent)


@pytest.mark.slow
def test_recover_takes_keys_out_of_answers(endpoint, tmp_path):
    """A server repeats the key that it was given, and servebench is killed; recovery is in a shell without the key."""
    url, _ = endpoint(key=KEY, echo_key=True)
    run = tmp_path / "outputs/s/00_openai_unique"
    words = (
        *("engine=openai", "launch=attach", f"launch.base_url={url}", "model.name=tiny", "launch.api_key_env=MY_OWN"),
        *("workload=unique", "workload.output_tokens=4"),
        *("load.concurrency=[1]", "load.requests=100000", "study.name=s"),
        *("load.self_check=never", "load.warmup_requests=0", "tracking=none"),
    )
    with servebench_started(tmp_path, *words, env={**home(tmp_path), "MY_OWN": KEY}) as process:
        wait_until(
            lambda: (
                any(KEY.encode() in spool.read_bytes() for spool in run.glob("raw/*.spool"))
                or process.poll() is not None
            ),
            limit_s=COMMAND_LIMIT_S,
        )
        assert process.poll() is None
        process.kill()
        process.wait(COMMAND_LIMIT_S)
    run_servebench(tmp_path, "recover", env=home(tmp_path), code=0)
    texts = "".join(pd.read_parquet(path).to_json() for path in run.glob("*.parquet"))
    assert "[redacted]" in texts
    assert KEY not in texts
    assert not [
        path for path in (tmp_path / "outputs").rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()
    ]
