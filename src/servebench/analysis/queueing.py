"""What requests of an open loop wait in the long run, by a model of the queue: the upper ends of their TTFT's intervals.

At a rate, long queues are rare, and a short window lacks them: its TTFTs vary less than those of the long run, and an interval
from them alone is too low (of windows of 30 s at 0.6 to 0.85 of the capacity, 70 to 85% held the mean). But the law of the
arrivals is ours and known, and the window shows how fast the engine answers with n requests in flight. So the numbers in
flight in the long run are known, those included that the window did not see: a birth-death process with the planned rate and
m / S(m) departures while m are in flight, S(m) being the time that an answer takes then (Kleinrock 1975, "Queueing Systems",
volume 1, chapter 3). Random arrivals see it as it is at any time (Wolff 1982, Oper. Res. 30). Below the limit of running
requests a TTFT is one of those that the window has; beyond, each request in the queue adds one departure.

The limit is where TTFT begins to grow with the requests in flight. Where it does not yet, the limit may be just beyond
what was seen, and is taken to be there. The queue is made longer for answers, or arrivals, that vary more than the model's
(Kingman 1961, Proc. Camb. Phil. Soc. 57), and answers as much longer as so few of them leave open. So the model errs to the upper
side, where it is used: an interval is raised to it and never lowered. Whether it is right is counted in docs/calibration.md
(until), also at rates, lengths and limits for which nothing was chosen here.

How long a simulation has to be to see such queues itself: Whitt 1989, Manage. Sci. 35.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servebench.measure.points import Arrivals
from servebench.util.units import MS_PER_S

Floats = NDArray[np.float64]

REQUESTS_MIN = 12
REGULAR = 0.5
"""Arrivals whose gaps have a smaller squared coefficient of variation are too regular for the model (random ones have 1)."""
SEEN_MIN = 3
"""So many requests have to wait, or not to wait, beyond a number in flight to be believed."""
EXPLAINED_MIN = 0.2
"""The share of the variance of TTFT that a limit has to explain."""
USE_MIN = 0.25
"""What looks like a limit is none where the queue would be served at more than 1 / USE_MIN of the rate."""
ANSWERED_MAX = 1.25
"""Nor is it one where so many times the requests were answered that it allows: then TTFT grows for another reason."""
Z_95 = 1.96
QUEUE_MAX = 4000
"""Longer queues are not considered."""


class LongRun(NamedTuple):
    """TTFTs in milliseconds as they are in the long run: values in ascending order, and the share of requests that has each."""

    values: Floats
    shares: Floats

    @property
    def mean(self) -> float:
        """The mean TTFT."""
        return float(self.values @ self.shares)

    def percentile(self, percent: float) -> float:
        """Return a percentile of TTFT."""
        at = np.searchsorted(np.cumsum(self.shares), percent / 100)
        return float(self.values[min(int(at), self.values.size - 1)])


@dataclass(frozen=True, slots=True)
class Knee:
    """The requests in flight up to which nobody waits, the TTFT there, and by how much each one more makes it longer."""

    in_flight: int
    ttft_ms: float
    step_ms: float


def find_knee(arrivals: Arrivals) -> Knee | None:
    """Return where TTFT begins to grow with the requests in flight, by least squares; None where it does not clearly grow."""
    counts = np.bincount(arrivals.in_flight)
    sums = np.bincount(arrivals.in_flight, weights=arrivals.ttft_ms)
    number, mean = arrivals.ttft_ms.size, float(arrivals.ttft_ms.mean())
    states = np.arange(counts.size)
    best, explained = None, EXPLAINED_MIN * float(((arrivals.ttft_ms - mean) ** 2).sum())
    for limit in range(1, counts.size - 1):
        if counts[: limit + 1].sum() < SEEN_MIN:
            continue
        if counts[limit + 1 :].sum() < SEEN_MIN:
            break
        beyond = np.maximum(states - limit, 0).astype(np.float64)
        middle = float(counts @ beyond) / number
        covariance = float(beyond @ sums) - number * middle * mean
        step = covariance / (float(counts @ beyond**2) - number * middle**2)
        if step > 0 and step * covariance > explained:
            best, explained = Knee(limit, mean - step * middle, step), step * covariance
    if best is None or best.step_ms * arrivals.rate_req_s / MS_PER_S < USE_MIN:
        return None
    return best


def long_run(arrivals: Arrivals) -> LongRun | None:
    """Return TTFTs in the long run, at the upper end of what the window leaves open; None where it leaves open that the engine
    cannot keep up, and no TTFT is too long."""
    knee = find_knee(arrivals)
    rates = _departures(arrivals, knee)
    if knee is not None and _answered_req_s(arrivals) > ANSWERED_MAX * rates[-1]:
        knee = None
        rates = _departures(arrivals, knee)
    limit = rates.size
    varied = float(arrivals.e2e_ms.std() / arrivals.e2e_ms.mean()) ** 2
    rates = rates / (1 + Z_95 * (varied / arrivals.e2e_ms.size) ** 0.5)
    use = arrivals.rate_req_s / float(rates[-1])
    if use >= 1:
        return None
    longer = max(1.0, (varied + gap_variation(arrivals.sent_s)) / 2)
    logs = np.concatenate([[0.0], np.cumsum(np.log(arrivals.rate_req_s / rates))])
    more = use * longer / (1 - use + use * longer)
    waiting = np.arange(1, QUEUE_MAX)
    shares = np.exp(np.concatenate([logs, logs[-1] + np.log(more) * waiting]) - logs.max())
    shares /= shares.sum()
    at_once = arrivals.ttft_ms[arrivals.in_flight < limit]
    base = knee.ttft_ms if knee is not None else float(at_once.mean())
    queued = base + MS_PER_S / float(rates[-1]) * np.arange(1, shares.size - limit + 1)
    values = np.concatenate([at_once, queued])
    weights = np.concatenate([np.full(at_once.size, shares[:limit].sum() / at_once.size), shares[limit:]])
    order = np.argsort(values)
    return LongRun(values[order], weights[order])


def is_random(arrivals: Arrivals) -> bool:
    """Return whether the requests are enough, and come randomly enough, for `long_run`."""
    return arrivals.ttft_ms.size >= REQUESTS_MIN and gap_variation(arrivals.sent_s) >= REGULAR


def gap_variation(sent_s: Floats) -> float:
    """Return the squared coefficient of variation of the gaps between requests: 1 if they come at random, 0 if regularly."""
    gaps = np.diff(sent_s)
    return float(gaps.var() / gaps.mean() ** 2) if gaps.size and gaps.mean() > 0 else 0.0


def _answered_req_s(arrivals: Arrivals) -> float:
    """Return how many of the requests ended each second while others were sent."""
    first, last = arrivals.sent_s[0], arrivals.sent_s[-1]
    ended = arrivals.sent_s + arrivals.e2e_ms / MS_PER_S
    return float((ended <= last).sum() / (last - first)) if last > first else 0.0


def _departures(arrivals: Arrivals, knee: Knee | None) -> Floats:
    """Return how many answers end each second while 1, 2, ... are being written, up to the limit."""
    if knee is None:
        limit = int(np.sort(arrivals.in_flight)[-SEEN_MIN]) + 1
        waited = np.zeros(1)
    else:
        limit = knee.in_flight + 1
        usual = np.median(arrivals.ttft_ms[arrivals.in_flight < limit])
        waited = np.maximum(arrivals.ttft_ms - usual, 0.0)
    answer_s = float((arrivals.e2e_ms - waited).mean()) / MS_PER_S
    running = np.arange(1, limit + 1)
    return running / (answer_s * _slowdown(arrivals, limit, running))


def _slowdown(arrivals: Arrivals, limit: int, running: NDArray[np.int64]) -> Floats:
    """Return by how much slower tokens come with so many requests running than they did on average."""
    known = np.isfinite(arrivals.tpot_ms)
    company = np.minimum(arrivals.in_flight_mean[known], limit)
    if company.size < REQUESTS_MIN or np.ptp(company) == 0:
        return np.ones(running.size)
    slope, start = np.polyfit(company, arrivals.tpot_ms[known], 1)
    middle = start + slope * company.mean()
    if slope <= 0 or middle <= 0:
        return np.ones(running.size)
    return np.asarray(np.maximum((start + slope * running) / middle, 0.5), dtype=np.float64)
