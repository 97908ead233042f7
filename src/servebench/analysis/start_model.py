"""How far a start of an engine may be from what the engine does: the one model behind every interval and verdict over starts.

The logarithm of a metric at a load level, in one start of an engine, is

    the engine's value at that level + the effect of the start + the error of the point.

All levels of a start share its effect, because all its requests share its speed. Effects are normal, with one standard
deviation for both engines of a comparison and for earlier starts of their set-ups. A start may also be slow for its whole life
(5 of 60 starts of a real llama.cpp were, by 15 to 25%): slow starts are a class of their own, so that the usual ones do not
pay for them. The errors of points are in proportion to their own intervals, by a factor that has to be learned, too.

Every standard deviation, factor and number of slow starts of a grid is considered, and weighed by a prior and by how well it
explains all the starts (the restricted likelihood: Patterson and Thompson 1971, Biometrika 58). Given these, each engine's value
is normal, so the answer is a mixture of normals (Box and Tiao 1973, "Bayesian Inference in Statistical Analysis", chapter
5). With one start of each engine and nothing earlier, the prior alone speaks.

Two starts that were measured slice by slice, in turns, have one value: their difference. It has the effects of two starts, either
of which may be slow, and an error that is known from its slices (`verdict/slices.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Self

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.quantiles import normal_shares, root
from servebench.contracts.level import Level

Floats = NDArray[np.float64]

START_SD = 0.001 * 2.0 ** np.arange(9)
"""Standard deviations between starts that are considered."""
START_PRIOR = np.array([0.04, 0.08, 0.16, 0.22, 0.215, 0.16, 0.085, 0.03, 0.01])
"""Their prior weights: starts of engines that were measured differ by 0.5 to 4%."""
FACTORS = 2.0 ** np.arange(-4, 3)
FACTOR_PRIOR = np.array([0.05, 0.10, 0.20, 0.30, 0.25, 0.08, 0.02])
"""By which factor points of one start differ from what their own intervals say, and the prior weights."""
ERROR_LEAST = 5e-4
"""The least standard error of a point."""
SLOW_BEFORE, USUAL_BEFORE = 0.3, 24.7
"""What is known of slow starts before any was seen, as counts: 1 of 80 is slow (Beta distribution)."""
SLOW_BY, SLOW_SD, SLOW_LEVEL_SD = 0.22, 0.10, 0.05
"""By how much slow starts are slower, by how much they differ in that, and from level to level (logarithms)."""
SLOW_MOST, SLOW_SHARE = 4, 0.25
"""Up to so many starts of a group may be slow, or this share of it if that is more."""
NEGLIGIBLE = 1e-6
"""Parts of the mixture with a smaller weight are left out."""
REACH, PRECISION = 9.0, 1e-7
"""A quantile is looked for this many standard deviations to each side, and is known to this share of one."""
SLOW_SIDES: Mapping[str, int] = {"output_throughput_tok_s": -1, "tpot_ms_p50": 1, "e2e_ms_p50": 1}
"""To which side a slow start moves a metric. That of others, such as TTFT, was not moved in the starts that were measured."""


@dataclass(frozen=True)
class Starts:
    """Logarithms of a metric in starts of one engine: a row for each start, a column for each of `levels`, NaN where there is no
    value. `errors` has the standard error of a point at each level, as the points' own intervals have it.

    With `differences` each row has those of two starts, with errors that need no factor."""

    levels: tuple[Level, ...]
    values: Floats
    errors: Floats
    differences: bool = False

    @classmethod
    def of_one_level(cls, logs: Sequence[float] | Floats, error: float) -> Self:
        """Return the starts of a single level, whichever it is."""
        return cls((Level(),), np.array(logs, dtype=np.float64)[:, None], np.array([error]))

    def at(self, levels: Sequence[Level]) -> Self:
        """Return the starts at these levels, without those that have no value there."""
        values = np.full((len(self.values), len(levels)), np.nan)
        errors = np.zeros(len(levels))
        for column, level in enumerate(levels):
            if level in self.levels:
                known = self.levels.index(level)
                values[:, column], errors[column] = self.values[:, known], self.errors[known]
        return replace(self, levels=tuple(levels), values=values[~np.isnan(values).all(axis=1)], errors=errors)


@dataclass(frozen=True)
class Mixture:
    """A mixture of normal distributions: what is known of a value."""

    weights: Floats
    means: Floats
    sds: Floats

    def below(self, value: float) -> float:
        """Return the probability of less than a value."""
        return float(self.weights @ normal_shares((value - self.means) / self.sds))

    def quantile(self, share: float) -> float:
        """Return the value below which this share of the probability is."""

        def at(here: float) -> tuple[float, float]:
            away = (here - self.means) / self.sds
            density = float(self.weights @ (np.exp(-0.5 * away**2) / self.sds)) / math.sqrt(2 * math.pi)
            return float(self.weights @ normal_shares(away)) - share, density

        low, high = float((self.means - REACH * self.sds).min()), float((self.means + REACH * self.sds).max())
        middle = float(self.weights @ self.means)
        return root(at, low, high, middle, precision=PRECISION, scale=float(self.sds.min()))

    @property
    def p(self) -> float:
        """The two-sided p-value of 0."""
        share = self.below(0.0)
        return min(1.0, 2 * min(share, 1 - share))


@dataclass(frozen=True)
class _Fit:
    """What the starts of one group say, by cell of the grid and numbers of slow starts (`slow` of them in all): the logarithm
    of the likelihood, the means of the levels and their covariances."""

    likelihood: Floats
    means: Floats
    covariances: Floats
    slow: NDArray[np.int64]
    starts: int


@dataclass(frozen=True)
class StartModel:
    """The model of the starts of some engines, one or two, which have the same levels; `earlier` are other starts of their
    set-ups, which only say how starts differ. `slow_side` is +1 where slow starts have larger values, -1 where they have smaller
    ones, 0 for a metric without such starts."""

    engines: Sequence[Starts]
    earlier: Sequence[Starts] = ()
    slow_side: int = 0

    def value(self, *contrasts: Floats) -> Mixture:
        """Return what is known of a weighted sum of the engines' values: one contrast for each engine, a weight for each of its
        levels."""
        means, variances = np.zeros(self._weights.shape), np.zeros(self._weights.shape)
        for number, (fit, contrast) in enumerate(zip(self._fits, contrasts, strict=True)):
            means = means + self._along(number, fit.means @ contrast)
            variances = variances + self._along(number, np.einsum("i,cmij,j->cm", contrast, fit.covariances, contrast))
        kept = self._weights > NEGLIGIBLE
        weights = self._weights[kept]
        return Mixture(weights / weights.sum(), means[kept], np.sqrt(variances[kept]))

    @cached_property
    def _fits(self) -> list[_Fit]:
        return [_fit(one, self.slow_side) for one in self.engines]

    def _along(self, number: int, found: Floats) -> Floats:
        """Values by cell and number of slow starts of one engine, on the axes of `_weights`."""
        return found.reshape([len(found), *(found.shape[1] if one == number else 1 for one in range(len(self._fits)))])

    @cached_property
    def _weights(self) -> Floats:
        """The weight of each part of the mixture: an axis of cells, and one for each engine's number of slow starts."""
        fits, earlier = self._fits, [_fit(one, self.slow_side) for one in self.earlier]
        known = reduce(
            _convolved, (np.exp(one.likelihood - one.likelihood.max()) for one in earlier), np.ones((_CELLS, 1))
        )
        slow = reduce(np.add.outer, (*(one.slow for one in fits), np.arange(known.shape[1])))
        chance = _chance_of_slow(int(slow.max()), sum(one.starts for one in (*fits, *earlier)))[slow]
        with np.errstate(divide="ignore"):
            logs = np.log(np.tensordot(known, chance, axes=([1], [len(fits)])))
        for number, likelihood in enumerate(one.likelihood for one in fits):
            logs = logs + self._along(number, likelihood)
        logs = logs + _LOG_PRIOR.reshape([-1] + [1] * len(fits))
        weights = np.exp(logs - logs.max())
        found: Floats = weights / weights.sum()
        return found


_CELLS = START_SD.size * FACTORS.size
_START_VARIANCE, _FACTOR = (one.ravel() for one in np.meshgrid(START_SD**2, FACTORS, indexing="ij"))
_LOG_PRIOR = np.log(np.outer(START_PRIOR, FACTOR_PRIOR)).ravel()
_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


def _convolved(a: Floats, b: Floats) -> Floats:
    """The likelihoods of two groups together, by cell and number of slow starts in both."""
    found = np.zeros((len(a), a.shape[1] + b.shape[1] - 1))
    for count in range(b.shape[1]):
        found[:, count : count + a.shape[1]] += a * b[:, count : count + 1]
    return found


def _chance_of_slow(most: int, starts: int) -> Floats:
    """The probability that certain ones of all starts are slow and the others are not, for 0 to `most` of them."""
    slow = np.arange(most + 1)
    logs = _log_gamma(SLOW_BEFORE + slow) + _log_gamma(USUAL_BEFORE + starts - slow)
    found: Floats = np.exp(logs - logs.max())
    return found


def _fit(group: Starts, slow_side: int) -> _Fit:
    """Fit the values of a group's levels: generalised least squares, with the restricted likelihood. Of each number of slow
    starts only the slowest ones are considered: others explain nothing. Of differences these are at both ends."""
    middle = np.nanmedian(group.values, axis=0)
    away = group.values - middle
    most = min(len(away), max(SLOW_MOST, int(SLOW_SHARE * len(away)))) if slow_side else 0
    sides = (slow_side, -slow_side) if group.differences else (slow_side,)
    effects, factor = (2, np.ones_like(_FACTOR)) if group.differences else (1, _FACTOR)
    start_variance = effects * _START_VARIANCE
    error = (factor[:, None] * group.errors) ** 2 + ERROR_LEAST**2
    usual = _sums(away, start_variance, error)
    numbers = np.array([one for one in np.ndindex(*[most + 1] * len(sides)) if sum(one) <= most])
    parts = [one.sum(axis=1, keepdims=True) for one in usual]
    for side, number in zip(sides, numbers.T, strict=True):
        order = np.argsort(-side * np.nanmean(away, axis=1), kind="stable")
        slow = _sums(away - side * SLOW_BY, start_variance + SLOW_SD**2, error + SLOW_LEVEL_SD**2)
        changes = ((other - one)[:, order] for one, other in zip(usual, slow, strict=True))
        parts = [part + _first(change, most)[:, number] for part, change in zip(parts, changes, strict=True)]
    information, weighted, squares, logs = parts
    covariances = np.linalg.inv(information)
    means = np.einsum("cmij,cmj->cmi", covariances, weighted)
    left = squares - (weighted * means).sum(axis=2)
    likelihood = -0.5 * (logs + np.linalg.slogdet(information)[1] + left)
    return _Fit(likelihood, means + middle, covariances, numbers.sum(axis=1), effects * len(away))


def _first(found: Floats, most: int) -> Floats:
    """The sums over the first 0 to `most` starts."""
    return np.concatenate([np.zeros_like(found[:, :1]), np.cumsum(found[:, :most], axis=1)], axis=1)


def _sums(values: Floats, start_variance: Floats, error_variance: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """What least squares need of each start, by cell: the information on its levels, the weighted values, their sum of squares,
    and the logarithm of the determinant of its covariance, which is diagonal but for the effect that its levels share."""
    missing = np.isnan(values)
    values = np.where(missing, 0.0, values)
    weights = np.where(missing, 0.0, 1 / error_variance[:, None, :])
    total = 1 + start_variance[:, None] * weights.sum(axis=2)
    shared = start_variance[:, None] / total
    own = weights * values
    sums = own.sum(axis=2)
    information = -shared[..., None, None] * weights[..., :, None] * weights[..., None, :]
    levels = np.arange(values.shape[1])
    information[..., levels, levels] += weights
    logs = np.log(total) - np.log(np.where(missing, 1.0, weights)).sum(axis=2)
    return (
        information,
        own - shared[..., None] * weights * sums[..., None],
        (own * values).sum(axis=2) - shared * sums**2,
        logs,
    )
