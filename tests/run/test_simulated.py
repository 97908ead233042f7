"""A phase of load on a virtual clock: the same schedule as the emulated server's, and deviations as large as planted."""

import json
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest

from servebench.contracts.emulation import Emulation, EmulationSpec, Variation
from servebench.contracts.exchange import PlannedRequest, PointPlan
from servebench.engine.launchers.emulated import SimulatedEngine
from servebench.load.client.scheduler import LEFT
from servebench.measure.derive import e2e_ms, lateness_ms, ttft_ms
from servebench.run.simulated import SimulatedLoad, virtual_engine
from support.records import phase_facts
from support.virtual_clients import Clients, prompt_of, simulate

MODEL = {"parameters_b": 1.54, "layers": 28, "hidden_size": 1536, "heads": 12, "kv_heads": 2, "head_dim": 128}
GPU = {"memory_gb": 24, "bandwidth_gb_s": 1008, "bf16_tflops": 165}
STEADY = {"start_sd": 0.0, "wander_sd": 0.0, "step_noise": 0.0}
EXACT = {"ignore_eos": True}


def engine(key="0", own=None, **variation):
    spec = EmulationSpec(
        engine="toy", model_name="m", host="h", port=1, model=MODEL, gpu=GPU, exact_output=EXACT,
        emulation=own or Emulation(),
    )  # fmt: skip
    varied = Variation(**{**STEADY, **variation})
    return SimulatedEngine(
        spec=spec, variation=varied, key=key, model="m", started_ns=10**18, ready_s=0.0, base_urls=("",)
    )


def request(number, tokens=20, prompt=32, **more):
    body = {
        "model": "m", "prompt": prompt_of(number, prompt), "max_tokens": tokens, "stream": True,
        "stream_options": {"include_usage": True}, **EXACT,
    }  # fmt: skip
    body = json.dumps(body).encode()
    return PlannedRequest(request_id=f"r{number}", path="/v1/completions", body=body, **more)


def drive(running, requests, concurrency=4, **plan):
    facts = phase_facts(run_id="s/r", point="c4", concurrency=concurrency)
    plan = {"timeout_s": 600.0, "connect_timeout_s": 1.0, **plan}
    planned = PointPlan(requests=requests, concurrency=concurrency, **plan)
    return SimulatedLoad(running).drive(planned, facts, lambda counts: None)


@pytest.mark.parametrize("own", [Emulation(), Emulation(mixed_steps=False, block_tokens=8), Emulation(max_num_seqs=2)])
def test_a_closed_loop_is_that_of_the_emulated_schedule(own):
    """Request by request, within a nanosecond, whether steps are taken one by one or many at once."""
    report, records = drive(engine(own=own), [request(n, tokens=20 + n % 7) for n in range(40)])
    running = engine(own=own)
    slow = virtual_engine(running)
    slow.scheduler.decode_ahead = lambda now_s, before_s: []
    _, one_by_one = drive(running, [request(n, tokens=20 + n % 7) for n in range(40)])
    assert [r.request_id for r in records] == [r.request_id for r in one_by_one]
    for fast, single in zip(records, one_by_one, strict=True):
        assert fast.event_ns == pytest.approx(single.event_ns, abs=200)
    _, same = drive(engine(own=own), [request(n) for n in range(40)])
    spec = engine(own=own).spec
    expected = simulate(spec, Clients(concurrency=4, requests=40, input_tokens=32, output_tokens=20))
    assert sorted(map(ttft_ms, same)) == pytest.approx(sorted(expected.ttft_ms), abs=1e-3)
    assert sorted(map(e2e_ms, same)) == pytest.approx(sorted(expected.e2e_ms), abs=1e-3)
    assert report.sent == report.planned == 40
    assert {(r.outcome, r.output_tokens, r.finish_reason) for r in same} == {("ok", 20, "length")}


def test_the_same_key_gives_the_same_numbers_and_another_start_another_speed():
    """Noise, wander and failures included; the spread between starts is the planted one."""
    varied = {"start_sd": 0.03, "wander_sd": 0.02, "step_noise": 0.03, "failure_rate": 0.1, "client_lateness_ms": 0.2}
    one, two, other = (drive(engine(key, **varied), [request(n) for n in range(60)])[1] for key in ("a", "a", "b"))
    assert one == two
    assert one != other
    speeds = []
    for start in range(200):
        _, records = drive(engine(f"{start}", start_sd=0.03), [request(0)], concurrency=1)
        speeds.append(math.log(e2e_ms(records[0])))
    assert statistics.stdev(speeds) == pytest.approx(0.03, rel=0.2)


@pytest.mark.slow
def test_speed_wanders_as_planted():
    """Standard deviation and correlation time, of requests that are one second long."""
    step_s = 0.0048
    tokens = round(0.5 / step_s)
    running = engine(wander_sd=0.05, wander_s=2.0)
    _, records = drive(running, [request(n, tokens=tokens) for n in range(1_500)], concurrency=1)
    logs = [math.log(e2e_ms(record)) for record in records]
    mean = statistics.fmean(logs)
    sd = statistics.stdev(logs)
    lag = round(2.0 * 1e3 / statistics.fmean(map(e2e_ms, records)))
    kept = statistics.fmean((a - mean) * (b - mean) for a, b in zip(logs, logs[lag:], strict=False)) / sd**2
    assert sd == pytest.approx(0.05, rel=0.2)
    assert kept == pytest.approx(math.exp(-1), abs=0.15)


@pytest.mark.slow
def test_the_machine_wanders_for_all_engines_alike():
    """Two engines that begin at different moments are slow at the same moments; other machines and other times are apart."""

    def logs(key, began_s, seed=1, **more):
        running = engine(key, machine_sd=0.1, machine_s=10.0, machine_seed=seed, start_sd=0.01, **more)
        running = replace(running, started_ns=running.started_ns + began_s * 10**9)
        _, records = drive(running, [request(n, tokens=104) for n in range(1_000)], concurrency=1)
        return [(r.sent_ns / 1e9, math.log(e2e_ms(r))) for r in records]

    one, late, other = logs("a", 0), logs("b", 100, slowdown=1.1), logs("a", 0, seed=2)
    moments = np.arange(one[0][0] + 110, one[-1][0] - 10, 1.0)
    x, y, z = (np.interp(moments, *zip(*found, strict=True)) for found in (one, late, other))
    assert np.std(x) == pytest.approx(0.1, rel=0.3)
    assert np.corrcoef(x, y)[0, 1] > 0.99
    assert abs(np.corrcoef(x, z)[0, 1]) < 0.5


def test_drift_and_slowdown_lengthen_every_step():
    """5% a minute, and a slowdown of 5%."""
    _, plain = drive(engine(), [request(n) for n in range(5)], concurrency=1)
    _, slower = drive(engine(slowdown=1.05), [request(n) for n in range(5)], concurrency=1)
    assert [e2e_ms(r) for r in slower] == pytest.approx([1.05 * e2e_ms(r) for r in plain], rel=1e-6)
    _, drifting = drive(engine(drift=0.05), [request(n, tokens=500) for n in range(60)], concurrency=1)
    passed_min = (drifting[-1].sent_ns - drifting[0].sent_ns) / 60e9
    assert math.log(e2e_ms(drifting[-1]) / e2e_ms(drifting[0])) == pytest.approx(0.05 * passed_min, rel=0.05)


def test_a_shift_lasts_from_its_moment_on():
    """Not before it begins, in part while it takes place, whole after it."""
    _, plain = drive(engine(), [request(n, tokens=500) for n in range(9)], concurrency=1)
    each_s = e2e_ms(plain[0]) / 1000
    shift = {"shift": 0.2, "shift_s": 3 * each_s, "shift_over_s": 2 * each_s}
    _, found = drive(engine(**shift), [request(n, tokens=500) for n in range(9)], concurrency=1)
    ratios = [e2e_ms(after) / e2e_ms(before) for before, after in zip(plain, found, strict=True)]
    assert ratios[:2] == pytest.approx([1, 1])
    assert 1.02 < ratios[3] < ratios[4] < 1.2
    assert ratios[6:] == pytest.approx([1.2] * 3, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("burst", [1, 8])
def test_failures_come_at_their_rate_in_bursts(burst):
    """With the message of an HTTP error; the mean length of a burst is the planted one."""
    running = engine(failure_rate=0.1, failure_burst=burst)
    _, records = drive(running, [request(n, tokens=2) for n in range(6_000)], concurrency=1)
    failed = [record.outcome != "ok" for record in records]
    assert {(r.outcome, r.http_status, r.error) for r in records} == {
        ("ok", 200, None), ("http_error", 500, "HTTP 500: The engine failed, as planned.")
    }  # fmt: skip
    assert statistics.fmean(failed) == pytest.approx(0.1, rel=0.25)
    starts = sum(now and not before for before, now in zip([False, *failed], failed, strict=False))
    assert sum(failed) / starts == pytest.approx(burst / 0.9 if burst == 1 else burst, rel=0.25)


def test_an_open_loop_sends_at_its_times_and_lateness_is_planted():
    """To the nanosecond without lateness."""
    planned = [request(n, scheduled_s=0.01 * n) for n in range(300)]
    _, exact = drive(engine(), planned, concurrency=300)
    start_ns = 10**18 + 10**9
    sent = {r.request_id: r.sent_ns - start_ns for r in exact}
    assert [sent[f"r{n}"] for n in range(300)] == pytest.approx([10**7 * n for n in range(300)], abs=2)
    _, late = drive(engine(client_lateness_ms=3.0), planned, concurrency=300)
    assert statistics.fmean(map(lateness_ms, late)) == pytest.approx(3.0, rel=0.2)


def test_a_user_who_leaves_and_a_timeout():
    """Keep the tokens that had come; the engine computes nothing more for them."""
    planned = [request(0, tokens=1000, cancel_after_s=0.5), request(1, tokens=1000)]
    running = engine()
    report, records = drive(running, planned, concurrency=2, timeout_s=1.0)
    first, second = records
    assert (first.outcome, second.outcome) == ("abandoned", "timeout")
    assert first.error == LEFT
    assert second.error == "no complete answer within 1 s"
    assert 0 < len(first.event_ns) < len(second.event_ns) < 1000
    assert first.event_ns[-1] <= first.sent_ns + 5 * 10**8 == first.ended_ns
    assert virtual_engine(running).scheduler.in_engine() == 0
    assert report.sent == 2


def test_a_point_by_time_ends_by_time():
    """No request is sent after the end; those in flight may finish."""
    report, records = drive(engine(), [request(n) for n in range(2000)], duration_s=3.0)
    start_ns = records[0].scheduled_ns
    assert max(r.sent_ns for r in records) < start_ns + 3 * 10**9
    assert {r.outcome for r in records} == {"ok"}
    assert 3.0 <= report.elapsed_s < 3.5


def test_a_next_turn_contains_the_answer_before_it():
    """Turns of a session follow each other after their think time, with the real answer in the prompt."""
    second = request(1, session_id="s", think_s=2.0)
    body = second.body.replace(b'"prompt": "', b'"prompt": "', 1)
    at = body.index(b'"prompt": "') + len(b'"prompt": "')
    second = PlannedRequest(
        request_id="r1", path=second.path, body=body, session_id="s", think_s=2.0, holes=((at, "r0"),)
    )
    _, (before, after) = drive(engine(), [request(0, session_id="s"), second])
    assert (before.outcome, after.outcome) == ("ok", "ok")
    assert after.sent_ns - before.ended_ns == pytest.approx(2 * 10**9, abs=2)
    assert after.prompt_tokens == 32 + 20
    _, ended = drive(engine(failure_rate=0.999), [request(0, session_id="s"), second])
    assert [r.outcome for r in ended] == ["http_error", "session_ended"]


def test_ctrl_c_ends_the_phase_with_what_there_is(monkeypatch):
    """As the load client does."""
    running = engine()
    machine = virtual_engine(running)
    run_until, calls = machine.run_until, []

    def interrupted(limit_s):
        calls.append(limit_s)
        if len(calls) > 10:
            raise KeyboardInterrupt
        return run_until(limit_s)

    monkeypatch.setattr(machine, "run_until", interrupted)
    report, records = drive(running, [request(n) for n in range(100)])
    assert report.stopped == "interrupt"
    assert {r.outcome for r in records} == {"ok", "cancelled"}
    assert report.sent == len(records)
