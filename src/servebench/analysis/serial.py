"""Intervals of means of values that depend on those before them: latencies in the order sent, tokens over time.

Requests of one time share the engine's steps, and an engine is faster and slower for seconds on end. Neighbours are alike,
so an interval that takes them for independent is far too short. What such a series says about its mean is in its slowest
waves: the coefficients of a few cosines, which are nearly normal whatever the values are (Mueller and Watson 2008,
Econometrica 76; Mueller 2014, J. Bus. Econ. Stat. 32). Two things move them: noise that is the same for all of them, of any
size, and an engine's speed that wanders (an Ornstein-Uhlenbeck process) by WANDER_SD, a share of the mean, with a relaxation
time of WANDER_S. All sizes and times are considered and weighed by how well they explain the coefficients; given them, the
error of the observed mean is normal, and the interval is between the quantiles of the weighted mixture.

A short window hardly tells slow wander from none, so its interval is as wide as the sizes allow that are thought possible
before: the prior. Where nothing is known it is FLAT. One window of some minutes tells what a short one cannot: its likelihoods
of all sizes and times (`wander_likelihood`) are the prior of later windows of that engine on that machine.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np

from servebench.analysis.quantiles import Mixture
from servebench.contracts.estimate import CONFIDENCE, Interval
from servebench.util.arrays import Floats

WAVES_MAX, WAVES_MIN = 32, 3
"""How many cosines are used, at most and at least."""
LEARNING_WAVES = 96
"""The most cosines of a long window from which wander is learned: they reach down to the quick wander of other windows."""
ROUNDS_MIN = 3.0
"""How often the requests in flight have to be replaced for the series to say anything about its own error: the quickest of
WAVES_MIN waves is then two rounds long."""
VALUES_PER_WAVE = 4
"""A series needs so many values for each cosine."""
WANDER_S = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Relaxation times of an engine's speed that are considered, in seconds."""
WANDER_SD = (0.0, 0.00125, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""How far it wanders, as a standard deviation relative to the mean."""
WANDER_PRIOR = (0.15, 0.12, 0.12, 0.12, 0.12, 0.12, 0.10, 0.08, 0.05, 0.02)
"""The prior probability of each of WANDER_SD where nothing is known of the machine: flat up to 2%, and rarer beyond."""
FLAT: Floats = np.tile(WANDER_PRIOR, (len(WANDER_S), 1)) / len(WANDER_S)
"""The prior of all times (rows) and sizes where nothing is known."""
KNOWN_SHARE = 0.9
"""The weight of what a long window has shown."""
HALF_SIZE, TWICE_SIZE = 0.1, 0.25
"""How probable it is that the wander at another time is half, and twice, as large as in the long window (one step of WANDER_SD).
After long points the spread of real engines was 0.5 to 2.4 times what they had shown, by level; without this, intervals of real
vLLM held the long run's throughput in 83 to 88%. In drawn windows of 20 and 60 s of engines that wander as before, the median
half-width is 1.3 times the true one (1.2 without)."""
_AT_ANOTHER_TIME = np.diag([1 - HALF_SIZE - TWICE_SIZE] * len(WANDER_SD))
_AT_ANOTHER_TIME += np.diag([TWICE_SIZE] * (len(WANDER_SD) - 1), 1) + np.diag([HALF_SIZE] * (len(WANDER_SD) - 1), -1)
_AT_ANOTHER_TIME[0, 0] += HALF_SIZE
_AT_ANOTHER_TIME[-1, -1] += TWICE_SIZE
NOISES = np.geomspace(0.05, 4.0, 30)
"""Standard deviations of the noise that are considered, relative to the root mean square of the coefficients."""
ROUNDING = 1e-12
"""Relative to the values, cosines below this are rounding errors: the values are equal."""
PRECISION = 1e-10
"""The last step to a quantile is at most this share of the standard deviation."""
NEGLIGIBLE = 1e-8
"""Parts of the mixture with a smaller weight are left out."""
_POINTS = 256
"""Points of the grid on which the covariances of a wandering speed are integrated."""


@lru_cache(maxsize=64)
def _wanders(waves: int, seconds: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Return for a wander of 1 with each of WANDER_S: the variances of the cosines, their covariances with the mean, both in
    the directions in which the cosines are independent, these directions, and the variance of the mean."""
    at = (np.arange(_POINTS) + 0.5) / _POINTS
    cosines = np.sqrt(2) * np.cos(np.pi * np.outer(np.arange(1, waves + 1), at))
    basis = np.vstack([np.ones(_POINTS), cosines]) / _POINTS
    apart = np.abs(at[:, None] - at[None, :])
    whole = np.array([basis @ np.exp(-seconds / wander_s * apart) @ basis.T for wander_s in WANDER_S])
    variances, directions = np.linalg.eigh(whole[:, 1:, 1:])
    with_mean = np.einsum("tkd,tk->td", directions, whole[:, 0, 1:])
    return np.asarray(variances, dtype=np.float64), with_mean, np.asarray(directions, dtype=np.float64), whole[:, 0, 0]


@dataclass(frozen=True, slots=True)
class SeriesSpan:
    """How long a series is: in seconds, and in `rounds`, in each of which the requests in flight are replaced once."""

    seconds: float
    rounds: float


def slow_waves(values: Floats, waves: int) -> Floats:
    """Return the coefficients of the `waves` slowest cosines of values in order, without their mean."""
    angles = np.pi * (np.arange(values.size) + 0.5) / values.size
    found: Floats = (
        np.sqrt(2) * np.cos(np.outer(np.arange(1, waves + 1), angles)) @ (values - values.mean()) / values.size
    )
    return found


def mean_interval(
    values: Floats, span: SeriesSpan, prior: Floats = FLAT, *, rise: Callable[[Floats], Floats] | None = None
) -> Interval | None:
    """Return the 95% interval of the mean of positive values in order, which may depend on those before them.

    `prior` has the probability of each of WANDER_S (rows) and WANDER_SD. The interval always holds the values' own mean. None for
    too few values or rounds, and for a mean that is not positive. `rise` is for a figure that may be larger in the long run
    because the window's mean is one of many: by how much, as a share, for each standard deviation of such means (also a share; a
    row for each of WANDER_S). It moves the upper end only.
    """
    cosines = _cosines(values, span, WAVES_MAX)
    if cosines is None:
        return None
    middle = float(values.mean())
    if np.abs(cosines).max() <= ROUNDING:
        return middle, middle
    low, high = _mixture(cosines, span.seconds, (1 - CONFIDENCE) / 2, prior, rise)
    return min(middle, middle * (1 - high)), max(middle, middle * (1 - low))


def _cosines(values: Floats, span: SeriesSpan, most: int) -> Floats | None:
    """The slowest cosines relative to the mean; None for too few values or rounds, and for a mean that is not positive. Waves as
    short as a round show how requests follow one another, not how the mean varies."""
    waves = int(min(most, max(WAVES_MIN, span.rounds / 2), values.size / VALUES_PER_WAVE))
    if span.rounds < ROUNDS_MIN or waves < WAVES_MIN or span.seconds <= 0 or values.mean() <= 0:
        return None
    return slow_waves(values, waves) / float(values.mean())


def wander_likelihood(values: Floats, span: SeriesSpan, most: int = LEARNING_WAVES) -> Floats | None:
    """Return how well each of WANDER_S (rows) and WANDER_SD explains positive values in order, relative to what explains them
    best, whatever their noise is, by up to `most` cosines. None for too few values or rounds, and for values that are equal."""
    cosines = _cosines(values, span, most)
    if cosines is None or np.abs(cosines).max() <= ROUNDING:
        return None
    logs = np.logaddexp.reduce(_Waves.of(cosines, span.seconds).log_likelihood, axis=1)
    found: Floats = np.exp(logs - logs.max())
    return found


def learned_prior(likelihood: Sequence[Sequence[float]] | None) -> Floats:
    """Return the prior of windows after a long one with these likelihoods; FLAT without one, or one that says nothing.

    How far an engine wanders varies with time (HALF_SIZE, TWICE_SIZE). And a share of the prior stays FLAT: a machine may be
    disturbed as it was not then, and a clear window says so.
    """
    known = np.array(likelihood if likelihood is not None else (), dtype=np.float64)
    if known.shape != FLAT.shape or not np.isfinite(known).all() or (known < 0).any() or not known.any():
        return FLAT
    learned = FLAT * known
    found: Floats = KNOWN_SHARE * (learned / learned.sum()) @ _AT_ANOTHER_TIME + (1 - KNOWN_SHARE) * FLAT
    return found


def likely_wander(likelihood: Sequence[Sequence[float]]) -> tuple[Interval, Interval]:
    """Return the smallest and largest size of wander (shares), and its shortest and longest time (seconds), that are likely after
    a long window with these likelihoods: between the tenths at both ends of what it leaves open."""
    prior = learned_prior(likelihood)
    sizes, times = (np.cumsum(prior.sum(axis=axis)) for axis in (0, 1))
    ends = [[min(int(np.searchsorted(of, share)), of.size - 1) for share in (0.1, 0.9)] for of in (sizes, times)]
    (least, most), (short, long) = ends
    return (WANDER_SD[least], WANDER_SD[most]), (WANDER_S[short], WANDER_S[long])


@dataclass(frozen=True, slots=True)
class _Waves:
    """The cosines of a series and what is expected of them, on the grid (time of wander, noise, size of wander): `own` are the
    cosines in the directions in which they are independent, `total` their variances. The others are those of `_wanders`, and the
    variances of noise and wander."""

    own: Floats
    total: Floats
    with_mean: Floats
    of_mean: Floats
    noise: Floats
    wander: Floats

    @classmethod
    def of(cls, cosines: Floats, seconds: float) -> Self:
        variances, with_mean, directions, of_mean = _wanders(cosines.size, float(f"{seconds:.1g}"))
        own = np.einsum("tkd,k->td", directions, cosines)[:, None, None, :]
        noise = ((NOISES * np.sqrt(np.mean(cosines**2))) ** 2)[None, :, None]
        wander = (np.array(WANDER_SD) ** 2)[None, None, :]
        total = noise[..., None] + wander[..., None] * variances[:, None, None, :]
        return cls(own, total, with_mean[:, None, None, :], of_mean[:, None, None], noise, wander)

    @property
    def log_likelihood(self) -> Floats:
        found: Floats = -0.5 * (np.log(self.total) + self.own**2 / self.total).sum(axis=-1)
        return found


def _mixture(
    cosines: Floats, seconds: float, tail: float, prior: Floats, rise: Callable[[Floats], Floats] | None
) -> tuple[float, float]:
    """Return the `tail` and 1 - `tail` quantiles of the error of the observed mean, relative to it."""
    waves = _Waves.of(cosines, seconds)
    with np.errstate(divide="ignore"):
        log_weight = np.log(prior)[:, None, :] + waves.log_likelihood
    slope = waves.wander[..., None] * waves.with_mean / waves.total
    centre = (slope * waves.own).sum(axis=-1)
    rest = waves.noise + waves.wander * (waves.of_mean - (slope * waves.with_mean).sum(axis=-1))
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    known = weight > NEGLIGIBLE
    risen = centre if rise is None else centre - rise(np.sqrt(waves.wander * waves.of_mean))
    low, high = (
        _end(Mixture(weight[known], centres[known], np.sqrt(rest[known])), share, side)
        for centres, share, side in ((risen, tail, -2.0), (centre, 1 - tail, 2.0))
    )
    return low, high


def _end(mixture: Mixture, share: float, side: float) -> float:
    """Return a quantile of a mixture; `side` says about how many standard deviations from the mean it is."""
    middle = float(mixture.weights @ mixture.means)
    width = math.sqrt(float(mixture.weights @ (mixture.sds**2 + (mixture.means - middle) ** 2)))
    return mixture.quantile(share, start=middle + side * width, precision=PRECISION, scale=width)
