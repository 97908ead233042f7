"""Workloads that are more than prompts, each a whole run against an endpoint."""

from collections import Counter

import pandas as pd
import pytest

from servebench.workload.structured_json import TWIN_SUFFIX
from support.results import attached_study, run_of

SHORT = ("load=quick", "load.warmup_requests=0", "load.hold_level=false", "workload.output_tokens=12")


def tables(tmp_path):
    run = run_of(tmp_path)
    return pd.read_csv(run / "points.csv"), pd.read_parquet(run / "requests.parquet")


@pytest.mark.slow
def test_twins_show_what_a_schema_costs(endpoint, run_main, tmp_path):
    """Half of the requests carry a schema; answers are judged, pairs compared; adapters and priorities are sent."""
    url, behaviour = endpoint()
    words = ("workload=structured_json", "workload.twins=true", "workload.adapters=[a,b]", "workload.priorities=[3]")
    run_main(*attached_study(url, *SHORT, *words, "load.concurrency=[2]", "load.requests=20"), code=0)
    asked = [body for body in behaviour.seen if "priority" in body]
    assert len(asked) == 20
    assert sum("response_format" in body for body in asked) == 10
    assert {body["model"] for body in asked} == {"a", "b"}
    assert {body["priority"] for body in asked} == {3}
    (point,), requests = list(tables(tmp_path)[0].itertuples()), tables(tmp_path)[1]
    assert (point.json_compliance, point.json_compliance_n, point.json_compliance_unconstrained) == (0, 10, 0)
    assert 0.2 < point.json_compliance_high < 0.4
    twin = requests.request_id.str.endswith(TWIN_SUFFIX)
    ttft_ms = (requests.first_event_ns - requests.sent_ns) / 1e6
    tpot_ms = (requests.last_event_ns - requests.first_event_ns) / 1e6 / 11
    for column, times in ((point.constraint_ttft_ms, ttft_ms), (point.constraint_tpot_ms, tpot_ms)):
        assert column == pytest.approx(times[~twin].mean() - times[twin].mean(), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["multi_turn", "agent_loop"])
def test_sessions_are_sent_in_order(endpoint, run_main, tmp_path, workload):
    """No turn of a session is sent before the one before it was answered; each carries all that was said, the answers
    included."""
    url, behaviour = endpoint(ttft_s=0.05)
    words = (f"workload={workload}", "workload.exact_output=false", "workload.active=2")
    run_main(*attached_study(url, *SHORT, *words, "load.concurrency=[4]", "load.requests=20"), code=0)
    requests = tables(tmp_path)[1]
    assert len(requests) == 20
    for _, session in requests.sort_values("sent_ns").groupby("session_id"):
        assert list(session.request_id) == sorted(session.request_id)
        assert (session.sent_ns.to_numpy()[1:] >= session.ended_ns.to_numpy()[:-1]).all()
    lengths = Counter(len(body["messages"]) for body in behaviour.seen if body["messages"][0]["role"] == "system")
    assert set(lengths) >= {2, 4, 6, 8}
    said = [m["content"] for body in behaviour.seen for m in body["messages"] if m["role"] == "assistant"]
    assert len(said) > 10
    assert set(said) == {" word" * 12}


@pytest.mark.slow
def test_a_failed_turn_ends_its_session(endpoint, run_main, tmp_path):
    """The turns after it are rows that say so, were never sent, and are in nobody's latency; the ledger adds up."""
    # one of the first two requests fails, each of which begins a session
    url, _ = endpoint(fail_every=2)
    words = ("workload=multi_turn", "workload.exact_output=false", "load.concurrency=[2]", "load.requests=16")
    done = run_main(*attached_study(url, *SHORT, *words), code=0)
    (point,), requests = list(tables(tmp_path)[0].itertuples()), tables(tmp_path)[1]
    outcomes = Counter(requests.outcome)
    ended = requests[requests.outcome == "session_ended"]
    assert outcomes["http_error"] >= 1
    assert len(ended) >= 1
    assert ended.sent_ns.isna().all()
    assert ended.error.str.contains("503").all()
    assert point.requests_failed == outcomes["http_error"] + len(ended)
    assert len(requests) == 16
    assert "503" in done.stdout
