"""From load settings to the levels of a run. Pure, so that a preview can show them."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from servebench.contracts.level import REQUESTS_PER_STREAM, Level
from servebench.contracts.point_id import REPLAY, PointId
from servebench.contracts.precision import precision_targets
from servebench.contracts.settings import RATE_AUTO_S, LoadSettings

REQUESTS_MIN = 50
"""`requests: auto`: percentiles of fewer requests mean nothing."""

WARMUP_PER_STREAM = 2
WARMUP_MAX = 32
WARMUP_TELLS = 8
"""From fewer answers of uneven lengths slices were planned that had too few requests, or used all that were prepared."""

RATE_WARMUP_CONCURRENCY = 4

UNTIL_LIMIT = 3.0
"""How many times `load.max_duration_s` a point of a closed loop may last to have `load.min_requests`."""

TRACE_REQUESTS = 200
"""`requests: auto` for a trace from the workload; a trace file determines the number itself."""


@dataclass(frozen=True, kw_only=True)
class PlannedPoint:
    """One point to be measured. `requests` is None when `duration_s` ends the point. With `targets` (half the width of the
    interval of each metric, as a share) it ends as soon as it is precise, and at the latest after `duration_s` or, where
    requests are too few by then, `limit_s`.

    A closed loop has a `concurrency`. An open loop has a `rate` in requests per second, and at most `in_flight_max` in flight.
    A `replay` is an open loop with arrival times `times_s`, which are None until the workload has given them.
    """

    id: PointId
    concurrency: int | None
    requests: int | None
    duration_s: float | None
    warmup_requests: int
    targets: Mapping[str, float] = field(default_factory=dict)
    rate: float | None = None
    in_flight_max: int | None = None
    replay: bool = False
    times_s: tuple[float, ...] | None = None

    @property
    def point(self) -> str:
        """The name of the point in files."""
        return self.id.format()

    @property
    def repeat(self) -> int:
        """The number of the repeat, from 0."""
        return self.id.repeat or 0

    @property
    def limit_s(self) -> float | None:
        """When a point that is ended by time ends for certain."""
        return (
            self.duration_s * UNTIL_LIMIT if self.duration_s and self.targets and self.concurrency else self.duration_s
        )

    @property
    def offered_req_s(self) -> float | None:
        """The rate at which requests are sent on average at all times; None where there is none."""
        return None if self.replay or self.in_flight_max is not None else self.rate

    @property
    def open_loop(self) -> bool:
        """Whether requests are sent by the clock."""
        return self.concurrency is None

    @property
    def warmup_concurrency(self) -> int:
        """The number of warm-up requests in flight."""
        return self.concurrency or min(RATE_WARMUP_CONCURRENCY, self.in_flight_max or RATE_WARMUP_CONCURRENCY)


def plan_levels(load: LoadSettings, seed: int, starts: int = 1) -> tuple[PlannedPoint, ...]:
    """Return the points of a run in the order in which they are measured.

    `ascending`: level by level as listed, the repeats of a level together. `interleaved`: all levels, then all again.
    `shuffled`: a random order fixed by the seed. With several `starts` of the engine each start measures everything, in
    repeats of its own.
    """
    if load.replay is not None:
        return tuple(_trace_level(load, repeat) for repeat in range(load.repeats * starts))
    of = "concurrency" if load.concurrency else "rate"
    ordered = (pair for start in range(starts) for pair in _ordered_levels(load, repeats_of(load, start), seed + start))
    return tuple(level_at(load, value, repeat, of=of) for value, repeat in ordered)


def repeats_of(load: LoadSettings, start: int) -> range:
    """Return the numbers of the repeats that a start of the engine measures."""
    return range(start * load.repeats, (start + 1) * load.repeats)


def _ordered_levels(load: LoadSettings, repeats: range, seed: int) -> list[tuple[float, int]]:
    """Return the (level, repeat) pairs of one start in order."""
    pairs = [(value, repeat) for value in load.concurrency or load.rate or () for repeat in repeats]
    if load.order == "interleaved":
        pairs.sort(key=lambda pair: pair[1])
    elif load.order == "shuffled":
        random.Random(seed).shuffle(pairs)
    return pairs


def level_at(load: LoadSettings, value: float, repeat: int, *, of: str, requests_least: int = 0) -> PlannedPoint:
    """Return the level at a concurrency or rate (`of`); with `requests: auto` it has at least `requests_least`."""
    users = int(value) if of == "concurrency" else None
    auto = math.ceil(RATE_AUTO_S * value) if users is None else REQUESTS_PER_STREAM * users
    return PlannedPoint(
        id=PointId.at(Level(users, value if users is None else None), repeat),
        concurrency=users,
        requests=_request_count(load, max(requests_least, auto)),
        duration_s=load.duration_s if load.until is None else load.max_duration_s,
        targets=precision_targets(load.until, open_loop=users is None),
        warmup_requests=_warmup_count(load, users or RATE_WARMUP_CONCURRENCY),
        rate=value if users is None else None,
        in_flight_max=load.max_concurrency if users is None else None,
    )


def level_of(load: LoadSettings, point: PointId) -> PlannedPoint | None:
    """Return the level of a point that a killed search had measured; None if its id has neither concurrency nor rate."""
    found, repeat = point.load, point.repeat
    of = "rate" if found.open_loop else "concurrency"
    return level_at(load, found.load, repeat, of=of) if found.load and repeat is not None else None


def with_trace_times(level: PlannedPoint, load: LoadSettings, arrivals_s: Sequence[float]) -> PlannedPoint:
    """Return a trace's level with its arrival times: relative to the first, scaled by `load.time_scale`, and cut to the
    configured number or duration. The rate is their mean rate."""
    first_s = arrivals_s[0]
    times = [(time_s - first_s) * load.time_scale for time_s in arrivals_s]
    if level.duration_s is not None:
        times = [time_s for time_s in times if time_s <= level.duration_s]
    elif isinstance(load.requests, int):
        times = times[: load.requests]
    rate = (len(times) - 1) / times[-1] if times[-1] > 0 else float(len(times))
    return replace(level, times_s=tuple(times), requests=len(times), rate=rate)


def _request_count(load: LoadSettings, auto: int) -> int | None:
    if load.duration_s is not None or load.until is not None:
        return None
    return load.requests if isinstance(load.requests, int) else max(REQUESTS_MIN, auto)


def _warmup_count(load: LoadSettings, streams: int) -> int:
    return min(WARMUP_MAX, WARMUP_PER_STREAM * streams) if load.warmup_requests == "auto" else load.warmup_requests


def warmup_in_turns(level: PlannedPoint, load: LoadSettings) -> int:
    """Return the warm-up requests of a level whose engine has answered at others and takes turns: one for each stream, since the
    lead-in of a slice has another, and as many as tell how long answers take. With two for each they took a fifth of the time of
    four levels of real llama.cpp."""
    if load.warmup_requests != "auto":
        return level.warmup_requests
    return min(level.warmup_requests, max(level.warmup_concurrency, WARMUP_TELLS))


def _trace_level(load: LoadSettings, repeat: int) -> PlannedPoint:
    return PlannedPoint(
        id=PointId(REPLAY, repeat),
        concurrency=None,
        requests=_request_count(load, TRACE_REQUESTS),
        duration_s=load.duration_s,
        warmup_requests=_warmup_count(load, RATE_WARMUP_CONCURRENCY),
        in_flight_max=load.max_concurrency,
        replay=True,
    )
