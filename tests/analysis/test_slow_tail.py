"""What the slow tail has in common: planted causes are found, and causes that are not there are not."""

import random
from functools import cache
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from servebench.analysis.slow_tail import _extra, block_p_value, preemptions_per_s, where_time_goes
from servebench.analysis.time_parts import request_parts
from servebench.contracts.emulation import EmulationSpec, Variation
from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import RunData
from servebench.emulator.cost import profile_for
from servebench.emulator.scheduler import BatchScheduler, EmulatedRequest
from servebench.emulator.virtual import VaryingCost
from servebench.engine.adapters.vllm import VllmEngine
from servebench.report.screens.times import tail_lines
from servebench.util.units import NS_PER_S

SHARED = "system " * 700
"""A prefix of 1,225 tokens."""
STALL_AT_S, STALL_S = 5.0, 4.0
SEEDS = range(20)
LLAMA_8B = {"parameters_b": 8.0, "layers": 32, "hidden_size": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128}
H100 = {"memory_gb": 80, "bandwidth_gb_s": 3350, "bf16_tflops": 989.4, "fp8_tflops": 1978.9}


def prompt_of(plant, rng, index):
    """Prompts of 100 to 200 tokens behind the shared prefix, which 1 of 40 lacks where misses are planted; 1 of 40 is 30 times as
    long instead where those are planted."""
    rare = index % 40 == 39
    own = f"{index} " + "word " * round(rng.uniform(80, 160))
    if plant == "long":
        return own * (30 if rare else 1)
    return (f"{index} {SHARED[8:]}" if rare and plant == "misses" else SHARED) + own


@cache
def simulated(seed, plant=None, users=2, count=500):
    """Return a run of a closed loop on the emulator's scheduler; users pause between requests, and `plant` makes some slow."""
    rng = random.Random(f"{seed}/{plant}")
    machine = {"model": LLAMA_8B, "gpu": H100, "emulation": VllmEngine.emulation}
    spec = EmulationSpec(engine="vllm", model_name="m", host="", port=0, prefix_caching=True, **machine)
    profile = profile_for(spec)
    scheduler = BatchScheduler(spec, VaryingCost(spec, profile, Variation(), f"{seed}"))
    sent, now_s, stalled = 0, 0.0, plant != "stall"
    waiting = [(rng.uniform(0, 0.3), user) for user in range(users)]
    rows, at_s = [], {}
    while len(rows) < count:
        ready_s = scheduler.next_ready_s()
        while waiting and sent < count and (ready_s is None or waiting[0][0] <= max(now_s, ready_s)):
            begin_s, user = heappop(waiting)
            prompt = prompt_of(plant, rng, sent)
            pieces = ["x "] * rng.randint(8, 12)
            request = EmulatedRequest(
                key=sent, prompt=prompt, prompt_tokens=len(prompt) // 4, pieces=pieces, owner=user
            )
            scheduler.submit(request, begin_s)
            at_s[sent] = begin_s
            sent += 1
            ready_s = scheduler.next_ready_s()
        step = scheduler.begin(max(now_s, ready_s))
        now_s = step.ends_s
        if not stalled and now_s > STALL_AT_S:
            now_s, stalled = now_s + STALL_S, True
        for one, _ in scheduler.end(step, now_s):
            if one.generated < one.answer_tokens:
                continue
            heappush(waiting, (now_s + rng.expovariate(1 / 0.1), one.owner))
            rows.append(row_of(one, at_s[one.key], now_s))
    return run_of(pd.DataFrame(rows))


def row_of(one, sent_s, ended_s):
    stamps = {"scheduled_ns": sent_s, "sent_ns": sent_s, "first_event_ns": one.first_s, "ended_ns": ended_s}
    queue_ms, prefill_ms = 1e3 * (one.admitted_s - sent_s), 1e3 * (one.first_s - one.admitted_s)
    return {
        "point": "c8-r0", "request_id": str(one.key), "outcome": "ok", "warmup": False, "filler": False,
        **{name: round(at * NS_PER_S) for name, at in stamps.items()},
        "prompt_tokens": one.prompt_tokens, "cached_tokens": one.cached, "output_tokens": one.answer_tokens,
        "network_ms": 0.0, "server_queue_ms": queue_ms, "server_prefill_ms": prefill_ms, "server_kv_transfer_ms": np.nan,
        "server_decode_ms": 1e3 * (ended_s - one.first_s), "delivery_ms": 0.0,
    }  # fmt: skip


def run_of(requests, **columns):
    row = PointRow(
        point="c8-r0",
        concurrency=8,
        window_start_ns=2 * NS_PER_S,
        window_end_ns=int(requests["sent_ns"].max()),
        **columns,
    )
    empty = pd.DataFrame()
    return RunData(
        study_id="s", name="r", path=Path("r"), state={}, manifest={}, rows=lambda: [row],
        tables=lambda name, *_: requests if name == "requests" else empty,
    )  # fmt: skip


def tail_of(run, metric="TTFT"):
    (found,) = [one for one in where_time_goes(run)[1] if one.metric == metric]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "column", "slow", "rest"),
    [("long", "prompt_tokens", (3_000, 6_000), (90, 300)), ("misses", "cached_tokens", (0, 20), (1_200, 1_240))],
)
def test_a_planted_cause_is_found(plant, column, slow, rest):
    """1 of 40 prompts is 30 times as long, or not in the cache: at least 19 of 20 times it is found, with its numbers."""
    found = 0
    for seed in SEEDS:
        tail = tail_of(simulated(seed, plant))
        first = tail.common[0] if tail.is_tail and tail.common else None
        planted = [one for one in tail.common if one.kind.column == column]
        found += bool(
            first and planted and slow[0] <= planted[0].slow <= slow[1] and rest[0] <= planted[0].rest <= rest[1]
        )
    assert found >= 19


@pytest.mark.slow
def test_a_stall_is_found_by_its_stretch():
    """The engine stands still for 4 s: the slowest are all within one stretch, which begins before it ends."""
    found = 0
    for seed in SEEDS:
        tail = tail_of(simulated(seed, "stall", users=8), "E2E")
        stretch = tail.stretch
        found += bool(
            stretch
            and stretch.found
            and stretch.holds >= 4
            and STALL_AT_S - 3 < stretch.start_ns / NS_PER_S < STALL_AT_S + STALL_S
        )
    assert found >= 19


def irrelevant(requests, seed):
    """Return requests with lengths and cached tokens that have nothing to do with their times, alike in neighbours."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(3, len(requests)))
    for index in range(1, len(requests)):
        noise[:, index] += np.array([0.0, 0.7, 0.95]) * noise[:, index - 1]
    names = ("prompt_tokens", "cached_tokens", "output_tokens")
    return requests.sort_values("sent_ns").assign(**dict(zip(names, np.exp(noise).round(3) * 500, strict=True)))


@pytest.mark.slow
def test_what_is_no_cause_is_not_found():
    """Engines whose speed wanders, with a slow tail: in at most 2 of 40 runs a factor without effect, or a stretch, is found."""
    false, tails = 0, 0
    for seed in range(40):
        run = simulated(seed % 20, "long" if seed < 20 else "misses")
        run = run_of(irrelevant(run.requests, seed))
        found = where_time_goes(run)[1]
        tails += sum(one.is_tail for one in found)
        names = {f.kind.column for one in found for f in one.common} & {
            "prompt_tokens",
            "cached_tokens",
            "output_tokens",
        }
        false += bool(names or any(one.stretch and one.stretch.found for one in found))
    assert tails >= 40
    assert false <= 2


def test_a_p_value_over_blocks_allows_for_what_neighbours_share():
    """Blocks of ten equal values: the five largest neighbours are one coincidence, and five in different blocks are five."""
    ranks = np.repeat(np.arange(50.0), 10)
    assert block_p_value(ranks, np.arange(495, 500), 10) == pytest.approx(1 / 50, abs=0.01)
    assert block_p_value(ranks, np.array([459, 469, 479, 489, 499]), 10) < 0.001


def test_preemptions_count_while_a_request_is_in_the_engine():
    """Two preemptions between 10 s and 11 s: they are those of the request that was there, a second of them."""
    seconds = np.arange(20)
    samples = pd.DataFrame(
        {"t_ns": seconds * NS_PER_S, "value": np.where(seconds > 10, 2.0, 0.0), "name": "preemptions"}
    )
    requests = pd.DataFrame({"sent_ns": [2 * NS_PER_S, 10 * NS_PER_S], "ended_ns": [4 * NS_PER_S, 12 * NS_PER_S]})
    found = preemptions_per_s(requests, samples.assign(source="engine", raw_name="n", labels=""))
    assert found.tolist() == pytest.approx([0.0, 1.0])
    assert np.isnan(preemptions_per_s(requests, pd.DataFrame())).all()


def test_too_few_requests_and_no_tail_are_said():
    run = simulated(0, "long")
    few = run_of(run.requests.head(52))
    assert "too few requests for a slow tail (fewer than 50): TTFT at 8 users; E2E at 8 users" in tail_lines(
        where_time_goes(few)[1]
    )
    same = run_of(
        run.requests.assign(first_event_ns=run.requests["sent_ns"] + 10**6, ended_ns=run.requests["sent_ns"] + 10**7)
    )
    (line,) = tail_lines(where_time_goes(same)[1])
    assert line.startswith("no slow tail")


def test_the_finding_says_both_medians():
    (line, *_) = tail_lines([tail_of(simulated(0, "misses"))])
    assert "find 0 tokens in the prefix cache instead of 1,216" in line


@pytest.mark.parametrize(("lost_slow", "lost_rest", "found"), [(0, 0, True), (2, 40, True), (4, 0, False)])
def test_requests_without_times_do_not_change_the_part_that_is_longer(lost_slow, lost_rest, found):
    """A queue makes five of 100 slow. Lost spans make the whole of a TTFT look like one part."""
    ms = 1_000_000
    queue = np.where(np.arange(100) >= 95, 400.0, 0.0)
    lost = np.zeros(100, dtype=bool)
    lost[95 : 95 + lost_slow] = lost[:lost_rest] = True
    columns = {"network_ms": 1.0, "server_queue_ms": queue, "server_prefill_ms": 50.0, "server_kv_transfer_ms": np.nan,
               "server_decode_ms": 100.0, "delivery_ms": 0.0}  # fmt: skip
    requests = pd.DataFrame({"scheduled_ns": 0, "sent_ns": 0, **columns}, index=range(100)).astype(float)
    requests["first_event_ns"], requests["ended_ns"] = (51 + queue) * ms, (151 + queue) * ms
    requests.loc[lost, list(columns)] = np.nan
    part = _extra("TTFT", request_parts(requests), queue > 0)
    assert part == (("queue", pytest.approx(1.0)) if found else None)
