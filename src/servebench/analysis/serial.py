"""Intervals of means of values that depend on those before them: latencies in the order sent, tokens over time.

Requests of one time share the engine's steps, and an engine is faster and slower for seconds on end. Neighbours are alike,
so an interval that takes them for independent is far too short. What such a series says about its mean is in its slowest
waves: the coefficients of a few cosines, which are nearly normal whatever the values are (Mueller and Watson 2008,
Econometrica 76; Mueller 2014, J. Bus. Econ. Stat. 32). How the variance of the mean follows from them depends on how fast the
engine's speed wanders (an Ornstein-Uhlenbeck process). That is unknown, so relaxation times of WANDER_S are all considered,
each at all STRENGTHS, and weighed by how well they explain the coefficients. Given one of them, the mean is distributed as
Student's t with as many degrees of freedom as there are cosines (flat prior on the mean, prior on the variance without a
scale); the interval is between the quantiles of the weighted mixture. An engine that wanders more slowly than WANDER_S, over
minutes, is not covered by one short window: more starts and repeats show that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WAVES_MAX, WAVES_MIN = 12, 3
"""How many cosines are used, at most and at least."""
ROUNDS_MIN = 7.0
"""How often the requests in flight have to be replaced for the series to say anything about its own error."""
VALUES_PER_WAVE = 4
"""A series needs so many values for each cosine."""
WANDER_S = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Relaxation times of an engine's speed that are considered, in seconds."""
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
"""The variance that wandering gives the slowest cosine, relative to what independent values give it."""
STEADY_WEIGHT = 0.15
"""The prior probability that nothing wanders."""
ROUNDING = 1e-12
"""Relative to the values, cosines below this are rounding errors: the values are equal."""
REACH, HALVINGS = 50.0, 36
"""A quantile is looked for this many scales to each side, and its bracket halved so often."""
_POINTS = 256
"""Points of the grid on which the covariances of a wandering speed are integrated."""


@dataclass(frozen=True)
class _Models:
    """For each grid point: the prior, the inverse covariance of the cosines with its half log determinant, and the mean's
    regression on the cosines with its remaining variance."""

    prior: Floats
    precision: Floats
    half_log_det: Floats
    slope: Floats
    rest: Floats


@lru_cache(maxsize=64)
def _models(waves: int, seconds: float) -> _Models:
    at = (np.arange(_POINTS) + 0.5) / _POINTS
    cosines = np.sqrt(2) * np.cos(np.pi * np.outer(np.arange(1, waves + 1), at))
    basis = np.vstack([np.ones(_POINTS), cosines]) / _POINTS
    covariances, prior = [np.eye(waves + 1)], [STEADY_WEIGHT]
    each = (1 - STEADY_WEIGHT) / (len(WANDER_S) * len(STRENGTHS))
    for wander_s in WANDER_S:
        cycles = seconds / wander_s
        wandering = basis @ np.exp(-cycles * np.abs(at[:, None] - at[None, :])) @ basis.T
        for strength in STRENGTHS:
            covariances.append(np.eye(waves + 1) + strength * wandering / wandering[1, 1])
            prior.append(each)
    stacked = np.array(covariances)
    precision: Floats = np.asarray(np.linalg.inv(stacked[:, 1:, 1:]), dtype=np.float64)
    slope = np.einsum("gk,gkl->gl", stacked[:, 0, 1:], precision)
    rest = stacked[:, 0, 0] - np.einsum("gk,gk->g", slope, stacked[:, 0, 1:])
    half_log_det: Floats = np.asarray(0.5 * np.linalg.slogdet(stacked[:, 1:, 1:])[1], dtype=np.float64)
    return _Models(np.array(prior), precision, half_log_det, slope, rest)


@dataclass(frozen=True, slots=True)
class SeriesSpan:
    """How long a series is: in seconds, and in `rounds`, in each of which the requests in flight are replaced once."""

    seconds: float
    rounds: float


def wave_count(values: int, rounds: float) -> int | None:
    """Return how many cosines to use for a series of `values` over `rounds`: waves as short as a round show how requests
    follow one another, not how the mean varies. None for too few of either."""
    waves = int(min(WAVES_MAX, max(WAVES_MIN, rounds / 2)))
    return waves if rounds >= ROUNDS_MIN and values >= VALUES_PER_WAVE * waves else None


def slow_waves(values: Floats, waves: int) -> Floats:
    """Return the coefficients of the `waves` slowest cosines of values in order, without their mean."""
    angles = np.pi * (np.arange(values.size) + 0.5) / values.size
    found: Floats = (
        np.sqrt(2) * np.cos(np.outer(np.arange(1, waves + 1), angles)) @ (values - values.mean()) / values.size
    )
    return found


def mean_interval(values: Floats, span: SeriesSpan, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the interval of the mean of values in order, which may depend on those before them.

    It always holds the values' own mean. None for too few values or rounds.
    """
    waves = wave_count(values.size, span.rounds)
    if waves is None or span.seconds <= 0:
        return None
    middle = float(values.mean())
    cosines = slow_waves(values, waves)
    if np.abs(cosines).max() <= ROUNDING * float(np.abs(values).max()):
        return middle, middle
    low, high = _mixture(cosines, span.seconds, (1 - confidence) / 2)
    return min(middle, middle + low), max(middle, middle + high)


def _mixture(cosines: Floats, seconds: float, tail: float) -> tuple[float, float]:
    """Return the `tail` and 1 - `tail` quantiles of the true mean less the observed one."""
    from scipy.special import stdtr

    models, waves = _models(cosines.size, float(f"{seconds:.1g}")), cosines.size
    size = np.einsum("k,gkl,l->g", cosines, models.precision, cosines)
    log_weight = np.log(models.prior) - models.half_log_det - 0.5 * waves * np.log(size)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    centre = -models.slope @ cosines
    scale = np.sqrt(models.rest * size / waves)

    def quantile(share: float) -> float:
        low, high = float((centre - REACH * scale).min()), float((centre + REACH * scale).max())
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = float(weight @ stdtr(waves, (middle - centre) / scale))
            low, high = (middle, high) if below < share else (low, middle)
        return (low + high) / 2

    return quantile(tail), quantile(1 - tail)
