"""When an open loop sends: pure functions of rate, count and seed. Times are seconds from the start of the point."""

import math
import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from servebench.contracts.settings import RampSettings

Arrival = Literal["constant", "poisson", "gamma"]


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
