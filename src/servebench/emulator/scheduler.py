"""The scheduler of an engine as a pure state machine: it gets the time and returns when the next step ends.

A step is decided when it begins: which requests decode, which prompts are computed and how much of each, which requests leave
the queue, and which are preempted for lack of memory. Its duration comes from `cost`. When it ends, every decoding request
has one token more and every completed prompt has its first. The same loop runs in real time (`engine`) and on a virtual clock
(`emulator.virtual`), so what is simulated is what a client measures.
"""

import random
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapreplace

from servebench.contracts.emulation import BIG_GPU_GB, Emulation, EmulationSpec
from servebench.emulator.cost import BatchStep, StepCost, kv_capacity
from servebench.emulator.memory import Holding, KvMemory

PREFIX_ORDER_MAX = 128
"""A longer queue is served first come, first served, as in SGLang: looking up each request would cost too much."""

MEMORY_MARGIN = 64
"""Tokens of memory for each request that steps taken at once leave free: more than a block of any engine."""

DRAFTED = 4
"""Tokens that a draft model proposes per step."""


@dataclass(slots=True, eq=False)
class EmulatedRequest:
    """A request in the engine. Times are seconds on the clock of the caller; `pieces` are the tokens of the answer."""

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
    admitted_s: float = 0.0
    first_s: float = 0.0
    """0.0 until its first token has come."""
    last_s: float = 0.0
    credit: float = 0.0

    @property
    def answer_tokens(self) -> int:
        """The final length of the answer."""
        return len(self.pieces)


@dataclass(slots=True)
class Totals:
    """The engine's counters since its start."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    admitted: int = 0
    queue_s: float = 0.0
    front_end_s: float = 0.0
    busy_s: float = 0.0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0


@dataclass(slots=True)
class RunningStep:
    """A step that has begun. `prompts` are requests with the number of prompt tokens computed for them."""

    ends_s: float
    decoding: list[EmulatedRequest]
    prompts: list[tuple[EmulatedRequest, int]]


class BatchScheduler:
    """The scheduler of one engine. Not thread-safe; the caller calls `begin` and `end` in turn."""

    def __init__(self, spec: EmulationSpec, cost: StepCost) -> None:
        """`spec` already contains the changes of a profile."""
        self.own: Emulation = spec.emulation
        self.cost = cost
        big = cost.shape.memory_bytes / cost.shape.gpus >= BIG_GPU_GB * 1e9
        default = self.own.max_num_seqs_big if big and self.own.max_num_seqs_big else self.own.max_num_seqs
        self.running_max = spec.max_num_seqs or default
        usual = self.own.token_budget_big if big and self.own.token_budget_big else self.own.token_budget
        self.budget = spec.token_budget or usual
        self.queue_max = spec.queue_limit if spec.queue_limit is not None else self.own.queue_limit
        self._spec = spec
        self.memory = self._fresh_memory()
        self.totals = Totals()
        self.arriving: deque[EmulatedRequest] = deque()
        self.waiting: deque[EmulatedRequest] = deque()
        self.prefilling: list[EmulatedRequest] = []
        self.decoding: list[EmulatedRequest] = []
        self._speculative = max(1.0, spec.speculative_tokens)
        self._front_free_s = [0.0] * spec.front_ends
        self._now_s = 0.0
        self._rng = random.Random(spec.seed)

    def _fresh_memory(self) -> KvMemory:
        """Return the engine's memory, with its prefix cache unless that is disabled."""
        asked = self._spec.prefix_caching
        shared = self.own.prefix_cache_default if asked is None else asked
        return KvMemory(kv_capacity(self._spec, self.cost.shape), self.own.block_tokens, shared=shared)

    # requests

    def reset_cache(self) -> bool:
        """Empty the prefix cache; return false while requests run."""
        if self.in_engine():
            return False
        self.memory = self._fresh_memory()
        return True

    def rejects(self) -> bool:
        """Return whether one more request is rejected, since the queue is full."""
        if self.own.overload == "queue" or self.queue_max is None:
            return False
        return self.queued() >= self.queue_max and self.in_engine() >= self.running_max

    def submit(self, request: EmulatedRequest, now_s: float) -> None:
        """Add a request. Each process of the front end takes one after another."""
        done_s = max(now_s, self._front_free_s[0]) + self.cost.request_s
        heapreplace(self._front_free_s, done_s)
        self.totals.front_end_s += self.cost.request_s
        request.arrived_s = now_s
        request.ready_s = done_s + self.cost.latency_s(self._rng)
        # into the order in which requests get ready; nearly always at the end
        insort(self.arriving, request, key=lambda one: one.ready_s)
        self.totals.prompt_tokens += request.prompt_tokens

    def abort(self, request: EmulatedRequest) -> None:
        """Remove a request whose client is gone."""
        for queue in (self.arriving, self.waiting):
            if request in queue:
                queue.remove(request)
                return
        for running in (self.prefilling, self.decoding):
            if request in running:
                running.remove(request)
                self._release(request, None)
                return

    def in_engine(self) -> int:
        """Return the number of requests that are being computed."""
        return len(self.prefilling) + len(self.decoding)

    def queued(self) -> int:
        """Return the number of requests that are not being computed."""
        return len(self.waiting) + len(self.arriving)

    def metrics(self, now_s: float) -> dict[str, float]:
        """Return the current values of the metrics in `contracts.telemetry.VOCABULARY`, and of `prompt_tokens_computed`, which
        only emulations name."""
        totals = self.totals
        # those that the front end still works on do not wait
        ready = sum(request.ready_s <= now_s for request in self.arriving)
        return {
            "requests_running": self.in_engine(),
            "requests_waiting": len(self.waiting) + ready,
            "kv_cache_usage": min(1.0, self.memory.used() / self.memory.capacity),
            "prompt_tokens": totals.prompt_tokens,
            "prompt_tokens_computed": totals.prompt_tokens - totals.cached_tokens,
            "generation_tokens": totals.generation_tokens,
            "prefix_cache_queries_tokens": totals.prompt_tokens,
            "prefix_cache_hits_tokens": totals.cached_tokens,
            "queue_time_s_sum": totals.queue_s,
            "queue_time_s_count": totals.admitted,
            "spec_draft_tokens": totals.drafted,
            "spec_accepted_tokens": totals.accepted,
            "preemptions": totals.preemptions,
        }

    def next_ready_s(self) -> float | None:
        """Return when an idle engine has work (0.0: now); None if there are no requests."""
        if self.waiting or self.prefilling or self.decoding:
            return 0.0
        return self.arriving[0].ready_s if self.arriving else None

    # steps

    def begin(self, now_s: float) -> RunningStep | None:
        """Decide the step that begins now; return None if there is nothing to do."""
        self._now_s = now_s
        while self.arriving and self.arriving[0].ready_s <= now_s:
            self.waiting.append(self.arriving.popleft())
        own = self.own
        grown = [request for request in list(self.decoding) if self._grow(request)]
        # a request with memory may since have been preempted for a later one
        decoding = [request for request in grown if request.holding is not None]
        budget = self.budget - (len(decoding) if own.mixed_steps else 0)
        prompts = self._prompts(max(1, budget))
        if prompts and not own.mixed_steps:
            # prompts take precedence
            decoding = []
        if not prompts and not decoding:
            return None
        step = BatchStep(
            decoding=self._padded(len(decoding)) if decoding else 0,
            prompt=sum(tokens for _, tokens in prompts),
            context=sum(request.prompt_tokens + request.generated for request in decoding)
            + sum(request.computed for request, _ in prompts),
            structured=sum(request.structured for request in decoding),
            eager=bool(own.batch_sizes) and len(decoding) > own.batch_sizes[-1],
        )
        self.totals.steps += 1
        ends_s = now_s + self.cost.seconds(step, now_s)
        self.totals.busy_s += ends_s - now_s
        return RunningStep(ends_s=ends_s, decoding=decoding, prompts=prompts)

    def decode_ahead(self, now_s: float, before_s: float) -> list[float]:
        """Run the steps that begin from `now_s` on and before `before_s` as long as they do nothing but decode the same
        requests, and no answer ends with them; return when each ended.

        The same steps as `begin` and `end` one by one would run, without their cost for each request. Empty where the next
        step needs them: prompts, speculation, a memory that may become full.
        """
        sequences = len(self.decoding)
        if not sequences or self.waiting or self.prefilling or self._speculative > 1.0:
            return []
        most = min(request.answer_tokens - request.generated for request in self.decoding) - 1
        # what they have generated and still have no memory for, at most
        owed = (max(0, one.generated + 1 - (one.holding.tokens if one.holding else 0)) for one in self.decoding)
        room = self.memory.capacity - self.memory.used() - sum(owed)
        most = min(most, room // sequences - MEMORY_MARGIN)
        if most <= 0:
            return []
        if self.arriving:
            before_s = min(before_s, self.arriving[0].ready_s)
        own = self.own
        padded, structured = self._padded(sequences), sum(request.structured for request in self.decoding)
        eager = bool(own.batch_sizes) and sequences > own.batch_sizes[-1]
        context = sum(request.prompt_tokens + request.generated for request in self.decoding)
        ends: list[float] = []
        self.totals.busy_s -= now_s
        while len(ends) < most and now_s < before_s:
            step = BatchStep(decoding=padded, context=context, structured=structured, eager=eager)
            now_s += self.cost.seconds(step, now_s)
            context += sequences
            ends.append(now_s)
        self.totals.busy_s += now_s
        for request in self.decoding:
            request.generated += len(ends)
        self.totals.steps += len(ends)
        self.totals.generation_tokens += sequences * len(ends)
        return ends

    def _padded(self, sequences: int) -> int:
        sizes = self.own.batch_sizes
        if not sizes or sequences > sizes[-1]:
            return sequences
        return sizes[bisect_left(sizes, sequences)]

    def _tokens_now(self, request: EmulatedRequest) -> int:
        """Return the tokens generated in this step: one, or with speculation as many as are accepted."""
        left = request.answer_tokens - request.generated
        if self._speculative <= 1.0:
            return min(1, left)
        request.credit += self._speculative * (0.6 + 0.8 * self._rng.random())
        whole = max(1, int(request.credit))
        request.credit -= whole
        self.totals.drafted += DRAFTED
        self.totals.accepted += min(DRAFTED, whole - 1)
        return min(whole, left)

    def _grow(self, request: EmulatedRequest) -> bool:
        """Allocate memory for the next token, preempting the youngest request if necessary; return false if that is this one."""
        holding = request.holding
        if holding is None:
            return False
        needed = request.prompt_tokens + request.generated + 1 - holding.cached - holding.tokens
        if request.computed >= request.to_compute:
            # the prompt is shared memory now: only the generated tokens are private
            needed = request.generated + 1 - holding.tokens
        while needed > 0 and not self.memory.grow(holding, needed):
            if not self._preempt_youngest():
                return True
            if request.holding is None:
                return False
        return True

    def _preempt_youngest(self) -> bool:
        running = self.prefilling + self.decoding
        if len(running) < 2:
            return False
        victim = max(running, key=lambda running_request: running_request.ready_s)
        (self.prefilling if victim in self.prefilling else self.decoding).remove(victim)
        self._release(victim, None)
        self.totals.preemptions += 1
        self.waiting.appendleft(victim)
        return True

    def _prompts(self, budget: int) -> list[tuple[EmulatedRequest, int]]:
        """Return which prompts are computed in this step, and how many tokens of each."""
        prompts: list[tuple[EmulatedRequest, int]] = []
        for request in self.prefilling:
            if budget <= 0:
                break
            part = self._part(request, budget, first=not prompts)
            if part <= 0:
                break
            prompts.append((request, part))
            budget -= part
        for request in self._candidates():
            if budget <= 0 or self.in_engine() >= self.running_max:
                break
            if not self._admit(request):
                break
            part = self._part(request, budget, first=not prompts)
            if part > 0:
                prompts.append((request, part))
                budget -= part
            else:
                break
        return prompts

    def _part(self, request: EmulatedRequest, budget: int, *, first: bool) -> int:
        left = request.to_compute - request.computed
        if left <= budget:
            return left
        # an engine without chunked prefill computes a prompt that exceeds its budget in a step of its own
        return budget if self.own.chunked_prefill else (left if first else 0)

    def _candidates(self) -> Iterator[EmulatedRequest]:
        while self.waiting:
            if self.own.longest_prefix_first and 1 < len(self.waiting) <= PREFIX_ORDER_MAX:
                best = max(self.waiting, key=lambda candidate: self.memory.cached(candidate.prompt))
                if best is not self.waiting[0]:
                    self.waiting.remove(best)
                    self.waiting.appendleft(best)
            yield self.waiting[0]

    def _admit(self, request: EmulatedRequest) -> bool:
        """Admit the head of the queue if there is memory for it."""
        tokens = request.prompt_tokens + request.generated
        reserve = request.answer_tokens - request.generated if self.own.reserve_output else 0
        holding = self.memory.admit(request.prompt, tokens, reserve)
        if holding is None:
            if self.in_engine():
                return False
            # a request that is alone always runs
            holding = Holding(tokens=0, cached=0, pin=None)
        self.waiting.popleft()
        request.holding = holding
        request.computed = 0
        request.to_compute = max(1, tokens - holding.cached)
        if request.cached is None:
            request.cached = holding.cached
            request.admitted_s = self._now_s
            self.totals.cached_tokens += holding.cached
            self.totals.admitted += 1
            self.totals.queue_s += self._now_s - request.arrived_s
        self.prefilling.append(request)
        return True

    def _release(self, request: EmulatedRequest, text: str | None) -> None:
        if request.holding is not None:
            if request.holding.pin is not None:
                self.memory.release(request.holding, text)
            request.holding = None

    def end(self, running: RunningStep, now_s: float) -> list[tuple[EmulatedRequest, int]]:
        """End a step; return how many tokens each request got. A request with a complete answer leaves the engine."""
        generated: list[tuple[EmulatedRequest, int]] = []
        for request, tokens in running.prompts:
            if request.holding is None:
                continue
            request.computed += tokens
            if request.computed >= request.to_compute:
                self.prefilling.remove(request)
                if request.holding.pin is not None:
                    self.memory.computed(request.holding, request.prompt)
                self.decoding.append(request)
                generated.append((request, self._add_tokens(request, 1, now_s)))
        for request in running.decoding:
            if request.holding is not None:
                generated.append((request, self._add_tokens(request, self._tokens_now(request), now_s)))
        finished = [request for request, _ in generated if request.generated >= request.answer_tokens]
        if finished:
            finished_ids = set(map(id, finished))
            self.decoding = [request for request in self.decoding if id(request) not in finished_ids]
            for request in finished:
                self._release(request, request.prompt + "".join(request.pieces))
        return generated

    def _add_tokens(self, request: EmulatedRequest, tokens: int, now_s: float) -> int:
        tokens = min(tokens, request.answer_tokens - request.generated)
        request.generated += tokens
        self.totals.generation_tokens += tokens
        request.last_s = now_s
        if not request.first_s:
            request.first_s = now_s
        return tokens
