"""Draw counts from a distribution."""

import math
import random
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from statistics import NormalDist, fmean
from typing import Any

from servebench.contracts.settings import LengthSettings, WorkloadSettings

_KEYS = {one.name for one in fields(LengthSettings)}
STEPS = 2000
"""In how many steps the mean of a distribution is taken."""


def sample_lengths(spec: int | LengthSettings, count: int, rng: random.Random, *, floor: int = 1) -> list[int]:
    """Return `count` counts. A distribution without a `min` draws none below `floor`, the least that a workload can build.

    `fixed`: the mean. `uniform`: whole numbers from `min` to `max`, both included. `normal`: N(mean, stdev). `lognormal`:
    exp(N(mu, sigma)) with sigma^2 = ln(1 + (stdev / mean)^2) and mu = ln(mean) - sigma^2 / 2, so that `mean` and `stdev`
    are those of the count itself. Draws are rounded and clipped to `min` and `max` where given.
    """
    if isinstance(spec, int):
        return [spec] * count
    low = spec.shortest if spec.bounded else max(spec.shortest, min(floor, spec.longest))
    return [max(low, min(round(_draw(spec, rng)), spec.longest)) for _ in range(count)]


def _draw(spec: LengthSettings, rng: random.Random) -> float:
    if spec.kind == "uniform":
        return rng.randint(spec.shortest, spec.longest)
    normal = _normal(spec)
    if spec.kind == "normal":
        return rng.gauss(normal.mean, normal.stdev)
    return math.exp(rng.gauss(normal.mean, normal.stdev)) if spec.kind == "lognormal" else normal.mean


def _normal(spec: LengthSettings) -> NormalDist:
    """Return the distribution of a count, or of its logarithm if it is lognormal."""
    mean, stdev = spec.mean or 0.0, spec.stdev or 0.0
    if spec.kind != "lognormal":
        return NormalDist(mean, stdev)
    variance = math.log(1 + (stdev / mean) ** 2)
    return NormalDist(math.log(mean) - variance / 2, math.sqrt(variance))


@lru_cache(maxsize=16)
def mean_length(spec: int | LengthSettings | None) -> float | None:
    """Return the mean of very many draws of `sample_lengths` without a floor; None where all are equal, or unknown."""
    if not isinstance(spec, LengthSettings) or spec.shortest == spec.longest or spec.stdev == 0:
        return None
    if spec.kind == "uniform":
        return (spec.shortest + spec.longest) / 2
    drawn = [_normal(spec).inv_cdf((step + 0.5) / STEPS) for step in range(STEPS)]
    counts = [math.exp(one) for one in drawn] if spec.kind == "lognormal" else drawn
    return fmean(max(spec.shortest, min(round(one), spec.longest)) for one in counts)


def with_shortest_lengths(settings: WorkloadSettings) -> WorkloadSettings:
    """Return the settings with each distribution replaced by the shortest length that the user allows: its `min`, or its mean.

    In the mappings of a mix's parts a distribution is recognised by its keys.
    """
    return replace(settings, **{one.name: _shortest(getattr(settings, one.name)) for one in fields(settings)})


def _shortest(value: Any) -> Any:
    if isinstance(value, LengthSettings):
        return value.shortest if value.bounded else round(value.mean or 1)
    if not isinstance(value, Mapping):
        return value
    if "kind" in value and value.keys() <= _KEYS:
        return _shortest(LengthSettings(**value))
    return {name: _shortest(item) for name, item in value.items()}
