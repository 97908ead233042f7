"""Decide what limits an engine at a level. Pure: `find_limit` sees nothing but the facts of the level.

The rules are tried in this order, and the first whose evidence is above its thresholds is the finding: what spoils the
measurement itself, what makes the engine compute twice, what a request waits for before it is computed (the larger of the queue
and what is before the engine), a load that leaves the engine idle, and how near it comes to the data sheet of the GPU.
"""

from __future__ import annotations

from servebench.analysis.limits.model import Fact, LevelFacts, LimitFinding, LimitReason, share_of
from servebench.contracts.limits import Limit

CLIENT_SHARE = 0.1
"""The part of TTFT that the client may be late by: the same share makes a point doubtful (`client_bound`)."""
CLIENT_MS = 1.0
CLIENT_CPU = 0.9
"""Cores for each client process, as for `client_bound`: Python's loop has no more than one."""
WAIT_SHARE = 0.25
"""The part of TTFT that a wait must be: to end it then improves TTFT by a quarter, more than starts differ."""
WAIT_MS = 10.0
"""A shorter wait is one step of a large model: no setting removes it, and nobody sees it."""
QUEUE_STEPS = 2.0
"""A request that arrives during a step waits for its end, and that step may compute a prompt: longer than two usual steps and
than a prefill is a queue."""
AT_LIMIT = 0.8
"""The share of the waiting that happens while as many run as may: the rest of it has another cause."""
KV_FULL = 0.95
"""Of the KV cache in use, the next prompt included: engines keep a few percent back, and samples miss peaks."""
PREEMPTED = 0.05
"""Preempted requests for each answered one: each is computed twice, and each twentieth shows in the mean."""
BUSY_CORES = 0.8
"""Of the process that takes the requests: it runs on one core, and at 80% of it the queue before it triples the time (M/D/1)."""
OWN_WORK = 0.5
"""The part of the wait before the engine that must be the work (CPU time, connecting) of what is named."""
ENGINE_CORES = 0.05
"""CPU of the engine's other processes from which on its first process only takes requests."""
IDLE_SHARE = 0.1
"""The share of the time without a request: so much more throughput costs nothing."""
KEPT_UP = 0.98
"""The share of the arrivals that did not stay in flight: the engine could do more than it was asked for."""
COMPUTE_SHARE = 0.4
"""Of the peak of the data sheet, counting two operations for a parameter and token: serving engines reach 40-60% in prefill."""
MEMORY_SHARE = 0.6
"""Of the peak bandwidth of the data sheet: kernels reach 80-90%, so other costs of a step are a third of it at most."""
DECODE_SHARE = 0.5
"""The part of E2E that decoding must be for its bandwidth to matter most."""
PROMPT_STEPS = 2.0
"""Steps for a prompt: with one there is nothing to gain."""
PREFILL_SHARE = 0.5
"""The part of TTFT that prefill must be for the number of its steps to matter most."""


def find_limit(facts: LevelFacts) -> LimitFinding:
    """Return what limits the engine at a level, with its evidence; `none` where no rule has enough."""
    rules = (_client, _preempted, _waits, _small_budget, _idle, _compute, _memory)
    found = next((one for rule in rules if (one := rule(facts)) is not None), None)
    return LimitFinding(facts=facts, code=Limit.NONE, reason=LimitReason.NONE) if found is None else found


def _client(facts: LevelFacts) -> LimitFinding | None:
    late, cpu = facts.client_ms or 0.0, facts.client_cpu or 0.0
    share = share_of(late, facts.ttft_ms)
    if share >= CLIENT_SHARE and late >= CLIENT_MS:
        part = Fact(name="client part of TTFT", value=share, at_least=CLIENT_SHARE)
        ms = Fact(name="sent late by", value=late, unit="ms", at_least=CLIENT_MS)
        return _found(facts, Limit.CLIENT, LimitReason.SENT_LATE, part, ms, part_ms=late)
    if cpu >= CLIENT_CPU:
        busy = Fact(name="client CPU", value=cpu, unit="cores", at_least=CLIENT_CPU)
        return _found(facts, Limit.CLIENT, LimitReason.CLIENT_BUSY, busy)
    return None


def _kv_full(facts: LevelFacts) -> float | None:
    """Return the share of the KV cache that the requests and one more prompt need: what is used, in proportion to tokens."""
    usage, running, prompt = facts.kv_usage, facts.running, facts.input_tokens
    if usage is None:
        return None
    context = (running or 0.0) * ((prompt or 0.0) + (facts.output_tokens or 0.0) / 2)
    return usage * (1.0 + share_of(prompt, context))


def _preempted(facts: LevelFacts) -> LimitFinding | None:
    again, full = facts.preempted or 0.0, _kv_full(facts)
    if again < PREEMPTED or full is None or full < KV_FULL:
        return None
    often = Fact(name="preemptions for each request", value=again, at_least=PREEMPTED, share=False)
    return _found(facts, Limit.KV_CACHE, LimitReason.PREEMPTED, _no_room(full), often)


def _no_room(full: float) -> Fact:
    return Fact(name="KV cache in use with the next prompt", value=full, at_least=KV_FULL)


def _waits(facts: LevelFacts) -> LimitFinding | None:
    """Name the larger wait before a request is computed, in the engine's queue or before the engine."""
    queue, before = facts.queue_ms or 0.0, facts.parts.get("network")
    if before is not None and "queue" not in facts.parts:
        # the engine reports no queue: what its metrics or its full slots explain is one
        queue = max(queue, before * _held(facts))
        before = max(0.0, before - queue)
    if max(queue, before or 0.0) < max(WAIT_MS, WAIT_SHARE * facts.ttft_ms):
        return None
    if before is not None and before > queue:
        return _before_engine(facts, before)
    steps_ms = max(QUEUE_STEPS * (facts.itl_ms or 0.0), facts.parts.get("prefill", facts.ttft_ms - queue))
    return _queue(facts, queue) if queue >= steps_ms else None


def _held(facts: LevelFacts) -> float:
    """Return the share of the waiting that happened while as many requests ran as may; 0 where that is not the engine's limit."""
    limit, most, held = facts.running_limit, facts.at_most, facts.at_limit
    if limit is None:
        return 0.0
    if most is None or held is None:
        # of gauges only the means are known
        return min(1.0, share_of(facts.running, limit)) if facts.running is not None else 0.0
    return held if most >= KV_FULL * limit else 0.0


def _before_engine(facts: LevelFacts, before_ms: float) -> LimitFinding:
    wait = Fact(name="network and front end of TTFT", value=share_of(before_ms, facts.ttft_ms), at_least=WAIT_SHARE)
    ms = Fact(name="network and front end", value=before_ms, unit="ms", at_least=WAIT_MS)
    code, why, evidence = _which_side(facts, before_ms)
    return _found(facts, code, why, wait, ms, *evidence, part_ms=before_ms)


def _which_side(facts: LevelFacts, before_ms: float) -> tuple[Limit, LimitReason, tuple[Fact, ...]]:
    """Return which side of the server's socket a wait is on, by what is known best: its own E2E, connecting, CPU time."""
    if facts.front_end_ms is not None:
        share, name = facts.front_end_ms / before_ms, "front end by the engine's E2E"
        if share >= OWN_WORK:
            own = Fact(name=name, value=share, at_least=OWN_WORK)
            return Limit.FRONT_END, LimitReason.INSIDE_BY_OWN_TIME, (own,)
        outside = Fact(name=name, value=share, below=OWN_WORK)
        return Limit.NETWORK, LimitReason.OUTSIDE_BY_OWN_TIME, (outside,)
    return _by_cpu(facts, before_ms)


def _by_cpu(facts: LevelFacts, before_ms: float) -> tuple[Limit, LimitReason, tuple[Fact, ...]]:
    if facts.connect_ms is not None and facts.connect_ms >= OWN_WORK * before_ms:
        connect = Fact(name="connecting", value=facts.connect_ms, unit="ms", at_least=OWN_WORK * before_ms)
        return Limit.NETWORK, LimitReason.CONNECTING, (connect,)
    cores = facts.front_end_cores
    if cores is None or (facts.other_cores or 0.0) < ENGINE_CORES:
        return Limit.BEFORE_ENGINE, LimitReason.SIDE_UNKNOWN, ()
    each_ms = facts.front_end_cpu_ms
    if cores >= BUSY_CORES:
        busy = Fact(name="CPU of the front end", value=cores, unit="cores", at_least=BUSY_CORES)
        return Limit.FRONT_END, LimitReason.FRONT_END_BUSY, (busy,)
    if each_ms >= OWN_WORK * before_ms:
        work = Fact(name="CPU of the front end for a request", value=each_ms, unit="ms", at_least=OWN_WORK * before_ms)
        return Limit.FRONT_END, LimitReason.FRONT_END_WORK, (work,)
    free = Fact(name="CPU of the front end", value=cores, unit="cores", below=BUSY_CORES)
    if facts.same_machine:
        # there is no network between them
        return Limit.BEFORE_ENGINE, LimitReason.BEFORE_SCHEDULER, (free,)
    return Limit.NETWORK, LimitReason.FRONT_END_IDLE, (free,)


def _queue(facts: LevelFacts, queue_ms: float) -> LimitFinding:
    """Name why requests wait in the engine's queue: full memory, as many running as may, or the tokens of a step."""
    wait = Fact(name="queue of TTFT", value=share_of(queue_ms, facts.ttft_ms), at_least=WAIT_SHARE)
    full, held = _kv_full(facts), _held(facts)
    if full is not None and full >= KV_FULL:
        return _found(facts, Limit.KV_CACHE, LimitReason.CACHE_FULL, _no_room(full), wait, part_ms=queue_ms)
    if (computed := _compute(facts)) is not None:
        return computed
    ran = Fact(name="requests running", value=facts.running or 0.0, share=False)
    limit = facts.running_limit
    if held >= AT_LIMIT and limit is not None:
        at = Fact(name="waiting while as many ran as may", value=held, at_least=AT_LIMIT)
        return _found(facts, Limit.RUNNING, LimitReason.AT_RUNNING_LIMIT, wait, at, ran, part_ms=queue_ms)
    if full is not None and limit is not None and facts.running is not None:
        room = Fact(name="KV cache in use with the next prompt", value=full, below=KV_FULL)
        fewer = Fact(name="waiting while as many ran as may", value=held, below=AT_LIMIT)
        evidence = (wait, ran, fewer, room)
        return _found(facts, Limit.TOKEN_BUDGET, LimitReason.FEW_TOKENS_A_STEP, *evidence, part_ms=queue_ms)
    return _found(facts, Limit.QUEUE, LimitReason.WAITING, wait, ran, part_ms=queue_ms)


def _small_budget(facts: LevelFacts) -> LimitFinding | None:
    """Name a token budget by which each prompt takes several steps, although these do not use the GPU."""
    budget, prompt, prefill = facts.token_budget, facts.input_tokens, facts.parts.get("prefill")
    if not budget or prompt is None or prefill is None or prompt < PROMPT_STEPS * budget:
        return None
    share, computed = share_of(prefill, facts.ttft_ms), facts.compute_share
    if share < PREFILL_SHARE or (computed is not None and computed >= COMPUTE_SHARE):
        return None
    steps = Fact(name="steps for a prompt", value=prompt / budget, at_least=PROMPT_STEPS, share=False)
    part = Fact(name="prefill of TTFT", value=share, at_least=PREFILL_SHARE)
    return _found(facts, Limit.TOKEN_BUDGET, LimitReason.PREFILL_IN_STEPS, part, steps, part_ms=prefill)


def _idle(facts: LevelFacts) -> LimitFinding | None:
    idle, kept_up = facts.idle or 0.0, facts.kept_up or 0.0
    if idle >= IDLE_SHARE:
        without = Fact(name="time without a request", value=idle, at_least=IDLE_SHARE)
        return _found(facts, Limit.LOAD, LimitReason.IDLE, without)
    if facts.open_loop and kept_up >= KEPT_UP:
        stayed = Fact(name="arrivals that did not stay", value=kept_up, at_least=KEPT_UP)
        return _found(facts, Limit.LOAD, LimitReason.KEEPS_UP, stayed)
    return None


def _compute(facts: LevelFacts) -> LimitFinding | None:
    share = facts.compute_share
    if share is None or share < COMPUTE_SHARE:
        return None
    use = Fact(name="use of peak operations", value=share, at_least=COMPUTE_SHARE)
    return _found(facts, Limit.COMPUTE, LimitReason.ARITHMETIC, use)


def _memory(facts: LevelFacts) -> LimitFinding | None:
    share, decode = facts.memory_share, facts.decode
    if share is None or share < MEMORY_SHARE or decode < DECODE_SHARE:
        return None
    use = Fact(name="use of peak bandwidth", value=share, at_least=MEMORY_SHARE)
    part = Fact(name="decode of E2E", value=decode, at_least=DECODE_SHARE)
    return _found(facts, Limit.MEMORY_BANDWIDTH, LimitReason.BANDWIDTH, use, part)


def _found(facts: LevelFacts, code: Limit, reason: LimitReason, *evidence: Fact, part_ms: float = 0.0) -> LimitFinding:
    return LimitFinding(facts=facts, code=code, reason=reason, part_ms=part_ms, evidence=evidence)
