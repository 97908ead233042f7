"""From load settings to the points of a run: pure, so that what will be sent can be told before anything is."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from servebench.contracts.exchange import PlannedRequest, PointPlan
from servebench.contracts.point_id import TRACE, PointId
from servebench.contracts.settings import LoadSettings, RampSettings
from servebench.load.plan.pacers import ArrivalShape, arrivals, ramped_arrivals, stream_starts

REQUESTS_PER_STREAM = 10
REQUESTS_MIN = 50
"""`requests: auto`: with ten requests a stream the level is held for nine tenths of the point; under 50 requests no
percentile means anything."""

WARMUP_PER_STREAM = 2
WARMUP_MAX = 32
SUPPLY_MARGIN = 2.0
"""A timed point gets twice the requests that the warm-up's rate would use up."""

SUPPLY_PER_STREAM_MIN = 20

RATE_AUTO_S = 30.0
"""`requests: auto` at a rate: half a minute of arrivals."""

RATE_WARMUP_CONCURRENCY = 4
RATE_CONNECTIONS = 16
"""Kept open ahead of the requests of an open loop, so that connecting is no part of their lateness."""

RATE_SUPPLY_SIGMAS = 5.0

TRACE_REQUESTS = 200
"""`requests: auto` for a trace that the workload gives; that of a file is as long as the file."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """One point to be measured. `requests` is None when `duration_s` ends it.

    A closed loop has a `concurrency`; an open loop a `rate` in requests a second, and no more than `in_flight_max` at once.
    A `trace` is an open loop whose times are `times_s`; null until the workload has given them, and its mean rate with them.
    """

    id: PointId
    concurrency: int | None
    requests: int | None
    duration_s: float | None
    warmup_requests: int
    rate: float | None = None
    in_flight_max: int | None = None
    trace: bool = False
    times_s: tuple[float, ...] | None = None

    @property
    def point(self) -> str:
        """The name of the point in files."""
        return self.id.format()

    @property
    def repeat(self) -> int:
        """Which repeat of its level it is, from 0."""
        return self.id.repeat or 0

    @property
    def open_loop(self) -> bool:
        """Whether requests come by the clock."""
        return self.concurrency is None

    @property
    def warmup_concurrency(self) -> int:
        """How many warm-up requests are in flight at once."""
        return self.concurrency or min(RATE_WARMUP_CONCURRENCY, self.in_flight_max or RATE_WARMUP_CONCURRENCY)


def plan_levels(load: LoadSettings, seed: int) -> tuple[Level, ...]:
    """The points in the order in which they are driven.

    `ascending`: level by level as listed, repeats of a level together. `interleaved`: all levels, then all again.
    `shuffled`: any order, fixed by the seed.
    """
    if load.trace is not None:
        return tuple(_replay(load, repeat) for repeat in range(load.repeats))
    listed: tuple[float, ...] = load.concurrency or load.rate or ()
    by_level = [(value, repeat) for value in listed for repeat in range(load.repeats)]
    if load.order == "interleaved":
        by_level.sort(key=lambda pair: pair[1])
    elif load.order == "shuffled":
        random.Random(seed).shuffle(by_level)
    if load.concurrency:
        return tuple(_closed(load, int(value), repeat) for value, repeat in by_level)
    return tuple(_open(load, value, repeat) for value, repeat in by_level)


def level_at(load: LoadSettings, value: float, repeat: int, *, of: str, requests_least: int = 0) -> Level:
    """The level of this concurrency or rate (`of`); with `requests: auto` it gets `requests_least` or more."""
    if of == "concurrency":
        return _closed(load, int(value), repeat, requests_least)
    return _open(load, value, repeat, requests_least)


def level_of(load: LoadSettings, point: PointId) -> Level | None:
    """Return the level of a point, for what a search had measured when it was killed; None if the name has no level."""
    if point.repeat is None:
        return None
    if point.concurrency is not None:
        return level_at(load, point.concurrency, point.repeat, of="concurrency")
    return None if point.rate is None else level_at(load, point.rate, point.repeat, of="rate")


def _count(load: LoadSettings, auto: int) -> int | None:
    if load.duration_s is not None:
        return None
    return load.requests if isinstance(load.requests, int) else max(REQUESTS_MIN, auto)


def _closed(load: LoadSettings, concurrency: int, repeat: int, least: int = 0) -> Level:
    warmup = load.warmup_requests
    return Level(
        id=PointId.at_concurrency(concurrency, repeat),
        concurrency=concurrency,
        requests=_count(load, max(least, REQUESTS_PER_STREAM * concurrency)),
        duration_s=load.duration_s,
        warmup_requests=min(WARMUP_MAX, WARMUP_PER_STREAM * concurrency) if warmup == "auto" else warmup,
    )


def _open(load: LoadSettings, rate: float, repeat: int, least: int = 0) -> Level:
    warmup = load.warmup_requests
    return Level(
        id=PointId.at_rate(rate, repeat),
        concurrency=None,
        requests=_count(load, max(least, math.ceil(RATE_AUTO_S * rate))),
        duration_s=load.duration_s,
        warmup_requests=min(WARMUP_MAX, WARMUP_PER_STREAM * RATE_WARMUP_CONCURRENCY) if warmup == "auto" else warmup,
        rate=rate,
        in_flight_max=load.max_concurrency,
    )


def _replay(load: LoadSettings, repeat: int) -> Level:
    warmup = load.warmup_requests
    return Level(
        id=PointId(TRACE, repeat),
        concurrency=None,
        requests=_count(load, TRACE_REQUESTS),
        duration_s=load.duration_s,
        warmup_requests=min(WARMUP_MAX, WARMUP_PER_STREAM * RATE_WARMUP_CONCURRENCY) if warmup == "auto" else warmup,
        in_flight_max=load.max_concurrency,
        trace=True,
    )


def with_trace_times(level: Level, load: LoadSettings, arrivals_s: Sequence[float]) -> Level:
    """A trace's level with its times: stretched, begun at the first, cut to the count or the time asked, and the mean
    rate that follows."""
    first_s = arrivals_s[0]
    times = [(time_s - first_s) * load.time_scale for time_s in arrivals_s]
    if level.duration_s is not None:
        times = [time_s for time_s in times if time_s <= level.duration_s]
    elif isinstance(load.requests, int):
        times = times[: load.requests]
    rate = (len(times) - 1) / times[-1] if times[-1] > 0 else float(len(times))
    return replace(level, times_s=tuple(times), requests=len(times), rate=rate)


def requests_to_prepare(level: Level, rate_req_s: float | None) -> int:
    """How many requests to make ready: as many as asked; for a timed point as many as its rate will ask for (and five
    standard deviations of a Poisson count), or twice what the rate seen in the warm-up would use up."""
    if level.requests is not None:
        return level.requests
    if level.trace:
        return TRACE_REQUESTS
    assert level.duration_s is not None
    if level.rate is not None:
        expected = level.rate * level.duration_s
        return math.ceil(expected + RATE_SUPPLY_SIGMAS * math.sqrt(expected)) + 1
    assert level.concurrency is not None
    least = SUPPLY_PER_STREAM_MIN * level.concurrency
    if rate_req_s is None:
        return max(least, math.ceil(level.concurrency * level.duration_s))
    return max(least, level.concurrency + math.ceil(SUPPLY_MARGIN * rate_req_s * level.duration_s))


def point_plan(level: Level, load: LoadSettings, requests: Sequence[PlannedRequest], *, warmup: bool) -> PointPlan:
    """The plan of a level's warm-up (always a closed loop) or of its point."""
    open_loop = level.open_loop and not warmup
    in_flight = level.warmup_concurrency
    if not warmup:
        in_flight = level.concurrency or level.in_flight_max or max(1, len(requests))
    return PointPlan(
        requests=requests,
        concurrency=in_flight,
        timeout_s=load.timeout_s,
        connect_timeout_s=load.connect_timeout_s,
        duration_s=None if warmup else level.duration_s,
        connections=RATE_CONNECTIONS if open_loop else None,
        stream_starts_s=_starts(level, load) if not open_loop and not warmup else None,
    )


def _starts(level: Level, load: LoadSettings) -> tuple[float, ...] | None:
    if load.ramp is None or level.concurrency is None:
        return None
    return tuple(stream_starts(level.concurrency, arrival_shape(load.ramp), load.ramp.over_s))


def arrival_shape(ramp: RampSettings) -> ArrivalShape:
    """The ramp as the pacers know it."""
    return ArrivalShape(ramp.shape, ramp.start, ramp.steps)


def schedule_requests(
    level: Level, load: LoadSettings, requests: Sequence[PlannedRequest], seed: int
) -> list[PlannedRequest]:
    """The requests of a point as they will be sent: those of an open loop with their times (those of a timed point that
    come too late are left out), and those whose user will go away with when."""
    return with_cancellations(_timed(level, load, requests, seed), load, f"{seed}/{level.point}")


def with_cancellations(requests: Sequence[PlannedRequest], load: LoadSettings, seed: str) -> list[PlannedRequest]:
    """The requests, `load.cancel_fraction` of them with the time after which the client goes away. Fixed by the seed."""
    if load.cancel_fraction == 0:
        return list(requests)
    rng = random.Random(f"{seed}/cancel")
    return [
        replace(request, cancel_after_s=load.cancel_after_s) if rng.random() < load.cancel_fraction else request
        for request in requests
    ]


def _timed(level: Level, load: LoadSettings, requests: Sequence[PlannedRequest], seed: int) -> list[PlannedRequest]:
    if not level.open_loop:
        return list(requests)
    if level.times_s is not None:
        return [replace(r, scheduled_s=time_s) for r, time_s in zip(requests, level.times_s, strict=False)]
    assert level.rate is not None
    # a repeat has arrivals of its own, else it would repeat their luck
    times = arrivals(load.arrival, level.rate, len(requests), burstiness=load.burstiness, seed=seed + level.repeat)
    if load.ramp is not None:
        times = ramped_arrivals(times, arrival_shape(load.ramp), load.ramp.over_s)
    return [
        replace(request, scheduled_s=time_s)
        for request, time_s in zip(requests, times, strict=True)
        if level.duration_s is None or time_s <= level.duration_s
    ]
