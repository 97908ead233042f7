"""Draw token counts from a distribution."""

import math
import random

from servebench.contracts.settings import LengthSettings


def sample_lengths(spec: int | LengthSettings, count: int, rng: random.Random) -> list[int]:
    """Return `count` token counts, each at least 1.

    `fixed`: the mean. `uniform`: whole numbers from `min` to `max`, both included. `normal`: N(mean, stdev). `lognormal`:
    exp(N(mu, sigma)) with sigma^2 = ln(1 + (stdev / mean)^2) and mu = ln(mean) - sigma^2 / 2, so that `mean` and `stdev`
    are those of the count itself. Draws are rounded and clipped to `min` and `max` where given.
    """
    if isinstance(spec, int):
        return [spec] * count
    return [_clip(round(_draw(spec, rng)), spec) for _ in range(count)]


def _draw(spec: LengthSettings, rng: random.Random) -> float:
    if spec.kind == "uniform":
        assert spec.min is not None
        assert spec.max is not None
        return rng.randint(spec.min, spec.max)
    assert spec.mean is not None
    stdev = spec.stdev or 0.0
    if spec.kind == "normal":
        return rng.gauss(spec.mean, stdev)
    if spec.kind == "lognormal":
        variance = math.log(1 + (stdev / spec.mean) ** 2)
        return math.exp(rng.gauss(math.log(spec.mean) - variance / 2, math.sqrt(variance)))
    return spec.mean


def _clip(value: int, spec: LengthSettings) -> int:
    return max(spec.min or 1, min(value, spec.max if spec.max is not None else value))
