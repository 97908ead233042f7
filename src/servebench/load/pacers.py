"""When an open loop sends: pure functions of rate, count and seed. Times are seconds from the start of the point."""

from __future__ import annotations

import random
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
