"""The step loop of an engine, as a pure state machine: it is told the time and tells how long the next step takes.

A step is decided when it begins: who decodes, whose prompt is computed and how much of it, who is taken from the queue,
who is put back for want of memory. It takes the time that `cost` says, and when it ends every decoding sequence has a token
more and every prompt that is complete its first. The same loop runs behind a socket (`server`) and on a virtual clock
(`simulate`), so what is fitted offline is what a client measures.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from servebench.contracts.emulation import BIG_GPU_GB, Emulation, EmulationSpec
from servebench.emulator.cost import BatchStep, StepCost, kv_capacity
from servebench.emulator.memory.base import Holding, KvMemory
from servebench.emulator.memory.blocks import BlockMemory
from servebench.emulator.memory.radix import RadixMemory
from servebench.emulator.memory.slots import SlotMemory

PREFIX_ORDER_MAX = 128
"""A longer queue is served first come, first served, as SGLang does: looking each request up would cost too much."""

DRAFTED = 4
"""Tokens that a draft proposes for a step, where there is one."""

TTFT_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
E2E_BUCKETS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0)


@dataclass(slots=True, eq=False)
class EmulatedRequest:
    """A request in the engine. Times are seconds on the clock of whoever drives the loop; `pieces` is what the answer is
    made of, a token each."""

    key: int
    prompt: str
    prompt_tokens: int
    pieces: list[str]
    structured: bool = False
    arrived_s: float = 0.0
    ready_s: float = 0.0
    owner: object = None
    holding: Holding | None = None
    cached: int | None = None
    computed: int = 0
    to_compute: int = 0
    generated: int = 0
    first_s: float | None = None
    preempted: int = 0
    credit: float = 0.0

    @property
    def answer_tokens(self) -> int:
        """How long the answer will be."""
        return len(self.pieces)


class Histogram:
    """Counts of seconds up to each bound, as Prometheus has them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascending; a last one without limit is added."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """One more observation."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class Totals:
    """What an engine's counters count, since it started."""

    requests: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    rejected: int = 0
    admitted: int = 0
    queue_s: float = 0.0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BUCKETS_S))
    e2e: Histogram = field(default_factory=lambda: Histogram(E2E_BUCKETS_S))


@dataclass(slots=True)
class RunningStep:
    """A step that has begun. `given` are tokens of prompts with the request they belong to."""

    ends_s: float
    decoding: list[EmulatedRequest]
    given: list[tuple[EmulatedRequest, int]]


def kv_memory(spec: EmulationSpec, capacity: int, running_max: int) -> KvMemory:
    """The memory that the engine has, with its prefix cache unless that is turned off."""
    own = spec.emulation
    asked = own.prefix_cache_default if spec.prefix_caching is None else spec.prefix_caching
    shared = asked and own.prefix_cache != "none"
    if own.prefix_cache == "slots":
        return SlotMemory(running_max, capacity, shared=shared)
    if own.prefix_cache == "radix" and shared:
        return RadixMemory(capacity)
    return BlockMemory(capacity, own.block_tokens, shared=shared)


class Scheduler:
    """One engine's scheduler. Not safe for threads; whoever drives it calls `begin` and `end` in turn."""

    def __init__(self, spec: EmulationSpec, cost: StepCost) -> None:
        """`spec` is that of the engine after a profile's changes."""
        self.own: Emulation = spec.emulation
        self.cost = cost
        big = cost.shape.memory_bytes / cost.shape.gpus >= BIG_GPU_GB * 1e9
        usual = self.own.max_num_seqs_big if big and self.own.max_num_seqs_big else self.own.max_num_seqs
        self.running_max = spec.max_num_seqs or usual
        self.budget = self.own.token_budget_big if big and self.own.token_budget_big else self.own.token_budget
        self.queue_max = spec.queue_limit if spec.queue_limit is not None else self.own.queue_limit
        self._spec = spec
        self.memory = self._fresh_memory()
        self.totals = Totals()
        self.arriving: deque[EmulatedRequest] = deque()
        self.waiting: deque[EmulatedRequest] = deque()
        self.prefilling: list[EmulatedRequest] = []
        self.decoding: list[EmulatedRequest] = []
        self._speculative = max(1.0, spec.speculative_tokens)
        self._front_free_s = 0.0
        self._now_s = 0.0
        self._rng = random.Random(spec.seed)

    def _fresh_memory(self) -> KvMemory:
        return kv_memory(self._spec, kv_capacity(self._spec, self.cost.shape), self.running_max)

    # what a driver tells

    def reset_cache(self) -> bool:
        """Empty the prefix cache; false while requests run."""
        if self.in_engine():
            return False
        self.memory = self._fresh_memory()
        return True

    def full(self) -> bool:
        """Whether the queue takes no more."""
        waiting = len(self.waiting) + len(self.arriving)
        return self.queue_max is not None and waiting >= self.queue_max and self.in_engine() >= self.running_max

    def submit(self, asked: EmulatedRequest, now_s: float) -> None:
        """A request has come. The front end takes one after another."""
        self._front_free_s = max(now_s, self._front_free_s) + self.cost.request_s
        asked.arrived_s = now_s
        asked.ready_s = self._front_free_s + self.cost.latency_s(self._rng)
        self._insert(asked)
        self.totals.requests += 1
        self.totals.prompt_tokens += asked.prompt_tokens

    def _insert(self, asked: EmulatedRequest) -> None:
        """Into the order in which requests get ready; nearly always at the end."""
        place = len(self.arriving)
        while place and self.arriving[place - 1].ready_s > asked.ready_s:
            place -= 1
        self.arriving.insert(place, asked)

    def abort(self, asked: EmulatedRequest) -> None:
        """Its client is gone."""
        for queue in (self.arriving, self.waiting):
            if asked in queue:
                queue.remove(asked)
                return
        for running in (self.prefilling, self.decoding):
            if asked in running:
                running.remove(asked)
                self._release(asked, None)
                return

    def in_engine(self) -> int:
        """Requests that are computed."""
        return len(self.prefilling) + len(self.decoding)

    def queued(self) -> int:
        """Requests that wait."""
        return len(self.waiting) + len(self.arriving)

    def next_ready_s(self) -> float | None:
        """When an idle engine has something to do; None when nothing is coming."""
        if self.waiting or self.prefilling or self.decoding:
            return 0.0
        return self.arriving[0].ready_s if self.arriving else None

    # a step

    def begin(self, now_s: float) -> RunningStep | None:
        """Decide the step that begins now; None when there is nothing to do."""
        self._now_s = now_s
        while self.arriving and self.arriving[0].ready_s <= now_s:
            self.waiting.append(self.arriving.popleft())
        own = self.own
        grown = [asked for asked in list(self.decoding) if self._grows(asked)]
        # one that had its memory may have been put back for a later one's sake
        decoding = [asked for asked in grown if asked.holding is not None]
        budget = self.budget - (len(decoding) if own.mixed_steps else 0)
        given = self._prompts(max(1, budget))
        if given and not own.mixed_steps:
            # prompts go first
            decoding = []
        if not given and not decoding:
            return None
        step = BatchStep(
            decoding=self._padded(len(decoding)) if decoding else 0,
            prompt=sum(tokens for _, tokens in given),
            context=sum(one.prompt_tokens + one.generated for one in decoding) + sum(one.computed for one, _ in given),
            structured=sum(one.structured for one in decoding),
            eager=bool(own.batch_sizes) and len(decoding) > own.batch_sizes[-1],
        )
        self.totals.steps += 1
        return RunningStep(ends_s=now_s + self.cost.seconds(step), decoding=decoding, given=given)

    def _padded(self, sequences: int) -> int:
        sizes = self.own.batch_sizes
        if not sizes or sequences > sizes[-1]:
            return sequences
        return sizes[bisect_left(sizes, sequences)]

    def _tokens_now(self, asked: EmulatedRequest) -> int:
        """Tokens of this step: one, or with speculation as many as are accepted."""
        left = asked.answer_tokens - asked.generated
        if self._speculative <= 1.0:
            return min(1, left)
        asked.credit += self._speculative * (0.6 + 0.8 * self._rng.random())
        whole = max(1, int(asked.credit))
        asked.credit -= whole
        self.totals.drafted += DRAFTED
        self.totals.accepted += min(DRAFTED, whole - 1)
        return min(whole, left)

    def _grows(self, asked: EmulatedRequest) -> bool:
        """Memory for the next token; for want of it the youngest is put back, and may be this one."""
        holding = asked.holding
        if holding is None:
            return False
        needed = asked.prompt_tokens + asked.generated + 1 - holding.cached - holding.tokens
        pinned = isinstance(self.memory, RadixMemory | BlockMemory) and asked.computed >= asked.to_compute
        if pinned:
            # the prompt has become shared memory: only what was generated is the request's own
            needed = asked.generated + 1 - holding.tokens
        while needed > 0 and not self.memory.grow(holding, needed):
            if not self._preempt_youngest():
                return True
            if asked.holding is None:
                return False
        return True

    def _preempt_youngest(self) -> bool:
        running = self.prefilling + self.decoding
        if len(running) < 2:
            return False
        victim = max(running, key=lambda one: one.ready_s)
        (self.prefilling if victim in self.prefilling else self.decoding).remove(victim)
        self._release(victim, None)
        victim.preempted += 1
        self.totals.preemptions += 1
        self.waiting.appendleft(victim)
        return True

    def _prompts(self, budget: int) -> list[tuple[EmulatedRequest, int]]:
        """Which prompts are computed in this step, and how much of each."""
        given: list[tuple[EmulatedRequest, int]] = []
        for asked in self.prefilling:
            if budget <= 0:
                break
            part = self._part(asked, budget, first=not given)
            if part <= 0:
                break
            given.append((asked, part))
            budget -= part
        for asked in self._candidates():
            if budget <= 0 or self.in_engine() >= self.running_max:
                break
            if not self._admit(asked):
                break
            part = self._part(asked, budget, first=not given)
            if part > 0:
                given.append((asked, part))
                budget -= part
            else:
                break
        return given

    def _part(self, asked: EmulatedRequest, budget: int, *, first: bool) -> int:
        left = asked.to_compute - asked.computed
        if left <= budget:
            return left
        # an engine that cannot cut a prompt computes one that is longer than its budget alone
        return budget if self.own.chunked_prefill else (left if first else 0)

    def _candidates(self) -> Iterator[EmulatedRequest]:
        while self.waiting:
            if self.own.longest_prefix_first and 1 < len(self.waiting) <= PREFIX_ORDER_MAX:
                best = max(self.waiting, key=lambda one: self.memory.cached(one.prompt))
                if best is not self.waiting[0]:
                    self.waiting.remove(best)
                    self.waiting.appendleft(best)
            yield self.waiting[0]

    def _admit(self, asked: EmulatedRequest) -> bool:
        """Take the head of the queue, if there is memory for it."""
        tokens = asked.prompt_tokens + asked.generated
        reserve = asked.answer_tokens - asked.generated if self.own.reserve_output else 0
        holding = self.memory.admit(asked.prompt, tokens, reserve)
        if holding is None:
            if self.in_engine():
                return False
            # alone in the engine: it runs, whatever the memory says
            holding = Holding(tokens=0, cached=0, pin=None)
        self.waiting.popleft()
        asked.holding = holding
        asked.computed = 0
        asked.to_compute = max(1, tokens - holding.cached)
        if asked.cached is None:
            asked.cached = holding.cached
            self.totals.cached_tokens += holding.cached
            self.totals.admitted += 1
            self.totals.queue_s += self._now_s - asked.arrived_s
        self.prefilling.append(asked)
        return True

    def _release(self, asked: EmulatedRequest, text: str | None) -> None:
        if asked.holding is not None:
            if asked.holding.pin is not None:
                self.memory.release(asked.holding, text)
            asked.holding = None

    def end(self, running: RunningStep, now_s: float) -> list[tuple[EmulatedRequest, int]]:
        """The step is over: who got how many tokens. A request with all of its answer has left the engine."""
        given: list[tuple[EmulatedRequest, int]] = []
        for asked, tokens in running.given:
            if asked.holding is None:
                continue
            asked.computed += tokens
            if asked.computed >= asked.to_compute:
                self.prefilling.remove(asked)
                if asked.holding.pin is not None:
                    self.memory.computed(asked.holding, asked.prompt)
                self.decoding.append(asked)
                given.append((asked, self._give(asked, 1, now_s)))
        for asked in running.decoding:
            if asked.holding is not None:
                given.append((asked, self._give(asked, self._tokens_now(asked), now_s)))
        finished = [asked for asked, _ in given if asked.generated >= asked.answer_tokens]
        if finished:
            gone = set(map(id, finished))
            self.decoding = [asked for asked in self.decoding if id(asked) not in gone]
            for asked in finished:
                self._release(asked, asked.prompt + "".join(asked.pieces))
                self.totals.e2e.add(now_s - asked.arrived_s)
        return given

    def _give(self, asked: EmulatedRequest, tokens: int, now_s: float) -> int:
        tokens = min(tokens, asked.answer_tokens - asked.generated)
        asked.generated += tokens
        self.totals.generation_tokens += tokens
        if asked.first_s is None:
            asked.first_s = now_s
            self.totals.ttft.add(now_s - asked.arrived_s)
        return tokens
