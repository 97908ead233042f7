"""From a level to the plan of its point: how many requests it needs, and when each is sent. Pure.

Times are seconds from the start of the point.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Literal

from servebench.contracts.exchange import PlannedRequest, PointPlan
from servebench.contracts.settings import LoadSettings, RampSettings
from servebench.load.plan.levels import TRACE_REQUESTS, PlannedPoint

Arrival = Literal["constant", "poisson", "gamma"]
SUPPLY_MARGIN = 2.0
"""A timed point gets twice the requests that it would use at the rate of the warm-up."""

SUPPLY_PER_STREAM_MIN = 20

SUPPLY_UNTIL_MAX = 5_000
"""A point that ends when it is precise gets no more, or SUPPLY_PER_STREAM_MIN a stream: few need so many, and all are prepared
before the first is sent."""

RATE_CONNECTIONS = 16
"""Connections kept open ahead of the requests of an open loop, so that connecting is no part of their lateness."""

RATE_SUPPLY_SIGMAS = 5.0

EDGE_ANSWERS = 5.0
"""The window leaves out the time of two and a half answers, which take up to twice as long under the load as in the warm-up."""

SPREAD_MAX = 4.0
"""Longer answers than this many mean ones end after the level has begun to fall."""

SESSION_TURNS = 3
"""So many turns of its sessions each stream may keep the level for."""

STAGGERED_REQUESTS_MIN = 3
"""Streams are staggered when each has at least so many requests."""


def with_edges(level: PlannedPoint, load: LoadSettings, answer_s: float | None) -> PlannedPoint:
    """Return the level of a rate with as many requests more as arrive in the time of EDGE_ANSWERS answers of the warm-up: the
    window leaves out the first and the last. Others, and those without `load.requests=auto` and a known answer time, stay
    as they are."""
    if level.rate is None or level.replay or level.requests is None or load.requests != "auto" or not answer_s:
        return level
    return replace(level, requests=level.requests + math.ceil(EDGE_ANSWERS * answer_s * level.rate))


def requests_to_prepare(level: PlannedPoint, rate_req_s: float | None, least: int = 0) -> int:
    """Return how many requests to prepare for a point that ends with `least` of them or later.

    A timed point at a rate needs as many as will arrive, plus five standard deviations of a Poisson count. In a timed closed
    loop it is twice the number at `rate_req_s`, the rate of the warm-up.
    """
    if level.requests is not None:
        return level.requests
    if level.replay:
        return TRACE_REQUESTS
    assert level.duration_s is not None
    if level.rate is not None:
        expected = level.rate * level.duration_s
        return math.ceil(expected + RATE_SUPPLY_SIGMAS * math.sqrt(expected)) + 1
    assert level.concurrency is not None
    least = max(least, SUPPLY_PER_STREAM_MIN * level.concurrency)
    if rate_req_s is None:
        return max(least, math.ceil(level.concurrency * level.duration_s))
    expected = level.concurrency + math.ceil(SUPPLY_MARGIN * rate_req_s * level.duration_s)
    return max(least, min(expected, SUPPLY_UNTIL_MAX) if level.targets else expected)


def fillers_to_prepare(level: PlannedPoint, load: LoadSettings, spread: float, *, sessions: bool) -> int:
    """Return how many requests keep the level of a closed loop while its last measured requests end; 0 where none are needed.

    `spread` is how many times as long as the mean answer the longest may be: so many each stream may send in that time.
    Sessions take several turns to end.
    """
    streams = level.concurrency or 0
    if not load.hold_level or streams < 2 or (level.requests is not None and level.requests < streams):
        return 0
    return math.ceil(streams * min(max(spread, 1.0), SPREAD_MAX) * (SESSION_TURNS if sessions else 1))


def point_plan(
    level: PlannedPoint,
    load: LoadSettings,
    requests: Sequence[PlannedRequest],
    *,
    warmup: bool,
    answer_s: float | None = None,
    seed: int = 0,
    fillers: int = 0,
) -> PointPlan:
    """Return the plan of a level's warm-up (always a closed loop) or of its point. `answer_s` is how long an answer took in the
    warm-up; without it streams are not staggered. The last `fillers` of the requests are not measured."""
    open_loop = level.open_loop and not warmup
    in_flight = level.warmup_concurrency
    if not warmup:
        in_flight = level.concurrency or level.in_flight_max or max(1, len(requests))
    return PointPlan(
        requests=requests,
        fillers=fillers,
        concurrency=in_flight,
        timeout_s=load.timeout_s,
        connect_timeout_s=load.connect_timeout_s,
        duration_s=None if warmup else level.limit_s,
        drain_s=None if load.drain_s == "auto" else load.drain_s,
        connections=RATE_CONNECTIONS if open_loop else None,
        stream_starts_s=_stream_starts(level, load, answer_s, seed) if not open_loop and not warmup else None,
    )


def schedule_requests(
    level: PlannedPoint, load: LoadSettings, requests: Sequence[PlannedRequest], seed: int
) -> list[PlannedRequest]:
    """Return the requests of a point with the times at which they are sent and cancelled. Only an open loop has send times;
    requests after the end of a timed point are left out. Of a random `load.cancel_fraction` the client goes away."""
    timed, rng = _with_send_times(level, load, requests, seed), random.Random(f"{seed}/{level.point}/cancel")
    if load.cancel_fraction == 0:
        return timed
    return [
        replace(request, cancel_after_s=load.cancel_after_s) if rng.random() < load.cancel_fraction else request
        for request in timed
    ]


def _with_send_times(
    level: PlannedPoint, load: LoadSettings, requests: Sequence[PlannedRequest], seed: int
) -> list[PlannedRequest]:
    if not level.open_loop:
        return list(requests)
    if level.times_s is not None:
        return [replace(r, scheduled_s=time_s) for r, time_s in zip(requests, level.times_s, strict=False)]
    assert level.rate is not None
    # each repeat has its own arrivals: the same ones would repeat the same random error
    times = arrivals(load.arrival, level.rate, len(requests), burstiness=load.burstiness, seed=seed + level.repeat)
    if load.ramp is not None:
        times = ramped_arrivals(times, load.ramp)
    return [
        replace(request, scheduled_s=time_s)
        for request, time_s in zip(requests, times, strict=True)
        if level.duration_s is None or time_s <= level.duration_s
    ]


def _stream_starts(
    level: PlannedPoint, load: LoadSettings, answer_s: float | None, seed: int
) -> tuple[float, ...] | None:
    if level.concurrency is None:
        return None
    if load.ramp is not None:
        return tuple(stream_starts(level.concurrency, load.ramp))
    # with fewer requests the first streams would be done before the last ones start
    enough = level.requests is None or level.requests >= STAGGERED_REQUESTS_MIN * level.concurrency
    if not load.stagger or not answer_s or level.concurrency == 1 or not enough:
        return None
    return tuple(staggered_starts(level.concurrency, answer_s, f"{seed}/{level.point}"))


def arrivals(kind: Arrival, rate_req_s: float, count: int, *, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Return `count` arrival times in seconds. The first gap is drawn like the others.

    The gaps have mean 1 / rate. `constant`: all are equal. `poisson`: exponential, density rate * exp(-rate * t). `gamma`:
    shape k = `burstiness` and scale 1 / (rate * k), so that the coefficient of variation is 1 / sqrt(k): below 1 is
    burstier than Poisson, 1 is Poisson, large is nearly constant (the convention of vLLM's `--burstiness`).

    Random gaps are scaled, for how many requests arrive by chance would scatter throughput more than any engine does:
    `count` + 1 gaps add up to (`count` + 1 - 1 / k) / rate, which gives the rate at all times between the ends (a renewal
    process has (1 / k - 1) / 2 arrivals more after its start: Smith 1958, J. R. Stat. Soc. B 20). Poisson arrivals are
    so those of a Poisson process that has `count` arrivals in `count` / rate.
    """
    if kind == "constant":
        return [(index + 1) / rate_req_s for index in range(count)]
    rng = random.Random(f"{seed}/{kind}/{rate_req_s!r}")
    shape = 1.0 if kind == "poisson" else burstiness
    times = list(accumulate(rng.gammavariate(shape, 1.0) for _ in range(count + 1)))
    # a few arrivals in long bursts have no rate between the ends
    whole_s = max(count + 1 - 1 / shape, count / 2) / rate_req_s
    return [time / times[-1] * whole_s for time in times[:-1]]


def time_of_share(ramp: RampSettings, share: float) -> float:
    """Return the first share `u` of the ramp's time at which this share of the level is reached; 0 for shares up to `start`.

    The share goes from `start` at u = 0 to 1 at u = 1. `linear`: start + (1 - start) u. `exponential`: start^(1 - u), which
    grows by the same factor at every moment (start above 0). `steps`: start + (1 - start) floor(u k) / k with k = `steps`.
    """
    if share <= ramp.start:
        return 0.0
    if ramp.shape == "exponential":
        return 1 - math.log(share) / math.log(ramp.start)
    u = (share - ramp.start) / (1 - ramp.start)
    return u if ramp.shape == "linear" else math.ceil(u * ramp.steps - 1e-9) / ramp.steps


def time_of_area(ramp: RampSettings, area: float) -> float:
    """Return the `u` at which the integral of the share over `u` reaches `area`; above 1 after the end of the ramp."""
    start, rest = ramp.start, 1 - ramp.start
    if ramp.shape == "linear":
        whole = start + rest / 2
        if area <= whole:
            return area / start if rest == 0 else (math.sqrt(start * start + 2 * rest * area) - start) / rest
    elif ramp.shape == "exponential":
        speed = -math.log(start)
        whole = (1 - start) / speed
        if area <= whole:
            return math.log1p(area * speed / start) / speed
    else:
        whole = 0.0
        for step in range(ramp.steps):
            share = start + rest * step / ramp.steps
            if area <= whole + share / ramp.steps and share > 0:
                return step / ramp.steps + (area - whole) / share
            whole += share / ramp.steps
    return 1 + area - whole


def ramped_arrivals(times_s: Sequence[float], ramp: RampSettings) -> list[float]:
    """Return arrivals at a steady rate moved so that the rate rises to it over the ramp.

    The k-th arrives when the integral of the ramped rate reaches the k-th's time multiplied by the rate (the time change of
    a Poisson process: Cinlar 1975, "Introduction to Stochastic Processes", chapter 4), so a constant or gamma process
    keeps its regularity. The rate itself cancels out.
    """
    return [ramp.over_s * time_of_area(ramp, time_s / ramp.over_s) for time_s in times_s]


def staggered_starts(concurrency: int, over_s: float, seed: str) -> list[float]:
    """Return when each stream of a closed loop starts, at random over a time, in seconds and ascending order; the first
    starts at once."""
    rng = random.Random(f"{seed}/stagger")
    return [0.0, *sorted(rng.uniform(0, over_s) for _ in range(concurrency - 1))]


def stream_starts(concurrency: int, ramp: RampSettings) -> list[float]:
    """Return when each stream of a closed loop starts, in seconds and ascending order; the first starts at once."""
    return [0.0, *(ramp.over_s * time_of_share(ramp, (number + 1) / concurrency) for number in range(1, concurrency))]
