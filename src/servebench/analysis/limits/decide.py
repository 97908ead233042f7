"""Decide what limits an engine at a level. Pure: `find_limit` sees nothing but the facts of the level.

Each rule yields findings with their evidence, and the first of which all evidence holds is the one. The rules are tried in this
order: what spoils the measurement itself, what makes the engine compute twice, what a request waits for before it is computed
(the larger of the queue and what is before the engine), a load that leaves the engine idle, and how near it comes to the data
sheet of the GPU.
"""

from collections.abc import Iterator

from servebench.analysis.limits.model import Fact, LevelFacts, LimitFinding, LimitReason, share_of

CLIENT_SHARE = 0.1
"""The part of TTFT that the client may be late by: the same share makes a point doubtful (`client_bound`)."""
CLIENT_MS = 1.0
CLIENT_CPU = 0.9
"""Cores for each client process, as for `client_bound`: Python's loop has no more than one."""
WAIT_SHARE = 0.25
"""The part of TTFT that a wait must be: to end it then improves TTFT by a quarter, more than starts differ."""
WAIT_MS = 10.0
"""A shorter wait is one step of a large model: no setting removes it, and nobody sees it."""
STEPS = 2.0
"""A request that arrives during a step waits for its end, and that step may compute a prompt: only what is longer than two usual
steps has another cause. In a closed loop requests are sent as a step ends, and wait for most of the next."""
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
ROOM = "KV cache in use with the next prompt"


def find_limit(facts: LevelFacts) -> LimitFinding:
    """Return what limits the engine at a level, with its evidence; `none` where no rule has enough."""
    rules = (_client, _preempted, _waits, _small_budget, _idle, _compute, _memory)
    found = (one for rule in rules for one in rule(facts) if all(fact.holds for fact in one.evidence))
    return next(found, LimitFinding(facts=facts, reason=LimitReason.NONE))


def _client(facts: LevelFacts) -> Iterator[LimitFinding]:
    late = facts.client_ms or 0.0
    part = Fact(name="client part of TTFT", value=share_of(late, facts.ttft_ms), at_least=CLIENT_SHARE)
    ms = Fact(name="sent late by", value=late, unit="ms", at_least=CLIENT_MS)
    yield _found(facts, LimitReason.SENT_LATE, part, ms, part_ms=late)
    busy = Fact(name="client CPU", value=facts.client_cpu or 0.0, unit="cores", at_least=CLIENT_CPU)
    yield _found(facts, LimitReason.CLIENT_BUSY, busy)


def _kv_full(facts: LevelFacts) -> float | None:
    """Return the share of the KV cache that the requests and one more prompt need: what is used, in proportion to tokens."""
    usage, running, prompt = facts.kv_usage, facts.running, facts.input_tokens
    if usage is None:
        return None
    context = (running or 0.0) * ((prompt or 0.0) + (facts.output_tokens or 0.0) / 2)
    return usage * (1.0 + share_of(prompt, context))


def _no_room(facts: LevelFacts) -> Fact:
    return Fact(name=ROOM, value=_kv_full(facts) or 0.0, at_least=KV_FULL)


def _preempted(facts: LevelFacts) -> Iterator[LimitFinding]:
    often = Fact(name="preemptions for each request", value=facts.preempted or 0.0, at_least=PREEMPTED, share=False)
    yield _found(facts, LimitReason.PREEMPTED, _no_room(facts), often)


def _waits(facts: LevelFacts) -> Iterator[LimitFinding]:
    """Name the larger wait before a request is computed, in the engine's queue or before the engine."""
    queue, before = facts.queue_ms or 0.0, facts.parts.get("network", 0.0)
    if "queue" not in facts.parts:
        # the engine reports no queue: what its metrics or its full slots explain is one
        queue = max(queue, before * _held(facts))
        before = max(0.0, before - queue)
    least = max(WAIT_MS, WAIT_SHARE * facts.ttft_ms)
    if before > queue and before >= least:
        yield from _before_engine(facts, before)
    elif before <= queue and queue >= least:
        steps_ms = max(STEPS * (facts.itl_ms or 0.0), facts.parts.get("prefill", facts.ttft_ms - queue))
        yield from _queue(facts, queue) if queue >= steps_ms else ()


def _held(facts: LevelFacts) -> float:
    """Return the share of the waiting that happened while as many requests ran as may; 0 where that is not the engine's limit."""
    limit, most, held = facts.running_limit, facts.at_most, facts.at_limit
    if limit is None:
        return 0.0
    if most is None or held is None:
        # of gauges only the means are known
        return min(1.0, share_of(facts.running, limit))
    return held if most >= KV_FULL * limit else 0.0


def _before_engine(facts: LevelFacts, before_ms: float) -> Iterator[LimitFinding]:
    wait = Fact(name="network and front end of TTFT", value=share_of(before_ms, facts.ttft_ms), at_least=WAIT_SHARE)
    ms = Fact(name="network and front end", value=before_ms, unit="ms", at_least=WAIT_MS)
    for reason, *evidence in _sides(facts, before_ms):
        yield _found(facts, reason, wait, ms, *evidence, part_ms=before_ms)


def _sides(facts: LevelFacts, before_ms: float) -> Iterator[tuple[LimitReason, *tuple[Fact, ...]]]:
    """Yield on which side of the server's socket a wait may be, by what is known best: its own E2E, connecting, CPU time."""
    longer = Fact(
        name="steps that last as long", value=before_ms / (facts.itl_ms or WAIT_MS), at_least=STEPS, share=False
    )
    if facts.front_end_ms is not None:
        share, name = facts.front_end_ms / before_ms, "front end by the engine's E2E"
        yield LimitReason.INSIDE_BY_OWN_TIME, Fact(name=name, value=share, at_least=OWN_WORK), longer
        yield LimitReason.OUTSIDE_BY_OWN_TIME, Fact(name=name, value=share, below=OWN_WORK)
    half_ms, connect_ms = OWN_WORK * before_ms, facts.connect_ms or 0.0
    yield LimitReason.CONNECTING, Fact(name="connecting", value=connect_ms, unit="ms", at_least=half_ms)
    cores, name = facts.front_end_cores, "CPU of the front end"
    if cores is not None and (facts.other_cores or 0.0) >= ENGINE_CORES:
        yield LimitReason.FRONT_END_BUSY, Fact(name=name, value=cores, unit="cores", at_least=BUSY_CORES)
        work_ms = facts.front_end_cpu_ms
        yield LimitReason.FRONT_END_WORK, Fact(name=f"{name} for a request", value=work_ms, unit="ms", at_least=half_ms)
        # on one machine there is no network between them
        idle = LimitReason.BEFORE_SCHEDULER if facts.same_machine else LimitReason.FRONT_END_IDLE
        yield idle, Fact(name=name, value=cores, unit="cores", below=BUSY_CORES), longer
    yield LimitReason.SIDE_UNKNOWN, longer


def _queue(facts: LevelFacts, queue_ms: float) -> Iterator[LimitFinding]:
    """Name why requests wait in the engine's queue: full memory, as many running as may, or the tokens of a step."""
    wait = Fact(name="queue of TTFT", value=share_of(queue_ms, facts.ttft_ms), at_least=WAIT_SHARE)
    yield _found(facts, LimitReason.CACHE_FULL, _no_room(facts), wait, part_ms=queue_ms)
    yield from _compute(facts)
    ran = Fact(name="requests running", value=facts.running or 0.0, share=False)
    full, held, name = _kv_full(facts), _held(facts), "waiting while as many ran as may"
    at = Fact(name=name, value=held, at_least=AT_LIMIT)
    yield _found(facts, LimitReason.AT_RUNNING_LIMIT, wait, at, ran, part_ms=queue_ms)
    if full is not None and facts.running_limit is not None and facts.running is not None:
        room, fewer = Fact(name=ROOM, value=full, below=KV_FULL), Fact(name=name, value=held, below=AT_LIMIT)
        yield _found(facts, LimitReason.FEW_TOKENS_A_STEP, wait, ran, fewer, room, part_ms=queue_ms)
    yield _found(facts, LimitReason.WAITING, wait, ran, part_ms=queue_ms)


def _small_budget(facts: LevelFacts) -> Iterator[LimitFinding]:
    """Name a token budget by which each prompt takes several steps, although these do not use the GPU."""
    prefill, count = facts.parts.get("prefill", 0.0), share_of(facts.input_tokens, facts.token_budget or 0.0)
    part = Fact(name="prefill of TTFT", value=share_of(prefill, facts.ttft_ms), at_least=PREFILL_SHARE)
    steps = Fact(name="steps for a prompt", value=count, at_least=PROMPT_STEPS, share=False)
    if (facts.compute_share or 0.0) < COMPUTE_SHARE:
        yield _found(facts, LimitReason.PREFILL_IN_STEPS, part, steps, part_ms=prefill)


def _idle(facts: LevelFacts) -> Iterator[LimitFinding]:
    without = Fact(name="time without a request", value=facts.idle or 0.0, at_least=IDLE_SHARE)
    yield _found(facts, LimitReason.IDLE, without)
    if facts.open_loop:
        stayed = Fact(name="arrivals that did not stay", value=facts.kept_up or 0.0, at_least=KEPT_UP)
        yield _found(facts, LimitReason.KEEPS_UP, stayed)


def _compute(facts: LevelFacts) -> Iterator[LimitFinding]:
    use = Fact(name="use of peak operations", value=facts.compute_share or 0.0, at_least=COMPUTE_SHARE)
    yield _found(facts, LimitReason.ARITHMETIC, use)


def _memory(facts: LevelFacts) -> Iterator[LimitFinding]:
    use = Fact(name="use of peak bandwidth", value=facts.memory_share or 0.0, at_least=MEMORY_SHARE)
    part = Fact(name="decode of E2E", value=facts.decode, at_least=DECODE_SHARE)
    yield _found(facts, LimitReason.BANDWIDTH, use, part)


def _found(facts: LevelFacts, reason: LimitReason, *evidence: Fact, part_ms: float = 0.0) -> LimitFinding:
    return LimitFinding(facts=facts, reason=reason, part_ms=part_ms, evidence=evidence)
