"""Where the time of a request goes, and whether the parts add up."""

import pytest

from servebench.contracts.emulation import EmulationSpec
from servebench.contracts.engine import ServerTimings
from servebench.emulator.cost import StepCost, profile_for
from servebench.emulator.responses import timings_of
from servebench.emulator.scheduler import BatchScheduler, EmulatedRequest
from servebench.engine.adapters.vllm import VllmEngine
from servebench.measure.derive import timing_columns

MS = 1_000_000


def test_the_parts_and_their_residual():
    """Network and delivery are what the engine's times leave over; its own E2E shows how much of that is its front end."""
    said = ServerTimings(queue_ms=100.0, prefill_ms=50.0, kv_transfer_ms=5.0, decode_ms=200.0)
    plain = timing_columns(said, 0, 160 * MS, 363 * MS)
    assert (plain["network_ms"], plain["delivery_ms"], plain["residual_ms"]) == (5.0, 3.0, 8.0)
    whole = timing_columns(ServerTimings(queue_ms=100.0, prefill_ms=50.0, e2e_ms=361.0), 0, 160 * MS, 363 * MS)
    assert (whole["network_ms"], whole["delivery_ms"], whole["residual_ms"]) == (10.0, None, 2.0)


def test_an_engine_without_a_queue():
    """What remains before prefill may be its queue, so it is no residual; a prefill longer than TTFT is one."""
    said = ServerTimings(prefill_ms=50.0, decode_ms=200.0)
    assert timing_columns(said, 0, 160 * MS, 363 * MS)["network_ms"] == 110.0
    assert timing_columns(said, 0, 160 * MS, 363 * MS)["residual_ms"] == 3.0
    assert timing_columns(said, 0, 40 * MS, 240 * MS)["residual_ms"] == -10.0
    assert timing_columns(said, 0, 160 * MS, 350 * MS)["residual_ms"] == 0.0, "a late first token"
    assert timing_columns(ServerTimings(), 0, 1, 2)["residual_ms"] is None


def planted(running_max, *, prompt_tokens, step_ms, answer=20, requests=4, front_ms=0.0):
    """Return (timings, sent, first, last) in ms of requests that arrive at once in an engine with these bottlenecks."""
    emulation = VllmEngine.emulation
    changes = {
        "step_overhead_ms": step_ms,
        "request_overhead_ms": front_ms,
        "token_budget": 1_000,
        "token_budget_big": None,
    }
    spec = EmulationSpec(
        engine="vllm", model_name="m", host="", port=0, max_num_seqs=running_max, prefix_caching=False,
        emulation=type(emulation)(**{name: getattr(emulation, name) for name in emulation.__dataclass_fields__} | changes),
    )  # fmt: skip
    profile = profile_for(spec)
    scheduler = BatchScheduler(spec, StepCost(spec, profile))
    stream = [
        EmulatedRequest(key=n, prompt=f"{n} " * prompt_tokens, prompt_tokens=prompt_tokens, pieces=["x "] * answer)
        for n in range(requests)
    ]
    for request in stream:
        scheduler.submit(request, 0.0)
    now_s = 0.0
    while (ready_s := scheduler.next_ready_s()) is not None:
        step = scheduler.begin(max(now_s, ready_s))
        now_s = step.ends_s
        scheduler.end(step, now_s)
    return [(timings_of(spec, one), 0.0, one.first_s * 1e3, one.last_s * 1e3) for one in stream]


def columns_of(said, sent_ms, first_ms, last_ms, *, network_ms=0.0, delivery_ms=0.0):
    times = [sent_ms - network_ms, first_ms, last_ms + delivery_ms]
    return timing_columns(VllmEngine().request_timings(said, {}), *(round(at * MS) for at in times))


@pytest.mark.parametrize(
    ("bottleneck", "part"),
    [
        ({"running_max": 1, "prompt_tokens": 100, "step_ms": 5.0}, "server_queue_ms"),
        ({"running_max": 4, "prompt_tokens": 8_000, "step_ms": 50.0, "answer": 2, "requests": 1}, "server_prefill_ms"),
        ({"running_max": 4, "prompt_tokens": 10, "step_ms": 20.0, "answer": 200}, "server_decode_ms"),
        ({"running_max": 4, "prompt_tokens": 10, "step_ms": 0.1, "answer": 2, "front_ms": 300.0}, "network_ms"),
    ],
)
def test_the_planted_bottleneck_is_the_largest_part(bottleneck, part):
    """One slot; prompts of eight steps; long answers; a slow front end: the parts add up to E2E, and that one is the largest."""
    said, *at = planted(**bottleneck)[-1]
    found = columns_of(said, *at)
    parts = {
        name: found[name]
        for name in ("server_queue_ms", "server_prefill_ms", "server_decode_ms", "network_ms", "delivery_ms")
    }
    assert max(parts, key=parts.get) == part
    assert sum(parts.values()) == pytest.approx(at[2], abs=1e-3)
    assert (found["residual_ms"] <= 0.05 * at[2]) is (part != "network_ms")


@pytest.mark.parametrize(("where", "part"), [("network_ms", "network_ms"), ("delivery_ms", "delivery_ms")])
def test_a_planted_time_is_in_its_part(where, part):
    """200 ms of network before the first token, or of delivery after it: there within 2%, and in no time of the engine."""
    said, *at = planted(2, prompt_tokens=500, step_ms=5.0)[-1]
    before, after = columns_of(said, *at), columns_of(said, *at, **{where: 200.0})
    changed = {name: after[name] - before[name] for name in before if isinstance(before[name], float)}
    assert changed.pop(part) == pytest.approx(200.0, rel=0.02)
    assert changed.pop("residual_ms") == pytest.approx(200.0, rel=0.02)
    assert all(abs(change) < 1e-3 for change in changed.values())


def test_queue_is_the_time_that_earlier_answers_took():
    """With one slot the n-th request waits for n answers of the same length, within 2%."""
    waits = [columns_of(*one)["server_queue_ms"] for one in planted(1, prompt_tokens=100, step_ms=5.0)]
    served_ms = waits[1]
    assert served_ms > 100
    assert waits == pytest.approx([0.0, served_ms, 2 * served_ms, 3 * served_ms], rel=0.02, abs=0.1)
