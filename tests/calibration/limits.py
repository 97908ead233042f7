"""Cells of `analysis.limits`: simulated engines with one planted bottleneck each, and engines without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from calibration.cells import CalibrationCell, Outcome, Promise
from calibration.simulate import USUAL, Plant, SimulatedRun, run_data, simulate_run
from servebench.analysis.limits import findings
from servebench.analysis.limits.model import LimitFinding
from servebench.analysis.time_parts import request_parts
from servebench.contracts.limits import Limit
from servebench.contracts.point_row import POINT_COLUMNS
from support.records import requests_frame

LIMIT_NAMED = Promise(
    name="limit_named",
    text="the finding names a planted bottleneck, and none where there is none",
    bar=0.95,
    at_most=False,
)
LIMIT_PART = Promise(
    name="limit_part",
    text="the planted time is in the right part of the request time within 2%",
    bar=0.95,
    at_most=False,
)
LIMIT_ACTED = Promise(
    name="limit_acted",
    text="the first proposal, or the end of what was planted outside of the engine, improves what it should",
    bar=0.95,
    at_most=False,
)
PART_ERROR = 0.02
NETWORK_MS = 50.0
COMMON = ("telemetry.enabled=true", "load.hold_level=false", "gpu=rtx4090")
"""A GPU without a fitted profile: its steps follow from the roofline, and nothing but a planted delay is before the engine."""
CHAT = ("workload.input_tokens=256", "workload.output_tokens=128")


@dataclass(frozen=True)
class Bottleneck:
    """What is planted: words of the command and deviations of the engine. One of `codes` is right; `planted` ends outside of the
    engine where no setting of it acts."""

    name: str
    words: tuple[str, ...]
    codes: tuple[Limit, ...]
    part: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)

    def plant(self, override: str | None = None) -> Plant:
        """Return what is simulated; with an `override`, which replaces the word of its key."""
        key = (override or "").partition("=")[0]
        own = {word.partition("=")[0] for word in self.words}
        common = [word for word in COMMON if word.partition("=")[0] not in own]
        words = [word for word in (*common, *self.words) if word.partition("=")[0] != key]
        return Plant(words=(*words, *([override] if override else [])), variation=USUAL).planted(**self.changes)


def _users(count: int, requests: int = 128) -> tuple[str, ...]:
    return (f"load.concurrency=[{count}]", f"load.requests={requests}")


BOTTLENECKS = (
    Bottleneck(
        "4 running requests for 16 users", (*_users(16), *CHAT, "engine.max_num_seqs=4"), (Limit.RUNNING,), "queue"
    ),
    Bottleneck(
        "a KV cache for a third of 32 users",
        (*_users(32, 192), *CHAT, "engine.gpu_memory_fraction=0.645"),
        (Limit.KV_CACHE,),
        "queue",
    ),
    Bottleneck(
        "64 tokens a step, 32 users",
        (*_users(32, 192), *CHAT, "engine.extra_args.max-num-batched-tokens=64"),
        (Limit.TOKEN_BUDGET,),
        "queue",
    ),
    Bottleneck(
        "64 tokens a step, 1 user",
        (*_users(1, 60), *CHAT, "engine.extra_args.max-num-batched-tokens=64"),
        (Limit.TOKEN_BUDGET,),
    ),
    Bottleneck(
        "a front end of 150 ms, 32 users",
        (*_users(32, 192), *CHAT),
        (Limit.FRONT_END,),
        "front end",
        {"front_end_ms": 150.0},
    ),
    Bottleneck(
        "a network of 50 ms, 8 users", (*_users(8), *CHAT), (Limit.NETWORK,), "network", {"network_ms": NETWORK_MS}
    ),
    Bottleneck(
        "a client that is 30 ms late", (*_users(8), *CHAT), (Limit.CLIENT,), "client", {"client_lateness_ms": 30.0}
    ),
    Bottleneck(
        "8 slots of llama.cpp (no queue time) for 16 users", ("engine=llamacpp", *_users(16), *CHAT), (Limit.RUNNING,)
    ),
    Bottleneck(
        "4 running requests of SGLang (only gauges) for 16 users",
        ("engine=sglang", *_users(16), *CHAT, "engine.max_num_seqs=4"),
        (Limit.RUNNING,),
    ),
    Bottleneck("8 users", (*_users(8), *CHAT), (Limit.MEMORY_BANDWIDTH,)),
    Bottleneck(
        "prompts of 4,000 tokens, 8 users",
        (*_users(8), "workload.input_tokens=4000", "workload.output_tokens=8"),
        (Limit.COMPUTE,),
    ),
    Bottleneck(
        "1 request in 2 s",
        ("load=rate", "load.rate=[0.5]", "load.hold_level=true", "load.requests=60", *CHAT),
        (Limit.LOAD,),
    ),
)
HEALTHY = (
    Bottleneck("no bottleneck: 8 users, no GPU described", (*_users(8), *CHAT, "gpu=none"), (Limit.NONE,)),
    Bottleneck("no bottleneck: as many may run as there are users", (*_users(8), *CHAT, "engine.max_num_seqs=8"),
               (Limit.MEMORY_BANDWIDTH,)),
    Bottleneck("no bottleneck: steps of twice the time", (*_users(8), *CHAT), (Limit.NONE,), None, {"slowdown": 2.0}),
    Bottleneck("no bottleneck: no engine times", (*_users(8), *CHAT, "gpu=none", "engine.request_timings=false"), (Limit.NONE,)),
)  # fmt: skip


def cells() -> Iterator[CalibrationCell]:
    """Yield the cells."""
    for one in (*BOTTLENECKS, *HEALTHY):
        promises = (LIMIT_NAMED, LIMIT_ACTED, LIMIT_PART) if one in BOTTLENECKS else (LIMIT_NAMED,)
        yield CalibrationCell(promises=promises, name=one.name, trial=partial(_trial, one=one), share=0.1)


def found_in(plant: Plant, seed: int) -> tuple[SimulatedRun, Sequence[LimitFinding]]:
    """Return a simulated run and its findings."""
    run = simulate_run(plant, f"{seed}", seed=seed)
    return run, findings(run_data(run, plant, "planted"))


def _trial(seed: int, _truth: Any, *, one: Bottleneck) -> Outcome:
    run, (finding,) = found_in(one.plant(), seed)
    outcome: dict[tuple[Promise, str], float | None] = {(LIMIT_NAMED, ""): float(finding.code in one.codes)}
    if one not in BOTTLENECKS:
        return outcome
    if one.part is not None:
        outcome[LIMIT_PART, ""] = float(abs(_part_error(run, one, seed)) <= PART_ERROR)
    override = next((proposal.override for proposal in finding.proposals if proposal.override), None)
    acted = one.plant(override)
    if one.codes == (Limit.NETWORK,):
        acted = acted.planted(network_ms=0.0)
    after = simulate_run(acted, f"{seed}", seed=seed)
    before_value, after_value = (some.rows[0].get(finding.improves or "") for some in (run, after))
    higher = finding.improves is not None and POINT_COLUMNS[finding.improves].better == "higher"
    better = before_value is not None and after_value is not None and (after_value > before_value) is higher
    outcome[LIMIT_ACTED, ""] = float(better and after_value != before_value)
    return outcome


def _part_error(run: SimulatedRun, one: Bottleneck, seed: int) -> float:
    """Return by how much a part differs from what was planted, as a share of that.

    What the scheduler made requests wait is known from its own counters. A network's delay is what was planted, beyond the
    same run without it; a client's is drawn at random, so its truth is what was drawn.
    """
    parts = _parts(run)
    if one.part == "client":
        drawn = [((record.sent_ns or 0) - record.scheduled_ns) / 1e6 for record in run.records[0]]
        return parts["client"] / fmean(drawn) - 1.0
    if one.part == "network":
        without = simulate_run(one.plant().planted(network_ms=0.0), f"{seed}", seed=seed)
        return (parts["network"] - _parts(without)["network"]) / NETWORK_MS - 1.0
    return (parts["network"] + parts["queue"]) / (run.rows[0].server_queue_time_ms_mean or 0.0) - 1.0


def _parts(run: SimulatedRun) -> dict[str, float]:
    frame = request_parts(requests_frame([record for record in run.records[0] if record.outcome == "ok"]))
    return {str(name): float(mean) for name, mean in frame.mean().items()}
