"""`engine.age`: how old the server is at each point, through the public command."""

import pandas as pd
import pytest

from servebench.contracts.age import WARM_REQUESTS

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
