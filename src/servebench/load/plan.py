"""From load settings to the points of a run: pure, so that what will be sent can be told before anything is."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from servebench.contracts.settings import LoadSettings

REQUESTS_PER_STREAM = 10
REQUESTS_MIN = 50
"""`requests: auto`: with ten requests a stream the level is held for nine tenths of the point; under 50 requests no
percentile means anything."""

WARMUP_PER_STREAM = 2
WARMUP_MAX = 32
SUPPLY_MARGIN = 2.0
"""A timed point gets twice the requests that the warm-up's rate would use up."""

SUPPLY_PER_STREAM_MIN = 20


@dataclass(frozen=True, kw_only=True)
class Level:
    """One point to be measured. `point` names it (`c8-r0`); `requests` is None when `duration_s` ends it."""

    point: str
    concurrency: int
    repeat: int
    requests: int | None
    duration_s: float | None
    warmup_requests: int


def levels(load: LoadSettings, seed: int) -> tuple[Level, ...]:
    """The points in the order in which they are driven.

    `ascending`: level by level as listed, repeats of a level together. `interleaved`: all levels, then all again.
    `shuffled`: any order, fixed by the seed.
    """
    listed = load.concurrency or ()
    by_level = [(concurrency, repeat) for concurrency in listed for repeat in range(load.repeats)]
    if load.order == "interleaved":
        by_level.sort(key=lambda pair: pair[1])
    elif load.order == "shuffled":
        random.Random(seed).shuffle(by_level)
    return tuple(_level(load, concurrency, repeat) for concurrency, repeat in by_level)


def _level(load: LoadSettings, concurrency: int, repeat: int) -> Level:
    requests: int | None = None
    if load.duration_s is None:
        asked = load.requests
        requests = asked if isinstance(asked, int) else max(REQUESTS_MIN, REQUESTS_PER_STREAM * concurrency)
    warmup = load.warmup_requests
    return Level(
        point=f"c{concurrency}-r{repeat}",
        concurrency=concurrency,
        repeat=repeat,
        requests=requests,
        duration_s=load.duration_s,
        warmup_requests=min(WARMUP_MAX, WARMUP_PER_STREAM * concurrency) if warmup == "auto" else warmup,
    )


def supply(level: Level, rate_req_s: float | None) -> int:
    """How many requests to make ready: as many as asked, or enough for a timed point at the rate seen in the warm-up."""
    if level.requests is not None:
        return level.requests
    assert level.duration_s is not None
    least = SUPPLY_PER_STREAM_MIN * level.concurrency
    if rate_req_s is None:
        return max(least, math.ceil(level.concurrency * level.duration_s))
    return max(least, level.concurrency + math.ceil(SUPPLY_MARGIN * rate_req_s * level.duration_s))
