"""Where the time of requests goes, through the public command."""

import json
import re

import pytest

from servebench.run.requests import traceparent
from servebench.store.studies import load_run as read_run_data
from servebench.util.figures import with_interval
from support.commands import on_a_terminal
from support.results import requests, run_of

ENGINE = ("engine=vllm", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "tracking=none", "study.name=s")
LOAD = ("load.concurrency=[8]", "load.requests=120", "workload=unique", "workload.output_tokens=16")


@pytest.mark.slow
def test_a_queue_is_found_in_its_part(run_main, tmp_path):
    """Eight users of two slots on a virtual clock: three of four turns are waiting; the parts add up to each request."""
    run_main(*ENGINE, *LOAD, "launch=simulated", "engine.max_num_seqs=2", code=0)
    found = requests(run_of(tmp_path))
    engine = found[["server_queue_ms", "server_prefill_ms", "server_decode_ms", "network_ms", "delivery_ms"]]
    e2e_ms = (found.last_event_ns - found.sent_ns) / 1e6
    assert engine.sum(axis=1).to_numpy() == pytest.approx(e2e_ms.to_numpy(), abs=1e-3)
    waiting_ms = found.server_queue_ms + found.network_ms  # the front end takes its time outside of the slots, too
    assert waiting_ms.sum() / e2e_ms.sum() == pytest.approx(0.75, rel=0.02)
    assert found.server_queue_ms.sum() > 10 * found.network_ms.sum()
    assert found.delivery_ms.abs().max() < 0.001
    shown = run_main("show", "s").stdout
    assert "of TTFT is waiting in vllm's queue" in shown
    assert re.search(r"TTFT +slowest 5 +[\d.,]+ ", shown)
    document = json.loads(run_main("show", "s", "--json").stdout)["times"]
    assert [(one["metric"], one["n"] == one["of"]) for one in document["parts"]] == [
        ("TTFT", True), ("TTFT", False), ("E2E", True), ("E2E", False),
    ]  # fmt: skip
    assert {one["metric"] for one in document["slow_tail"]} == {"TTFT", "E2E"}
    one = found.iloc[-1]
    timeline = run_main("show", "s", "--request", one.request_id)
    assert f"{one.server_queue_ms:,.2f} ms" in timeline.stdout
    wrong = run_main("show", "s", "--request", "nobody", code=2)
    assert "no such request" in wrong.stderr


@pytest.mark.slow
def test_a_run_of_four_levels_is_one_screen(run_main, tmp_path):
    """On a terminal each level has its numbers once; what is left out is there with -v."""
    run_main(*ENGINE, "launch=simulated", "load.concurrency=[1,2,4,8]", "load.requests=60", "study.starts=1", code=0)
    rows = read_run_data(run_of(tmp_path)).point_rows
    assert len(rows) == 4
    lengths = []
    for words in ((), ("-v",)):
        shown = on_a_terminal("show", "s", *words, cwd=tmp_path)
        lengths.append(len(shown))
        assert all(sum(with_interval(row, "output_throughput_tok_s") in line for line in shown) == 1 for row in rows)
        assert max(map(len, shown)) <= 80
    assert lengths[0] <= 40 < lengths[1]


@pytest.mark.slow
def test_the_times_of_a_server_are_read(run_main, tmp_path):
    """An emulated engine over HTTP, with trace headers: all parts are there, and each request has its trace."""
    words = ("launch=emulated", "launch.time_scale=0.002", "load.span_headers=true", "load.requests=24")
    run_main(*ENGINE, *LOAD, *words, code=0)
    found = requests(run_of(tmp_path))
    found = found[found.outcome == "ok"]
    assert found[["server_queue_ms", "server_prefill_ms", "server_decode_ms", "residual_ms"]].notna().all(axis=None)
    assert (found.server_decode_ms > 0).all()
    one = found.iloc[0]
    assert one.traceparent == traceparent(f"{one.run_id}/{one.point}", one.request_id)


@pytest.mark.slow
def test_turned_off_there_are_none(run_main, tmp_path):
    """`engine.request_timings=false`: nothing is read, and `show` says so, with what the client's stamps say."""
    run_main(*ENGINE, *LOAD, "launch=simulated", "engine.request_timings=false", "load.requests=40", code=0)
    assert requests(run_of(tmp_path))[["server_queue_ms", "network_ms", "residual_ms"]].isna().all(axis=None)
    shown = run_main("show", "s").stdout
    assert "vllm reports no times of its own" in shown
    heads = shown.partition("where the time goes")[2].split("───")[0].split()
    assert heads.count("until") == heads.count("after") == 1
    assert "queue" not in heads


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_times_that_come_after_the_load(run_main, tmp_path, engine):
    """Of all requests of an emulated engine over HTTP, with a queue; they add up, and the warm-up's are not waited for."""
    words = ("launch=emulated", "launch.time_scale=0.002", "load.requests=24", "engine.max_num_seqs=2")
    words = (*words, "engine.request_timings=after_load")
    done = run_main(f"engine={engine}", *ENGINE[1:], *LOAD[:1], *LOAD[2:], *words, code=0)
    found = requests(run_of(tmp_path))
    found = found[(found.outcome == "ok") & ~found.filler]
    assert set(found.timings_from) == {"after_load"}
    assert "timings_missing" not in done.stdout
    assert found.response_id.notna().all()
    parts = found[["server_queue_ms", "server_prefill_ms", "server_decode_ms", "network_ms", "delivery_ms"]].sum(axis=1)
    assert parts.to_numpy() == pytest.approx(((found.answered_ns - found.sent_ns) / 1e6).to_numpy(), abs=1e-3)
    # six of eight requests wait for the two slots
    assert found.server_queue_ms.sum() > found.server_decode_ms.sum()
    assert (found.server_prefill_ms > 0).all()
