"""What to try against a limit: the engine's own settings, with values that follow from what is configured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from servebench.analysis.limits.model import LevelFacts, LimitFinding, Proposal
from servebench.analysis.limits.roofline import weight_bytes
from servebench.contracts.limits import Knob, Limit
from servebench.contracts.stored import RunData, mapping
from servebench.registry.registry import registry
from servebench.util.errors import ConfigError
from servebench.util.figures import number

Knobs = Mapping[Limit, Sequence[Knob]]
MAX_NUM_SEQS, QUANTIZATION = "engine.max_num_seqs", "engine.quantization"
WORKERS = Knob(key="load.workers", default=1, cost="CPU cores, which an engine on this machine then lacks")
OUTSIDE: Knobs = {
    Limit.CLIENT: (WORKERS,),
    Limit.NETWORK: (Knob(way="set", flag="a client and a server on one network", cost="another network is measured"),),
}
"""What is tried outside of the engine."""


def engine_knobs_of(run: RunData) -> Knobs:
    """Return the settings that the engine of a run states for each limit; none for an engine that is not installed."""
    try:
        return registry().engine(run.fact("engine") or "").knobs
    except ConfigError:
        return {}


def default_running_limit(knobs: Knobs) -> float | None:
    """Return how many requests the engine runs at once by default; None if that is unknown."""
    return next((knob.default for knob in knobs.get(Limit.RUNNING, ()) if knob.key == MAX_NUM_SEQS), None)


def with_proposals(finding: LimitFinding, facts: LevelFacts, config: Mapping[str, Any], knobs: Knobs) -> LimitFinding:
    """Return the finding with what to try, in order. `knobs` are those of the engine."""
    if finding.code is Limit.LOAD:
        return replace(finding, proposals=(_more_load(facts),))
    of_both = (Limit.FRONT_END, Limit.NETWORK) if finding.code is Limit.BEFORE_ENGINE else (finding.code,)
    found = [knob for code in of_both for knob in (*knobs.get(code, ()), *OUTSIDE.get(code, ()))]
    new = [knob for knob in found if not _is_set(knob, config)]
    return replace(finding, proposals=tuple(_proposal(knob, facts, config) for knob in new))


def _is_set(knob: Knob, config: Mapping[str, Any]) -> bool:
    """Return whether a config has the value of a knob already; a model with quantized weights is quantized."""
    if knob.key == QUANTIZATION and weight_bytes(config) <= 1.0:
        return True
    return knob.value is not None and value_at(config, knob.key) == knob.value


def configured(config: Mapping[str, Any], knobs: Sequence[Knob]) -> float | None:
    """Return the number to which a config sets the first of some settings; None without one."""
    return number_at(config, knobs[0].key) if knobs else None


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """Return the value that a config has at a key with dots; None if it has none."""
    value: Any = config
    for part in key.split("."):
        value = mapping(value).get(part)
    return value


def number_at(config: Mapping[str, Any], key: str) -> float | None:
    """Return the number that a config has at a key with dots; None if it has none."""
    value = value_at(config, key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _more_load(facts: LevelFacts) -> Proposal:
    key = "load.rate" if facts.open_loop else "load.concurrency"
    more = 2 * float(facts.level.removesuffix("/s"))
    cost = "latency rises as the engine fills up"
    return Proposal(action=f"raise {key} to {number(more)}", override=f"{key}=[{more:g}]", cost=cost)


def _proposal(knob: Knob, facts: LevelFacts, config: Mapping[str, Any]) -> Proposal:
    name = f"{knob.key} ({knob.flag})" if knob.key and knob.flag else knob.key or knob.flag
    if knob.way == "set":
        text = _text(knob.value) if knob.value is not None else ""
        override = f"{knob.key}={text}" if knob.key and text else None
        action = f"set {name}{f' to {text}' if text else ''}" if knob.key else f"use {name}"
        return Proposal(action=action, override=override, cost=knob.cost)
    now = number_at(config, knob.key) or knob.default
    if now is None and knob.key == MAX_NUM_SEQS:
        now = facts.at_most
    to = _next_value(knob, now, facts) if now is not None else None
    if to is None or to == now:
        return Proposal(action=f"{knob.way} {name}", cost=knob.cost)
    text = f"{to:.4g}" if to < 1 else f"{to:.0f}"
    return Proposal(action=f"{knob.way} {name} to {text}", override=f"{knob.key}={text}", cost=knob.cost)


def _next_value(knob: Knob, now: float, facts: LevelFacts) -> float:
    """Return the value to try next: by the knob's factor; of running requests all that are in flight, or fewer than ran."""
    if knob.way == "lower":
        ran = facts.running if knob.key == MAX_NUM_SEQS and facts.running else now
        return max(1.0, round(min(now, ran) / knob.factor))
    to = now * knob.factor
    if knob.key == MAX_NUM_SEQS and facts.in_flight:
        to = max(to, float(round(facts.in_flight)))
    return to if knob.most is None else min(to, knob.most)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
