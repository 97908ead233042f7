"""`engine.age`: how old the server is at each point, through the public command."""

import re
import signal
from contextlib import suppress

import httpx
import pandas as pd
import pytest

from servebench.contracts.age import WARM_REQUESTS, round_requests
from support.commands import COMMAND_LIMIT_S, servebench_started
from support.results import run_of, status
from support.servers import own_port
from support.waiting import wait_until

WORDS = (
    *("engine=vllm", "launch=simulated", "workload=unique", "workload.output_tokens=16", "gpu=rtx4090"),
    *("model=qwen2.5-1.5b-instruct", "tracking=none", "study.starts=1"),
    *("load.concurrency=[1,4]", "load.requests=20", "load.warmup_requests=5", "load.hold_level=false"),
)


def table(tmp_path, name):
    (path,) = (tmp_path / "outputs" / name).glob("*/points.parquet")
    return pd.read_parquet(path).sort_values("concurrency")


@pytest.mark.slow
def test_a_server_has_the_age_that_was_asked_for(run_main, tmp_path):
    """Each point says how old its server was and what it had served; what made it old is not stored as the point's."""
    for age in ("null", "fresh", "warm", "10m"):
        run_main(*WORDS, f"engine.age={age}", f"study.name=a-{age}", code=0)
    plain, fresh, warm, old = (table(tmp_path, f"a-{age}") for age in ("null", "fresh", "warm", "10m"))
    assert list(plain["server_requests_before"]) == [5, 5 + 20 + 5]
    assert list(fresh["server_requests_before"]) == [5, 5]
    assert fresh["start_id"].nunique() == 2
    assert plain["start_id"].nunique() == 1
    assert list(warm["server_requests_before"]) == [WARM_REQUESTS + 5, WARM_REQUESTS + 5 + 20 + 5]
    assert (old["server_age_s"] >= 600).all()
    assert (plain["server_age_s"] < 600).all()
    assert set(old["requests_ok"]) == {20}
    (requests,) = (tmp_path / "outputs" / "a-warm").glob("*/requests.parquet")
    assert len(pd.read_parquet(requests)) == 2 * (5 + 20)


def test_the_age_of_a_running_server_cannot_be_chosen(run_main):
    """It was started by somebody else."""
    run_main("endpoint=http://127.0.0.1:9/v1", "engine.age=fresh", "tracking=none", code=2)
    run_main(*WORDS, "engine.age=ancient", code=2)


def generated_tokens(port):
    """What the emulated server has generated so far."""
    with suppress(httpx.HTTPError):
        found = re.search(
            r"^vllm:generation_tokens_total\S* (\S+)", httpx.get(f"http://127.0.0.1:{port}/metrics").text, re.M
        )
        return float(found[1]) if found else 0.0
    return 0.0


@pytest.mark.slow
def test_a_server_that_is_made_old_is_left_at_once(tmp_path):
    """What makes it old is a load of its own, which an interrupt ends as it ends a point."""
    port = own_port()
    words = (
        "engine=vllm",
        "launch=emulated",
        "workload=unique",
        "workload.output_tokens=16",
        "tracking=none",
        "gpu=rtx4090",
    )
    words += (
        "engine.age=60m",
        f"engine.port={port}",
        "load.concurrency=[4]",
        "load.requests=20",
        "load.self_check=never",
    )
    with servebench_started(tmp_path, *words, "study.name=s", "study.quiet_wait_s=0") as process:
        wait_until(lambda: generated_tokens(port) > 16 * round_requests(4), process=process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=COMMAND_LIMIT_S)
    assert process.returncode not in (0, -signal.SIGTERM), err
    assert status(run_of(tmp_path, "s")) == "interrupted"
    assert generated_tokens(port) == 0.0
