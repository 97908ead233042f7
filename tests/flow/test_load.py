"""Loads that are more than a list of levels, each a whole run against an endpoint."""

import json

import pandas as pd
import pytest

from support.results import attached_study, document, run_of

SHORT = ("workload=unique", "workload.input_tokens=16", "workload.output_tokens=4", "load.warmup_requests=0")


def tables(tmp_path):
    run = run_of(tmp_path)
    return document(run / "manifest.json"), pd.read_csv(run / "points.csv"), pd.read_parquet(run / "requests.parquet")


@pytest.mark.slow
def test_a_trace_is_replayed_by_two_workers(endpoint, servebench, tmp_path):
    """Half as slow as recorded, each request on time, and the client's own error beside the point."""
    arrivals_ms = [1000, 1100, 1160, 1400, 1410, 1800]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"timestamp": at}) + "\n" for at in arrivals_ms))
    url, _ = endpoint()
    words = ("load=replay", "load.replay.path=t.jsonl", "load.time_scale=2", "load.workers=2")
    servebench(*attached_study(url, *SHORT, *words), code=0)
    manifest, points, requests = tables(tmp_path)
    (point,) = points.itertuples()
    assert (point.point, point.requests_ok, point.requests_planned) == ("replay-r0", 6, 6)
    assert abs(point.rate - 5 / 1.6) < 1e-6
    due_ms = requests.sort_values("request_id").scheduled_ns.to_numpy() / 1e6
    for worker in (0, 1):
        own, planned = due_ms[worker::2], arrivals_ms[worker::2]
        assert list(own - own[0]) == pytest.approx([2 * (at - planned[0]) for at in planned], abs=0.1)
    assert (requests.sent_ns >= requests.scheduled_ns).all()
    floor = manifest["self_check"]
    assert point.client_error_ms_ttft in [stage["ttft_error_ms"] for stage in floor["stages"]]
    assert point.client_error_ms_itl > 0


@pytest.mark.slow
def test_a_ramp_a_cool_down_and_users_who_go_away(endpoint, run_main, tmp_path):
    """Those who left are neither ok nor failed; the window begins when the last stream has joined."""
    url, _ = endpoint(ttft_s=0.02, gap_s=0.05)
    words = ("load=quick", "load.concurrency=[4]", "load.requests=60", "+load.ramp.over_s=0.6", "load.self_check=never")
    leave = ("load.cooldown_requests=8", "load.cancel_fraction=0.3", "load.cancel_after_s=0.1")
    run_main(*attached_study(url, *SHORT, *words, *leave), code=0)
    manifest, points, requests = tables(tmp_path)
    (point,) = points.itertuples()
    gone = requests[requests.outcome == "abandoned"]
    assert 8 <= len(gone) <= 30
    assert (point.requests_ok, point.requests_failed) == (60 - len(gone), 0)
    assert ((gone.ended_ns - gone.sent_ns) / 1e6 >= 95).all()
    assert "errors" not in point.doubts
    assert point.window_start_ns - requests.sent_ns.min() > 0.4e9
    assert (requests.sent_ns > point.window_end_ns).sum() >= 8
    assert "self_check" not in manifest
    assert pd.isna(point.client_error_ms_ttft)


def test_mistakes_in_a_load(run_main):
    """All told together, before anything starts."""
    words = attached_study("http://127.0.0.1:9/v1", "load=replay", "load.replay.path=absent.jsonl")
    done = run_main(*words, "load.rate=[1]", code=2)
    assert "load.rate" in done.stderr
    assert "load.replay" in done.stderr
    assert "load.replay.path=absent.jsonl" in run_main(*words, code=2).stderr
