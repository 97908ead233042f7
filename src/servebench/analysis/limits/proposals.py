"""What to try against a limit: the engine's own settings, with values that follow from what is configured."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from servebench.analysis.limits.model import LevelFacts, LimitFinding, LimitReason, Proposal
from servebench.analysis.limits.roofline import weight_bytes
from servebench.contracts.labels import setting_text
from servebench.contracts.limits import Knob, Limit
from servebench.contracts.stored import RunData, is_number, mapping, value_at
from servebench.registry.registry import registry
from servebench.util.errors import ConfigError
from servebench.util.figures import number

Knobs = Mapping[Limit, Sequence[Knob]]
MAX_NUM_SEQS, QUANTIZATION, EXTRA_ARGS = "engine.max_num_seqs", "engine.quantization", "engine.extra_args."
TENSOR_PARALLEL, GPU_COUNT = "engine.tensor_parallel_size", "gpu.count"
STREAMS_PER_WORKER = 2000
"""Of `load.workers=auto`."""
WORKERS = Knob(key="load.workers", default=1, cost="CPU cores, which an engine on this machine then lacks")
OUTSIDE: Knobs = {
    Limit.CLIENT: (WORKERS,),
    Limit.NETWORK: (Knob(way="set", flag="a client and a server on one network", cost="another network is measured"),),
}
"""What is tried outside of the engine."""
FRONT_END_AT_WORK = (LimitReason.FRONT_END_BUSY, LimitReason.FRONT_END_WORK)


def engine_knobs_of(run: RunData) -> Knobs:
    """Return the settings that the engine of a run states for each limit; none for an engine that is not installed."""
    try:
        return registry().engine(run.fact("engine") or "").knobs
    except ConfigError:
        return {}


def default_running_limit(knobs: Knobs) -> float | None:
    """Return how many requests the engine runs at once by default; None if that is unknown."""
    return next((knob.default for knob in knobs.get(Limit.RUNNING, ()) if knob.key == MAX_NUM_SEQS), None)


def starts_engine(run: RunData) -> bool:
    """Return whether servebench started the engine of a run: only then its config says what the engine's settings are."""
    try:
        return registry().launcher(run.fact("launch") or "").local
    except ConfigError:
        return True


def with_proposals(
    finding: LimitFinding, config: Mapping[str, Any], knobs: Knobs, *, attached: bool = False
) -> LimitFinding:
    """Return the finding with what to try, in order; nothing that the config has already. `knobs` are those of the engine, which
    no argument changes if it is `attached`."""
    facts = finding.facts
    if finding.code is Limit.LOAD:
        return replace(finding, proposals=_more_load(facts, config))
    code = finding.code
    if code is Limit.BEFORE_ENGINE and not facts.same_machine:
        code = Limit.NETWORK
    # more processes do not help a front end that has CPU left
    helps = code is not Limit.FRONT_END or facts.front_end_cores is None or finding.reason in FRONT_END_AT_WORK
    found = [*knobs.get(code, ()), *OUTSIDE.get(code, ())] if helps else []
    own = [
        _of_server(knob) if attached and knob.key.startswith("engine.") else _proposal(knob, facts, config)
        for knob in found
        if attached or not _is_set(knob, config)
    ]
    return replace(finding, proposals=tuple(one for one in own if one is not None))


def _is_set(knob: Knob, config: Mapping[str, Any]) -> bool:
    """Return whether a config has the value of a knob already: the same, as much, or another of its family (`fp8_e5m2`). A model
    with quantized weights is quantized, and so is an engine with a method of its own."""
    found = value_at(config, _key_in(config, knob))
    if knob.key == QUANTIZATION:
        return bool(found) or weight_bytes(config) <= 1.0
    if knob.value is None or found is None:
        return False
    if isinstance(knob.value, str):
        return str(found).partition("_")[0] == knob.value.partition("_")[0]
    return is_number(found) and bool(found >= knob.value)


def configured(config: Mapping[str, Any], knobs: Sequence[Knob]) -> float | None:
    """Return the number to which a config sets the first of some settings; None without one."""
    value = value_at(config, _key_in(config, knobs[0])) if knobs else None
    return float(value) if is_number(value) else None


def _key_in(config: Mapping[str, Any], knob: Knob) -> str:
    """Return the key by which a config sets a knob: its own, or the engine's flag among `engine.extra_args`, in any spelling."""
    names = {_plain(knob.flag), _plain(knob.key.removeprefix(EXTRA_ARGS))} - {""}
    extra = mapping(mapping(config.get("engine")).get("extra_args"))
    return next((f"{EXTRA_ARGS}{name}" for name in extra if _plain(str(name)) in names), knob.key)


def _plain(flag: str) -> str:
    return flag.lstrip("-").replace("_", "-")


def _more_load(facts: LevelFacts, config: Mapping[str, Any]) -> tuple[Proposal, ...]:
    load, cost = mapping(config.get("load")), "latency rises as the engine fills up"
    if load.get("replay") is not None:
        scale = load.get("time_scale")
        text = f"{(scale if is_number(scale) else 1.0) / 2:.4g}"
        return (Proposal(way="lower", key="load.time_scale", to=text, override=f"load.time_scale={text}", cost=cost),)
    name = "rate" if facts.open_loop else "concurrency"
    listed = load.get(name)
    measured = listed if isinstance(listed, (list, tuple)) else ()
    if load.get("search") is not None or any(is_number(one) and one > facts.level.load for one in measured):
        return ()
    more = 2 * facts.level.load
    override = f"load.{name}=[{more:g}]" if more else None
    to = number(more) if more else ""
    return (Proposal(way="raise", key=f"load.{name}", to=to, override=override, cost=cost),)


def _of_server(knob: Knob) -> Proposal:
    """Return what to change where the server is started, in its own words: the config does not say how it is set."""
    to = setting_text(knob.value) if knob.way == "set" and knob.value is not None else ""
    key = "" if knob.flag else knob.key
    return Proposal(way=knob.way, key=key, flag=knob.flag, to=to, of_server=True, cost=knob.cost)


def _proposal(knob: Knob, facts: LevelFacts, config: Mapping[str, Any]) -> Proposal | None:
    found = Proposal(way=knob.way, key=knob.key, flag=knob.flag, cost=knob.cost)
    if knob.way == "set":
        text = setting_text(knob.value) if knob.value is not None and knob.key else ""
        return replace(found, to=text, override=f"{_key_in(config, knob)}={text}" if text else None)
    now = configured(config, [knob]) or _default(knob, facts)
    if now is None:
        return found
    to = _next_value(knob, now, facts)
    if to >= now if knob.way == "lower" else to <= now:
        return None
    text, key, also = f"{to:.4g}" if to < 1 else f"{to:.0f}", _key_in(config, knob), ""
    gpus = mapping(config.get("gpu")).get("count")
    if knob.key == TENSOR_PARALLEL and isinstance(gpus, int) and gpus < to:
        # by default as many GPUs are used as the parallelism says
        key = also = GPU_COUNT
    return replace(found, also=also, to=text, override=f"{key}={text}")


def _default(knob: Knob, facts: LevelFacts) -> float | None:
    """Return the value that a knob has without a config's: of running requests at least as many as ran."""
    if knob.key == WORKERS.key:
        # `auto` sets no number
        return max(1.0, ceil((facts.in_flight or 0.0) / STREAMS_PER_WORKER))
    if knob.key == MAX_NUM_SEQS:
        return max((one for one in (knob.default, facts.at_most) if one is not None), default=None)
    return knob.default


def _next_value(knob: Knob, now: float, facts: LevelFacts) -> float:
    """Return the value to try next: by the knob's factor; of running requests all that are in flight, or fewer than ran."""
    if knob.way == "lower":
        ran = facts.running if knob.key == MAX_NUM_SEQS and facts.running else now
        return max(1.0, round(min(now, ran) / knob.factor))
    to = now * knob.factor
    if knob.key == MAX_NUM_SEQS and facts.in_flight:
        to = max(to, float(round(facts.in_flight)))
    return to if knob.most is None else min(to, knob.most)
