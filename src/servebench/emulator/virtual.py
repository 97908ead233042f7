"""An emulated engine on a virtual clock, for simulations: no server, no waiting, and deviations that are planted.

The scheduler is that of the emulated server. Time is an argument in seconds, and the caller says up to which moment the
engine may run.
"""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256

import numpy as np

from servebench.contracts.emulation import EmulationSpec, Variation
from servebench.emulator.cost import BatchStep, Profile, StepCost, profile_for, with_profile
from servebench.emulator.requests import ParsedRequest, RequestRejected, parse_request
from servebench.emulator.scheduler import BatchScheduler, EmulatedRequest, RunningStep

SECONDS_PER_MINUTE = 60.0
INSTANT_S = 1e-9
EXPONENT_MAX = 20.0
"""A drift slows an engine down by no more than this, as a logarithm."""
SAMPLES_AT_ONCE = 1000
NORMALS = 1024
"""Normal values drawn at once: one at a time costs ten times as much."""
MACHINE_STEPS = 16
"""The wander of a machine is computed so often in its correlation time, and interpolated between."""
MACHINE_PAST = 5
"""What moved a machine so many correlation times ago is forgotten."""


class VaryingCost(StepCost):
    """The durations of an engine whose speed differs from start to start and from moment to moment."""

    def __init__(
        self, spec: EmulationSpec, profile: Profile | None, variation: Variation, key: str, began_s: float = 0.0
    ) -> None:
        """`key` seeds everything that is random: another start has another key. `began_s` is second 0 in the
        machine's time."""
        super().__init__(spec, profile)
        self._variation = variation
        self._began_s = began_s
        self._normals = _normals(f"{key}/speed")
        self._start = variation.slowdown * math.exp(variation.start_sd * next(self._normals))
        self._wander = next(self._normals)
        self._at_s = 0.0

    @property
    def request_s(self) -> float:
        """The front-end time of each request, which differs between starts like all durations."""
        return (super().request_s + self._variation.front_end_ms / 1e3) * self._start

    def latency_s(self, rng: random.Random) -> float:
        """Return the random delay before the queue, which differs between starts like all durations."""
        return super().latency_s(rng) * self._start

    def seconds(self, step: BatchStep, now_s: float = 0.0) -> float:
        """Return the duration of a step that begins at `now_s`. The times of successive calls must not fall."""
        own, normals = self._variation, self._normals
        exponent = 0.0
        if own.wander_sd:
            kept = math.exp((self._at_s - now_s) / own.wander_s)
            self._wander = kept * self._wander + math.sqrt(max(0.0, 1.0 - kept * kept)) * next(normals)
            self._at_s = now_s
            exponent += own.wander_sd * self._wander
        if own.machine_sd:
            exponent += own.machine_sd * _machine_wander(own.machine_seed, (self._began_s + now_s) / own.machine_s)
        if own.step_noise:
            exponent += own.step_noise * next(normals)
        if own.drift:
            exponent += own.drift * now_s / SECONDS_PER_MINUTE
        if own.shift and now_s > own.shift_s:
            exponent += math.log1p(own.shift) * min(1.0, (now_s - own.shift_s) / max(own.shift_over_s, INSTANT_S))
        return super().seconds(step, now_s) * self._start * math.exp(max(-EXPONENT_MAX, min(EXPONENT_MAX, exponent)))


def _machine_wander(seed: int, at: float) -> float:
    """Return the wander of a machine with a standard deviation of 1, after so many of its correlation times."""
    place, rest = divmod(at * MACHINE_STEPS, 1.0)
    return (1 - rest) * _machine_step(seed, int(place)) + rest * _machine_step(seed, int(place) + 1)


@lru_cache(maxsize=4096)
def _machine_step(seed: int, place: int) -> float:
    """Return an Ornstein-Uhlenbeck process at a step, from the shocks before it."""
    kept = math.exp(-1 / MACHINE_STEPS)
    shocks = (_machine_shock(seed, place - age) * kept**age for age in range(MACHINE_PAST * MACHINE_STEPS))
    return math.sqrt(1 - kept * kept) * sum(shocks)


@lru_cache(maxsize=4096)
def _machine_shock(seed: int, place: int) -> float:
    return random.Random(f"{seed}/{place}").gauss(0.0, 1.0)


def _normals(key: str) -> Iterator[float]:
    """Yield standard normal values, the same for the same key."""
    rng = np.random.default_rng(np.frombuffer(sha256(key.encode()).digest(), dtype=np.uint32))
    while True:
        yield from rng.standard_normal(NORMALS).tolist()


@dataclass(slots=True, eq=False)
class VirtualAnswer:
    """A request in the virtual engine, and when its tokens came, in seconds."""

    index: int
    parsed: ParsedRequest
    request: EmulatedRequest
    event_s: list[float] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether all tokens of the answer have come."""
        return self.request.generated >= self.request.answer_tokens


class VirtualEngine:
    """An engine from one start on, at second 0."""

    def __init__(self, spec: EmulationSpec, variation: Variation, key: str, began_s: float = 0.0) -> None:
        """`key` names the start: the same key gives the same speed, noise and failures. `began_s` is when it began: what the
        machine does then, it does to all engines."""
        profile = profile_for(spec)
        self.spec = with_profile(spec, profile)
        self.scheduler = BatchScheduler(self.spec, VaryingCost(self.spec, profile, variation, key, began_s))
        self.now_s = 0.0
        """When the last step ended."""
        self._variation = variation
        self._rng = random.Random(f"{key}/failures")
        self._failing = 0
        self._step: RunningStep | None = None
        self._answers: dict[int, VirtualAnswer] = {}
        self.samples: list[tuple[float, dict[str, float]]] = []
        """Of the phase that `watch` began: when, and the values of the metrics then."""
        self._next_sample_s, self._sample_every_s = math.inf, math.inf

    def watch(self, now_s: float, every_s: float | None) -> None:
        """Forget all samples of the metrics and take new ones from `now_s` on, or none."""
        self.samples = []
        self._next_sample_s, self._sample_every_s = (math.inf, math.inf) if every_s is None else (now_s, every_s)

    def sample_until(self, limit_s: float) -> None:
        """Take the samples that are due up to a moment before which nothing more changes."""
        if limit_s - self._next_sample_s > SAMPLES_AT_ONCE * self._sample_every_s:
            # hours of an idle engine: only its last samples are taken
            self._next_sample_s = limit_s - SAMPLES_AT_ONCE * self._sample_every_s
        while self._next_sample_s <= limit_s:
            totals, found = self.scheduler.totals, self.scheduler.metrics(self._next_sample_s)
            found["front_end_cpu_s"] = totals.front_end_s
            found["engine_cpu_s"] = totals.front_end_s + totals.busy_s
            self.samples.append((self._next_sample_s, found))
            self._next_sample_s += self._sample_every_s

    def watch_ends(self, now_s: float) -> None:
        """Take a last sample now, so that differences of counters span the phase."""
        if math.isfinite(self._next_sample_s):
            self._next_sample_s = now_s
            self.sample_until(now_s)
        self._next_sample_s = math.inf

    def submit(self, index: int, path: str, body: bytes, now_s: float) -> VirtualAnswer:
        """Take a request; `index` identifies it. Raises RequestRejected."""
        self._fail_in_bursts()
        parsed = parse_request(self.spec, path, json.loads(body))
        if self.scheduler.rejects():
            raise RequestRejected(self.spec.emulation.overload_status, "The request queue is full.")
        request = parsed.in_engine(index)
        answer = VirtualAnswer(index, parsed, request)
        request.owner = answer
        self.scheduler.submit(request, now_s + self._variation.network_ms / 1e3)
        self._answers[id(request)] = answer
        return answer

    def _fail_in_bursts(self) -> None:
        """Reject the request if it falls into a burst of failures. Raises RequestRejected.

        A burst begins with the probability q for which bursts of B requests fail a share r of all: with (1 - q) / q good
        requests between two bursts on average, B / (B + (1 - q) / q) = r.
        """
        own = self._variation
        if not own.failure_rate:
            return
        if not self._failing:
            good = own.failure_burst * (1.0 - own.failure_rate) / own.failure_rate
            self._failing = own.failure_burst if self._rng.random() < 1.0 / (1.0 + good) else 0
        if self._failing:
            self._failing -= 1
            raise RequestRejected(500, "The engine failed, as planned.")

    def abort(self, answer: VirtualAnswer, now_s: float) -> None:
        """Remove a request whose client went away at `now_s`; what it would have got later is forgotten."""
        self._answers.pop(id(answer.request), None)
        self.scheduler.abort(answer.request)
        while answer.event_s and answer.event_s[-1] > now_s:
            answer.event_s.pop()

    def run_until(self, limit_s: float) -> tuple[float, list[VirtualAnswer]]:
        """Run until an answer is complete, but not beyond `limit_s`; return that moment and the complete answers. `math.inf` as a
        limit runs until an answer is complete or nothing is left to do; the moment is then infinite."""
        while True:
            if self._step is None:
                ready_s = self.scheduler.next_ready_s()
                begin_s = limit_s if ready_s is None else max(self.now_s, ready_s)
                if math.isfinite(idle_s := min(begin_s, limit_s)):
                    self.sample_until(idle_s)
                if begin_s >= limit_s:
                    return limit_s, []
                ends = self.scheduler.decode_ahead(begin_s, limit_s)
                if ends:
                    self.sample_until(ends[-1])
                    for request in self.scheduler.decoding:
                        self._answers[id(request)].event_s += ends
                    self.now_s = ends[-1]
                    continue
                self._step = self.scheduler.begin(begin_s)
                if self._step is None:
                    return limit_s, []
            if self._step.ends_s > limit_s:
                return limit_s, []
            if complete := self._end_step(self._step):
                return self.now_s, complete

    def _end_step(self, step: RunningStep) -> list[VirtualAnswer]:
        self.sample_until(step.ends_s)
        self.now_s, self._step = step.ends_s, None
        complete = []
        for request, tokens in self.scheduler.end(step, step.ends_s):
            answer = self._answers.get(id(request))
            if answer is None:
                continue
            if tokens:
                answer.event_s.append(step.ends_s)
            if answer.complete:
                del self._answers[id(request)]
                complete.append(answer)
        return complete
