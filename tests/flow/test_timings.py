"""Where the time of requests goes, through the public command."""

import json
import re

import pytest

from servebench.contracts.engine import LaunchContext
from servebench.contracts.settings import EngineSettings, GpuSettings, ModelSettings
from servebench.engine.adapters.vllm import VllmEngine
from servebench.engine.launchers.emulated import EmulatedLauncher, EmulatedSettings
from servebench.run.phase import traceparent
from servebench.store.studies import load_run as read_run_data
from servebench.util.figures import with_interval
from support.commands import on_a_terminal
from support.results import attached_study, requests, run_of
from support.servers import own_port

ENGINE = ("engine=vllm", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "tracking=none", "study.name=s")
H100 = GpuSettings(name="h100", count=1, memory_gb=80.0, bandwidth_gb_s=3350.0, bf16_tflops=989.4)
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
@pytest.mark.parametrize(
    ("engine", "source", "found_in"),
    [
        ("vllm", "spans", "answer+spans"),
        ("sglang", "spans", "spans"),
        ("sglang", "after_load", "after_load"),
        ("trtllm", "after_load", "after_load"),
    ],
)
def test_times_that_come_beside_the_answers(run_main, tmp_path, engine, source, found_in):
    """Of all requests of an emulated engine over HTTP, with a queue; they add up, and the warm-up's are not waited for."""
    words = ("launch=emulated", "launch.time_scale=0.002", "load.requests=24", "engine.max_num_seqs=2")
    named = (f"engine.request_timings={source}", "engine.spans_address=127.0.0.1:0")
    done = run_main(f"engine={engine}", *ENGINE[1:], *LOAD[:1], *LOAD[2:], *words, *named, code=0)
    found = requests(run_of(tmp_path))
    found = found[(found.outcome == "ok") & ~found.filler]
    assert set(found.timings_from) == {found_in}
    assert "timings_missing" not in done.stdout
    assert found.traceparent.notna().all() == (source == "spans")
    assert found.response_id.notna().all() == (source == "after_load")
    parts = found[["server_queue_ms", "server_prefill_ms", "server_decode_ms", "network_ms", "delivery_ms"]].sum(axis=1)
    assert parts.to_numpy() == pytest.approx(((found.answered_ns - found.sent_ns) / 1e6).to_numpy(), abs=1e-3)
    # six of eight requests wait for the two slots
    assert found.server_queue_ms.sum() > found.server_decode_ms.sum()
    assert (found.server_prefill_ms > 0).all()


@pytest.mark.slow
def test_spans_of_a_server_that_was_already_running(run_main, tmp_path):
    """`launch=attach`: the server sends its spans to the port that the config names; one that sends none is marked."""
    ports = [own_port() for _ in range(2)]
    context = LaunchContext(
        engine=EngineSettings(name="vllm", request_timings=False), model=ModelSettings(name="m"), gpu=H100,
        port=own_port(), cache_dir=tmp_path, spans_endpoint=f"http://127.0.0.1:{ports[0]}/v1/traces",
    )  # fmt: skip
    settings = EmulatedSettings(name="emulated", time_scale=0.002)
    running = EmulatedLauncher().launch(VllmEngine(), context, settings, log_path=tmp_path / "log", say=lambda _: None)
    try:
        for index, port in enumerate(ports):
            words = (*attached_study(running.base_url), "model.name=m")
            load = (*LOAD[:1], "load.requests=16", *LOAD[2:], f"study.name={index}", "model.tokenizer=null")
            named = ("engine.request_timings=spans", f"engine.spans_address=127.0.0.1:{port}")
            done = run_main(*words, *load, *named, code=0)
            found = requests(run_of(tmp_path, f"{index}"))
            found = found[found.outcome == "ok"]
            assert set(found.timings_from.dropna()) == ({"spans"} if index == 0 else set())
            assert ("no spans for 16 of 16 requests" in done.stdout) == (index == 1)
    finally:
        running.stop()
