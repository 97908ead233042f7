"""Which settings of an engine act on what limits it: those that all engines share, with the engine's flags, and its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from servebench.contracts.limits import Knob, Limit
from servebench.engine.adapters.flags import FlagTable

FEWER_BITS = "answers may get worse: measure quality="
SLOWER_EACH = "each running request gets slower (TPOT), and the KV cache fills up sooner"
LONGER_STEPS = "streams wait longer while a prompt is computed (ITL p99)"
MORE_GPUS = "needs twice the GPUs, which exchange data in each step"

MAX_NUM_SEQS = Knob(key="engine.max_num_seqs", cost=SLOWER_EACH)
QUANTIZATION = Knob(key="engine.quantization", way="set", value="fp8", cost=FEWER_BITS)
TENSOR_PARALLEL = Knob(key="engine.tensor_parallel_size", default=1, cost=MORE_GPUS)
SHARED: Mapping[Limit, Sequence[Knob]] = {
    Limit.KV_CACHE: (
        Knob(key="engine.gpu_memory_fraction", default=0.9, most=0.95, cost="less memory for peaks of other use"),
        replace(MAX_NUM_SEQS, way="lower", cost="more requests wait in the queue, but none is computed twice"),
    ),
    Limit.RUNNING: (MAX_NUM_SEQS,),
    Limit.QUEUE: (MAX_NUM_SEQS,),
    Limit.COMPUTE: (QUANTIZATION, TENSOR_PARALLEL),
    Limit.MEMORY_BANDWIDTH: (QUANTIZATION, TENSOR_PARALLEL),
}


def engine_knobs(
    table: FlagTable, own: Mapping[Limit, Sequence[Knob]], *, max_num_seqs: int | None = None
) -> dict[Limit, Sequence[Knob]]:
    """Return for each limit the shared settings that the engine has a flag for, then its `own`. `max_num_seqs` is the least that
    the engine uses by default, if that is known: with fewer running it is not the limit."""
    defaults = {MAX_NUM_SEQS.key: max_num_seqs}
    names = {knob.key: knob.key.removeprefix("engine.") for knobs in SHARED.values() for knob in knobs}
    shared = {
        limit: [
            replace(knob, flag=table.flags[names[knob.key]], default=defaults.get(knob.key, knob.default))
            for knob in knobs
            if names[knob.key] in table.flags
        ]
        for limit, knobs in SHARED.items()
    }
    return {limit: (*shared.get(limit, ()), *own.get(limit, ())) for limit in Limit}


def argument(name: str, *, cost: str, default: float | None = None, value: Any = None, factor: float = 2.0) -> Knob:
    """Return a knob for a flag that no shared setting has; it goes to `engine.extra_args`. A number is raised, a `value` set."""
    way: Literal["set", "raise"] = "raise" if value is None else "set"
    key, flag = f"engine.extra_args.{name}", f"--{name}"
    return Knob(key=key, flag=flag, way=way, cost=cost, default=default, value=value, factor=factor)
