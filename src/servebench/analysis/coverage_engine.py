"""A simulated engine under load, many repetitions at once: what the intervals of a point are checked with.

The engine batches continuously: in each step every decoding request gets one token, and waiting prompts are computed first come,
first served, within a token budget. A step's time grows with the requests and the prompt tokens in it, and is multiplied
by independent noise and by a speed that wanders (an Ornstein-Uhlenbeck process of its logarithm, so slow and fast phases
last `wander_s`). Everything follows from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servebench.measure.points import PointSample
from servebench.util.units import MS_PER_S

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FREE = -1
"""A place without a request."""
CLIENT_S = 0.0003
"""The time between the end of an answer and the arrival of the next request of its stream."""
OPEN_PLACES = 48
"""The most requests of an open loop that are in the engine at once."""


@dataclass(frozen=True, kw_only=True)
class CoverageLoad:
    """The load of a simulated point and the engine under it.

    A closed loop has `streams`, an open loop a Poisson `rate` in requests per second. Answers have `length` tokens, evenly
    spread over plus or minus `spread`. `wander` is the standard deviation of the logarithm of the engine's speed, `noise`
    that of each step. `staggered` streams start at random moments over one answer's time, others all at once.
    """

    streams: int = 8
    rate: float | None = None
    length: int = 64
    spread: int = 40
    wander: float = 0.02
    wander_s: float = 5.0
    noise: float = 0.03
    prompt_tokens: int = 192
    prompt_spread: int = 64
    budget: int = 512
    step_s: float = 0.008
    sequence_s: float = 0.0001
    prompt_token_s: float = 0.00002
    staggered: bool = True


@dataclass(frozen=True, kw_only=True)
class SimulatedPoints:
    """Points of one load, a row for each repetition: requests in the order sent, and the ends of the engine's steps.

    `first` and `last` are the steps with which a request got its first and last token; it got one in each step between.
    `steps_s` are the ends of steps. `from_s` is when the load had reached its level.
    """

    load: CoverageLoad
    sent_s: Floats
    first: Ints
    last: Ints
    steps_s: Floats
    tokens: Ints
    from_s: Floats

    def sample(self, row: int, requests: int | None = None) -> PointSample:
        """Return what a point's numbers are computed from, for one repetition: the first `requests` (null: all) that were
        sent after the level was reached, and tokens from then until the last of them ended."""
        ends = self.steps_s[row]
        counted = self.sent_s[row] > self.from_s[row]
        counted[self.sent_s.shape[1] if requests is None else requests :] = False
        sent, first, last = self.sent_s[row, counted], self.first[row, counted], self.last[row, counted]
        counts = last - first
        start, end = float(self.from_s[row]), float(ends[last].max()) if self.load.rate is None else float(sent.max())
        inside = (ends > start) & (ends <= end)
        gaps = np.diff(ends, prepend=0.0)
        ttft_ms = (ends[first] - sent) * MS_PER_S
        which = np.arange(int(counts.sum())) + np.repeat(first + 1 - (np.cumsum(counts) - counts), counts)
        answered = ends[last] - ends[first]
        return PointSample(
            ttft_ms=ttft_ms,
            ttfo_ms=ttft_ms,
            tpot_ms=(answered[counts > 0] / counts[counts > 0]) * MS_PER_S,
            e2e_ms=(ends[last] - sent) * MS_PER_S,
            itl_ms=gaps[which] * MS_PER_S,
            itl_counts=counts,
            arrival_s=ends[inside] - start,
            arrival_tokens=self.tokens[row, inside].astype(np.float64),
            window_s=end - start,
        )


def simulate(load: CoverageLoad, requests: int, repetitions: int, seed: int = 0) -> SimulatedPoints:
    """Return `repetitions` points of `requests` each; the load goes on until the last of them has ended."""
    return _Simulation(load, requests, repetitions, np.random.default_rng(seed)).run()


class _Simulation:
    """The state of all repetitions: arrays of one row for each, one column for each place in the engine."""

    def __init__(self, load: CoverageLoad, requests: int, repetitions: int, rng: np.random.Generator) -> None:
        self.load, self.requests, self.rng = load, requests, rng
        places = load.streams if load.rate is None else OPEN_PLACES
        self.rows = np.arange(repetitions)
        shape = (repetitions, places)
        self.request = np.full(shape, FREE)
        self.prompt_left = np.zeros(shape, dtype=np.int64)
        self.left = np.zeros(shape, dtype=np.int64)
        self.arrived = np.full(shape, np.inf)
        self.now = np.zeros(repetitions)
        self.speed = rng.normal(0, load.wander, repetitions)
        self.next_request = np.zeros(repetitions, dtype=np.int64)
        self.ended = np.zeros(repetitions, dtype=np.int64)
        self.sent = np.full((repetitions, requests), np.inf)
        self.first = np.zeros((repetitions, requests), dtype=np.int64)
        self.last = np.zeros((repetitions, requests), dtype=np.int64)
        self.first_token = np.zeros(shape, dtype=bool)
        if load.rate is None:
            answer_s = load.length * (load.step_s + load.streams * load.sequence_s)
            starts = rng.uniform(0, answer_s, shape) if load.staggered else np.zeros(shape)
            self.from_s = starts.max(axis=1)
            for place in range(places):
                self._fill(self.rows, np.full(repetitions, place), starts[:, place])
            # requests are numbered in the order sent
            order = np.argsort(starts, axis=1, kind="stable")
            np.put_along_axis(self.request, order, np.broadcast_to(np.arange(places), shape), axis=1)
            self.sent[:, :places] = np.sort(starts, axis=1)[:, : self.requests]
            self.next_arrival = np.full(repetitions, np.inf)
        else:
            self.from_s = np.full(repetitions, 2 * load.length * load.step_s * 4)
            self.next_arrival = rng.exponential(1 / load.rate, repetitions)

    def run(self) -> SimulatedPoints:
        """Advance all repetitions, step by step, until the measured requests have ended."""
        ends, tokens = [], []
        step = 0
        while (self.ended < self.requests).any():
            given = self._step(step)
            ends.append(self.now.copy())
            tokens.append(given)
            step += 1
        return SimulatedPoints(
            load=self.load,
            sent_s=self.sent,
            first=self.first,
            last=self.last,
            steps_s=np.array(ends).T.copy(),
            tokens=np.array(tokens).T.copy(),
            from_s=self.from_s,
        )

    def _fill(self, rows: Ints, places: Ints, at: Floats) -> None:
        """Put a new request into each of these places."""
        load, count = self.load, rows.size
        numbers = self.next_request[rows]
        self.next_request[rows] += 1
        self.request[rows, places] = numbers
        self.arrived[rows, places] = at
        self.left[rows, places] = self.rng.integers(load.length - load.spread, load.length + load.spread + 1, count)
        spread = load.prompt_spread
        self.prompt_left[rows, places] = load.prompt_tokens + self.rng.integers(-spread, spread + 1, count)
        measured = numbers < self.requests
        self.sent[rows[measured], numbers[measured]] = at[measured]

    def _arrivals(self) -> None:
        """Let the requests of an open loop arrive until now; an idle engine waits for the next one."""
        assert self.load.rate is not None
        idle = (self.request == FREE).all(axis=1)
        self.now = np.where(idle, np.maximum(self.now, self.next_arrival), self.now)
        while (due := np.flatnonzero(self.next_arrival <= self.now)).size:
            free = (self.request[due] == FREE).argmax(axis=1)
            assert (self.request[due, free] == FREE).all(), "more requests are in the engine than it has places"
            self._fill(due, free, self.next_arrival[due])
            self.next_arrival[due] += self.rng.exponential(1 / self.load.rate, due.size)

    def _computed(self, waiting: NDArray[np.bool_]) -> Ints:
        """Return how many prompt tokens of each request are computed in this step: first come, first served, in the budget."""
        amounts = np.zeros(self.prompt_left.shape, dtype=np.int64)
        rows = np.flatnonzero(waiting.any(axis=1))
        if not rows.size:
            return amounts
        order = np.argsort(np.where(waiting[rows], self.arrived[rows], np.inf), axis=1)
        wanted = np.take_along_axis(np.where(waiting[rows], self.prompt_left[rows], 0), order, axis=1)
        before = np.cumsum(wanted, axis=1) - wanted
        given = np.clip(self.load.budget - before, 0, wanted)
        part = np.zeros_like(given)
        np.put_along_axis(part, order, given, axis=1)
        amounts[rows] = part
        return amounts

    def _step(self, number: int) -> Ints:
        """Do one step of the engine of every repetition; return how many tokens each gave."""
        load, rng = self.load, self.rng
        if load.rate is not None:
            self._arrivals()
        held = self.request != FREE
        waiting = held & (self.prompt_left > 0)
        first_due = np.where(waiting, self.arrived, np.inf).min(axis=1)
        decoding = held & (self.prompt_left == 0)
        # nothing to do until the next stream starts
        self.now = np.where(decoding.any(axis=1), self.now, np.maximum(self.now, first_due))
        computed = self._computed(waiting & (self.arrived <= self.now[:, None]))
        cost = load.step_s + load.sequence_s * decoding.sum(axis=1) + load.prompt_token_s * computed.sum(axis=1)
        seconds = cost * np.exp(self.speed) * rng.normal(1, load.noise, self.now.size)
        stay = np.exp(-seconds / load.wander_s)
        self.speed = stay * self.speed + np.sqrt(1 - stay**2) * rng.normal(0, load.wander, self.now.size)
        self.now = self.now + seconds
        self.prompt_left -= computed
        begun = (computed > 0) & (self.prompt_left == 0)
        given = decoding | begun
        self.left -= given
        self._note(begun, self.first, number)
        done = given & (self.left <= 0)
        self._note(done, self.last, number)
        self._end(done)
        tokens: Ints = given.sum(axis=1)
        return tokens

    def _note(self, which: NDArray[np.bool_], table: Ints, number: int) -> None:
        """Note the number of the step for these requests, if they are measured."""
        rows, places = np.nonzero(which)
        numbers = self.request[rows, places]
        measured = numbers < self.requests
        table[rows[measured], numbers[measured]] = number

    def _end(self, done: NDArray[np.bool_]) -> None:
        rows, places = np.nonzero(done)
        if not rows.size:
            return
        np.add.at(self.ended, rows, self.request[rows, places] < self.requests)
        self.request[rows, places] = FREE
        self.arrived[rows, places] = np.inf
        if self.load.rate is None:
            # one place a row at a time, so that numbers stay those of the order sent
            while rows.size:
                _, one = np.unique(rows, return_index=True)
                at = self.now[rows[one]] + CLIENT_S
                self._fill(rows[one], places[one], at)
                kept = np.ones(rows.size, dtype=bool)
                kept[one] = False
                rows, places = rows[kept], places[kept]
