"""The text of what limits an engine, and of what to try."""

from collections.abc import Callable, Mapping

from servebench.analysis.limits.decide import DECODE_SHARE
from servebench.analysis.limits.model import Fact, LimitFinding, LimitReason, LimitSummary, Proposal, share_of
from servebench.util.figures import number, short_percent

CORES_SHOWN_MIN = 0.01


def fact_text(fact: Fact) -> str:
    """Return a piece of evidence with the threshold that it passed."""

    def text(value: float) -> str:
        return f"{number(value)} {fact.unit}" if fact.unit else short_percent(value) if fact.share else number(value)

    bounds = [
        f"{word} {text(bound)}"
        for word, bound in (("at least", fact.at_least), ("below", fact.below))
        if bound is not None
    ]
    return f"{fact.name}: {text(fact.value)}" + (f" (threshold: {', '.join(bounds)})" if bounds else "")


def action_text(one: Proposal) -> str:
    """Return what to do."""
    name = f"{one.key} ({one.flag})" if one.key and one.flag else one.key or one.flag
    name += f" and {one.also}" if one.also else ""
    verb = "use" if one.way == "set" and not one.key and not one.of_server else one.way
    return f"{verb} {name}{f' to {one.to}' if one.to else ''}{' of the server' if one.of_server else ''}"


def _part(one: LimitFinding) -> str:
    whole = one.facts.ttft_ms
    return f"{share_of(one.part_ms, whole):.0%} of TTFT ({number(one.part_ms)} of {number(whole)} ms) is"


def _queue(one: LimitFinding) -> str:
    return f"{_part(one)} waiting in {one.facts.engine}'s queue"


def _run(count: float | None) -> str:
    return "1 request runs" if round(count or 0.0) == 1 else f"{count or 0.0:,.0f} requests run"


def _cores(one: LimitFinding) -> str:
    cores = one.facts.front_end_cores or 0.0
    return f"{number(cores, 2)} cores" if cores >= CORES_SHOWN_MIN else "hardly any CPU time"


def _prompt_steps(one: LimitFinding) -> str:
    budget = one.facts.token_budget or 1.0
    return f"{number((one.facts.input_tokens or 0.0) / budget, 2)} steps of {budget:.0f} tokens"


def _none(one: LimitFinding) -> str:
    """Nothing is above its threshold: what was largest."""
    facts = one.facts
    largest = f"decode is {facts.decode:.0%} of E2E"
    if facts.decode < DECODE_SHARE:
        name, value = max(facts.parts.items(), key=lambda one: one[1], default=("TTFT", facts.ttft_ms))
        largest = f"{name} is {share_of(value, facts.e2e_ms):.0%} of E2E"
    return f"no single limit found: {largest}"


REASONS: Mapping[LimitReason, Callable[[LimitFinding], str]] = {
    LimitReason.SENT_LATE: lambda one: f"{_part(one)} the load client, which sends late",
    LimitReason.CLIENT_BUSY: lambda one: (
        f"each process of the load client uses {number(one.facts.client_cpu, 2)} cores"
    ),
    LimitReason.PREEMPTED: lambda one: (
        f"the KV cache is full: {number(one.facts.preempted, 2)} preemptions for each request, whose tokens are computed again"
    ),
    LimitReason.INSIDE_BY_OWN_TIME: lambda one: (
        f"{_part(one)} {one.facts.engine}'s front end (by its own end-to-end time)"
    ),
    LimitReason.OUTSIDE_BY_OWN_TIME: lambda one: (
        f"{_part(one)} outside of {one.facts.engine} (by its own end-to-end time): the network"
    ),
    LimitReason.CONNECTING: lambda one: f"{_part(one)} the network: to connect takes {number(one.facts.connect_ms)} ms",
    LimitReason.SIDE_UNKNOWN: lambda one: (
        f"{_part(one)} the network or the server's front end; its CPU time is not known"
    ),
    LimitReason.FRONT_END_BUSY: lambda one: f"{_part(one)} the front end, whose process uses {_cores(one)}",
    LimitReason.FRONT_END_WORK: lambda one: (
        f"{_part(one)} the front end: {number(one.facts.front_end_cpu_ms)} ms of CPU for each request"
    ),
    LimitReason.FRONT_END_IDLE: lambda one: f"{_part(one)} the network: the front end uses {_cores(one)}",
    LimitReason.BEFORE_SCHEDULER: lambda one: (
        f"{_part(one)} before {one.facts.engine} schedules a request: in its front end, which uses {_cores(one)}, or waiting for "
        "a step to end"
    ),
    LimitReason.CACHE_FULL: lambda one: f"{_queue(one)} for room in the KV cache",
    LimitReason.AT_RUNNING_LIMIT: lambda one: (
        f"{_queue(one)} while {_run(one.facts.at_most or one.facts.running_limit)}, which is its limit"
    ),
    LimitReason.FEW_TOKENS_A_STEP: lambda one: (
        f"{_queue(one)} although only {_run(one.facts.running)} (at most {one.facts.running_limit or 0.0:.0f} may) and the KV "
        "cache has room: each step takes too few tokens of prompts"
    ),
    LimitReason.WAITING: lambda one: f"{_queue(one)}; {one.facts.engine} does not say what for",
    LimitReason.PREFILL_IN_STEPS: lambda one: f"{_part(one)} prefill: a prompt takes {_prompt_steps(one)}",
    LimitReason.IDLE: lambda one: (
        f"the load: no request was in flight in {short_percent(one.facts.idle or 0.0, 2)} of the time"
    ),
    LimitReason.KEEPS_UP: lambda one: (
        f"the load: {one.facts.engine} keeps up with {one.level.number} requests a second and has no queue"
    ),
    LimitReason.ARITHMETIC: lambda one: (
        f"the GPU's arithmetic: {one.facts.compute_share or 0.0:.0%} of its peak is used, not counting attention"
    ),
    LimitReason.BANDWIDTH: lambda one: (
        f"the GPU's memory: decode steps of {number(one.facts.itl_ms)} ms read at {one.facts.memory_share or 0.0:.0%} of its "
        "bandwidth"
    ),
    LimitReason.NONE: _none,
}


def statement_of(one: LimitFinding, *, unknown: bool = True) -> str:
    """Return what limits the engine, in one sentence; where nothing was found also what is `unknown`."""
    count = one.facts.requests
    few = f" (from only {count} request{'' if count == 1 else 's'})" if one.few else ""
    parts = [REASONS[one.reason](one) + few]
    if unknown and one.reason is LimitReason.NONE:
        parts += [] if one.facts.parts else [f"{one.facts.engine} reports no times of its requests"]
        if one.facts.memory_share is None:
            parts.append("no GPU is described (gpu=), so use of its memory and arithmetic is not known")
    return "; ".join(parts)


def limit_lines(found: LimitSummary | None) -> list[str]:
    """Return what limits some runs: first a line for each, then who has no limit and who was not looked at, then their other
    limits; nothing where no limit is known and nobody was left out."""
    if found is None or not (found.first or found.unread):
        return []

    def line(label: str, one: LimitFinding) -> str:
        where = f"at {one.level.words}" if found.alone else f"of {label} at {one.level.words}"
        override = next((proposal.override for proposal in one.proposals if proposal.override), None)
        return f"Limit {where}: {statement_of(one)}" + (f"; try {override}" if override else "")

    return [
        *(line(*each) for each in found.first),
        *([f"Limit: none found for {', '.join(found.without)}"] if found.without else []),
        *([f"Limit: 'servebench show RUN' has those of {', '.join(found.unread)}"] if found.unread else []),
        *(line(*each) for each in found.more),
    ]
