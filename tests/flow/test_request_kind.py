"""A kind of request that only its class and its line in the table know is measured from start to report."""

import pandas as pd
import pytest

from servebench.protocol.kinds.table import KINDS
from support.results import attached_study
from support.servers import ScriptedServer
from support.toy_kind import Vectors


def _serve(connection, request):
    if request.method == "GET":
        return (200, {"data": [{"id": "tiny"}]}) if request.path == "/v1/models" else (404, {})
    if request.path != "/v1/vectors":
        return 404, {"error": "not here"}
    body = request.json()
    if set(body) != {"model", "input"}:
        return 400, {"error": f"unknown fields in {sorted(body)}"}
    return 200, {"vector": [0.5, 0.25], "usage": {"prompt_tokens": len(body["input"]) // 4}}


@pytest.fixture
def vectors(monkeypatch):
    """The base URL of a server that makes vectors and has no other route; the kind is in the table."""
    monkeypatch.setitem(KINDS, "vectors", Vectors())
    server = ScriptedServer(_serve)
    yield server
    server.close()


def attach(server, *words):
    load = ("load.concurrency=[2]", "load.requests=20", "load.warmup_requests=2", "load.hold_level=false")
    return attached_study(server.base_url, "workload=unique", "workload.api=vectors", *load, *words)


def test_another_kind_is_measured(vectors, run_main, tmp_path):
    """It is ready by its own probe; its requests succeed; it has the columns that it says, and no others."""
    run_main(*attach(vectors, "workload.input_tokens=64", "workload.output_tokens=1"), code=0)
    assert {one.path for one in vectors.requests if one.method == "POST"} == {"/v1/vectors"}
    requests = pd.read_parquet(next(tmp_path.glob("outputs/*/*/requests.parquet")))
    assert set(requests.outcome) == {"ok"}
    assert requests.prompt_tokens.gt(0).all()
    point = pd.read_csv(next(tmp_path.glob("outputs/*/*/points.csv"))).iloc[0]
    assert (point.requests_ok, point.e2e_ms_p50 > 0, point.request_throughput_req_s > 0) == (20, True, True)
    lacked = [name for name in point.index if name.startswith(Vectors.lacks)]
    assert {"ttft_ms_p50", "itl_ms_p99", "tpot_ms_mean", "output_throughput_tok_s"} <= set(lacked)
    assert point[lacked].isna().all()


def test_no_scorer_of_texts_grades_vectors(vectors, run_main):
    """Before anything starts."""
    done = run_main(*attach(vectors, "quality=parity", "quality.api=vectors"), code=3)
    assert "quality.api=vectors" in done.stderr
    assert not vectors.requests


def test_an_unknown_kind_is_refused(run_main):
    """With the kinds that there are."""
    done = run_main("workload.api=cat", "quality.api=dog", code=2)
    for key, name in (("workload.api", "cat"), ("quality.api", "dog")):
        assert f"{key} must be 'chat', 'completions', " in done.stderr
        assert f"(got '{name}')" in done.stderr
