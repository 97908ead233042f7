"""What requests of an open loop wait in the long run, by a model of the queue: the upper ends of the intervals of TTFT and E2E.

At a rate, long queues are rare, and a short window lacks them: its TTFTs vary less than those of the long run, and an interval
from them alone is too low (of windows of 30 s at 0.6 to 0.85 of the capacity, 70 to 85% held the mean). But the law of the
arrivals is ours and known, and the window shows how fast the engine answers with n requests in flight. So the numbers in
flight in the long run are known, those included that the window did not see: a birth-death process with the planned rate and
m / S(m) departures while m are in flight, S(m) being the time that an answer takes then (Kleinrock 1975, "Queueing Systems",
volume 1, chapter 3). Random arrivals see it as it is at any time (Wolff 1982, Oper. Res. 30). Below the limit of running
requests a TTFT is one of those that the window has; beyond, each request in the queue adds one departure.

The limit is where TTFT begins to grow with the requests in flight. Where it does not yet, the limit may be just beyond
what was seen, and is taken to be there. Where prompts are long there is another queue: TTFT grows with the requests that have no
first token yet, by the time that the prompt of each is read, and they are served one after another (Pollaczek and Khinchine's
formula: Kleinrock, chapter 5).

The queue is made longer for answers, or arrivals, that vary more than the model's (Kingman 1961, Proc. Camb. Phil. Soc. 57),
and times as much longer as so few of them leave open. So the model errs to the upper side, where it is used: an interval is
raised to it and never lowered. Whether it is right is counted in docs/calibration.md (until), also at rates, lengths and
limits for which nothing was chosen here.

How long a simulation has to be to see such queues itself: Whitt 1989, Manage. Sci. 35.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from servebench.measure.points import Arrivals
from servebench.util.arrays import Floats, Ints
from servebench.util.units import MS_PER_S

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
LONG_PROMPT_TOKENS, READING_MAX = 400, 0.5
"""Where prompts are shorter, or read in a smaller share of the time, 92 to 100% of the intervals of TPOT, ITL and E2E hold the
truth in simulated open loops (docs/precision.md)."""
QUEUE_MAX = 4000
"""Longer queues are not considered."""
PARTS = 100
"""Into how many equal parts a distribution is cut to add another to it."""


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

    def with_rest(self, rest_ms: Floats) -> Floats:
        """Return E2Es, of equal shares, of requests whose answers take so long from the first token on, whatever they waited."""
        middles = (np.arange(PARTS) + 0.5) / PARTS * 100
        return np.add.outer([self.percentile(one) for one in middles], np.percentile(rest_ms, middles)).ravel()


@dataclass(frozen=True, slots=True)
class Knee:
    """The requests before one up to which it does not wait, the TTFT there, by how much each one more makes it longer, and the
    standard error of that, as a share."""

    before: int
    ttft_ms: float
    step_ms: float
    error: float


class _Queue(NamedTuple):
    """The share of the time with 0, 1, 2, ... requests before a new one; it waits from `limit` on, `step_ms` more for each."""

    shares: Floats
    limit: int
    step_ms: float


def long_run(arrivals: Arrivals) -> LongRun | None:
    """Return TTFTs in the long run, at the upper end of what the window leaves open; None where it leaves open that the engine
    cannot keep up, and no TTFT is too long."""
    before = arrivals.in_flight
    knee, prefill = (find_knee(arrivals, those) for those in (before, arrivals.waiting))
    if knee is not None and _answered_req_s(arrivals) > ANSWERED_MAX * _departures(arrivals, knee)[-1]:
        knee = None
    if prefill is not None and (knee is None or prefill.error < knee.error):
        before, knee, queue = arrivals.waiting, prefill, _queue_for_prefill(arrivals, prefill)
    else:
        queue = _queue_to_run(arrivals, knee)
    if queue is None:
        return None
    at_once = arrivals.ttft_ms[before < queue.limit]
    base = knee.ttft_ms if knee is not None else float(at_once.mean())
    queued = base + queue.step_ms * np.arange(1, queue.shares.size - queue.limit + 1)
    values = np.concatenate([at_once, queued])
    at_once_share = queue.shares[: queue.limit].sum() / at_once.size
    weights = np.concatenate([np.full(at_once.size, at_once_share), queue.shares[queue.limit :]])
    order = np.argsort(values)
    return LongRun(values[order], weights[order])


def reads_long_prompts(arrivals: Arrivals) -> bool:
    """Return whether the engine spends so much of its time on prompts that answers are slower while others' prompts are read:
    by how long the quickest TTFTs are, beyond a token, at the planned rate. Short prompts wait for something else."""
    long = float(arrivals.prompt_tokens.mean()) >= LONG_PROMPT_TOKENS if arrivals.prompt_tokens.size else False
    known = arrivals.tpot_ms[np.isfinite(arrivals.tpot_ms)]
    if not long or not known.size:
        return False
    reading_ms = float(np.percentile(arrivals.ttft_ms, 10)) - float(np.median(known))
    return arrivals.rate_req_s * reading_ms / MS_PER_S >= READING_MAX


def find_knee(arrivals: Arrivals, before: Ints) -> Knee | None:
    """Return from how many requests `before` one on TTFT grows with them, by least squares; None where it does not clearly."""
    counts = np.bincount(before)
    sums = np.bincount(before, weights=arrivals.ttft_ms)
    number, mean = arrivals.ttft_ms.size, float(arrivals.ttft_ms.mean())
    states, whole = np.arange(counts.size), float(((arrivals.ttft_ms - mean) ** 2).sum())
    best, explained = None, EXPLAINED_MIN * whole
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
            explained = step * covariance
            error = (max(whole / explained - 1, 0.0) / number) ** 0.5
            best = Knee(limit, mean - step * middle, step, error)
    if best is None or best.step_ms * arrivals.rate_req_s / MS_PER_S < USE_MIN:
        return None
    return best


def _queue_to_run(arrivals: Arrivals, knee: Knee | None) -> _Queue | None:
    """Return the queue of an engine that runs so many requests at once: up to the knee, or up to the most that were seen."""
    rates = _departures(arrivals, knee)
    limit = rates.size
    varied = variation(arrivals.e2e_ms)
    rates = rates / (1 + Z_95 * (varied / arrivals.e2e_ms.size) ** 0.5)
    use = arrivals.rate_req_s / float(rates[-1])
    if use >= 1:
        return None
    longer = max(1.0, (varied + variation(np.diff(arrivals.sent_s))) / 2)
    logs = np.concatenate([[0.0], np.cumsum(np.log(arrivals.rate_req_s / rates))])
    waiting = np.arange(1, QUEUE_MAX)
    shares = np.exp(np.concatenate([logs, logs[-1] + np.log(_ratio(use, longer)) * waiting]) - logs.max())
    return _Queue(shares / shares.sum(), limit, MS_PER_S / float(rates[-1]))


def _queue_for_prefill(arrivals: Arrivals, knee: Knee) -> _Queue | None:
    """Return the queue of an engine that reads one prompt after another, each for as long as its length makes it."""
    varied = variation(arrivals.prompt_tokens)
    step = knee.step_ms * (1 + Z_95 * (knee.error**2 + varied / arrivals.ttft_ms.size) ** 0.5)
    use = arrivals.rate_req_s * step / MS_PER_S
    if use >= 1:
        return None
    ratio = _ratio(use, (varied + variation(np.diff(arrivals.sent_s))) / 2)
    shares = np.concatenate([[1 - use], use * (1 - ratio) * ratio ** np.arange(QUEUE_MAX)])
    return _Queue(shares / shares.sum(), knee.before + 1, step)


def _ratio(use: float, longer: float) -> float:
    """Return the ratio of the shares of two successive lengths of a queue that is `longer` than with random times."""
    return use * longer / (1 - use + use * longer)


def is_random(arrivals: Arrivals) -> bool:
    """Return whether the requests are enough, and come randomly enough, for `long_run`."""
    return arrivals.ttft_ms.size >= REQUESTS_MIN and variation(np.diff(arrivals.sent_s)) >= REGULAR


def variation(values: Floats) -> float:
    """Return the squared coefficient of variation: of the gaps between requests 1 if they come at random, 0 if regularly."""
    return float(values.var() / values.mean() ** 2) if values.size and values.mean() > 0 else 0.0


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
        limit = knee.before + 1
        usual = np.median(arrivals.ttft_ms[arrivals.in_flight < limit])
        waited = np.maximum(arrivals.ttft_ms - usual, 0.0)
    answer_s = float((arrivals.e2e_ms - waited).mean()) / MS_PER_S
    running = np.arange(1, limit + 1)
    return running / (answer_s * _slowdown(arrivals, limit, running))


def _slowdown(arrivals: Arrivals, limit: int, running: Ints) -> Floats:
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
