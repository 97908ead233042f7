"""From a level to the plan of its point: how many requests it needs, and when each is sent. Pure."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from servebench.contracts.exchange import PlannedRequest, PointPlan
from servebench.contracts.settings import LoadSettings
from servebench.load.plan.levels import TRACE_REQUESTS, PlannedPoint
from servebench.load.plan.pacers import arrivals, ramped_arrivals, staggered_starts, stream_starts

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
    """Return the plan of a level's warm-up (always a closed loop) or of its point.

    `answer_s` is how long an answer took in the warm-up; without it streams are not staggered. The last `fillers` of the
    requests are not measured.
    """
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
    """Return the requests of a point with the times at which they are sent and cancelled.

    Only an open loop has send times; requests after the end of a timed point are left out. Of a random `load.cancel_fraction`
    the client goes away.
    """
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
