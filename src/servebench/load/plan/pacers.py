"""When an open loop sends: pure functions of rate, count and seed. Times are seconds from the start of the point."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

Arrival = Literal["constant", "poisson", "gamma"]


def arrivals(kind: Arrival, rate_req_s: float, count: int, *, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """`count` arrival times in seconds; the first gap is drawn like the others, so the process has no start of its own.

    The gaps have mean 1 / rate. `constant`: all are. `poisson`: exponential, density rate * exp(-rate * t). `gamma`: shape
    k = `burstiness` and scale 1 / (rate * k), so that their coefficient of variation is 1 / sqrt(k): under 1 is burstier
    than Poisson, 1 is Poisson, large is nearly constant (the convention of vLLM's `--burstiness`).
    """
    if kind == "constant":
        return [(index + 1) / rate_req_s for index in range(count)]
    rng = random.Random(f"{seed}/{kind}/{rate_req_s!r}")
    shape = 1.0 if kind == "poisson" else burstiness
    return list(accumulate(rng.gammavariate(shape, 1 / (rate_req_s * shape)) for _ in range(count)))


@dataclass(frozen=True)
class Shape:
    """How load rises to its level: as a share of the level over the share `u` of the ramp's time, from `start` to 1.

    `linear`: start + (1 - start) u. `exponential`: start^(1 - u), so that each moment multiplies alike (start above 0).
    `steps`: start + (1 - start) floor(u k) / k, k = `steps`.
    """

    kind: Literal["linear", "steps", "exponential"]
    start: float
    steps: int = 5

    def reached(self, share: float) -> float:
        """The first `u` at which at least this share of the level is there (0 for what is there at once)."""
        if share <= self.start:
            return 0.0
        if self.kind == "exponential":
            return 1 - math.log(share) / math.log(self.start)
        u = (share - self.start) / (1 - self.start)
        return u if self.kind == "linear" else math.ceil(u * self.steps - 1e-9) / self.steps

    def after(self, area: float) -> float:
        """The `u` at which the integral of the share over `u` comes to `area`; over 1 where the ramp is over."""
        start, rest = self.start, 1 - self.start
        if self.kind == "linear":
            whole = start + rest / 2
            if area <= whole:
                return area / start if rest == 0 else (math.sqrt(start * start + 2 * rest * area) - start) / rest
        elif self.kind == "exponential":
            speed = -math.log(start)
            whole = (1 - start) / speed
            if area <= whole:
                return math.log1p(area * speed / start) / speed
        else:
            whole = 0.0
            for step in range(self.steps):
                share = start + rest * step / self.steps
                if area <= whole + share / self.steps and share > 0:
                    return step / self.steps + (area - whole) / share
                whole += share / self.steps
        return 1 + area - whole


def ramped_arrivals(times_s: Sequence[float], shape: Shape, over_s: float) -> list[float]:
    """Arrivals at a steady rate, moved so that the rate rises to it over `over_s` seconds by the shape.

    The k-th comes when the integral of the ramped rate has reached the k-th's time times the rate (the time change of a
    Poisson process: Cinlar 1975, "Introduction to Stochastic Processes", chapter 4), so a constant or gamma process keeps
    its regularity. The rate itself cancels out.
    """
    return [over_s * shape.after(time_s / over_s) for time_s in times_s]


def stream_starts(concurrency: int, shape: Shape, over_s: float) -> list[float]:
    """When each stream of a closed loop begins, in seconds from the start, in rising order; the first at once."""
    return [0.0, *(over_s * shape.reached((number + 1) / concurrency) for number in range(1, concurrency))]
