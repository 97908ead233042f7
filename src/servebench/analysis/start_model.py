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
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
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
SHARES = 24
"""How many shares of slow starts are considered: these are exact for up to 48 starts."""
NEGLIGIBLE = 1e-6
"""Parts of the mixture with a smaller weight are left out."""
REACH, PRECISION = 9.0, 1e-7
"""A quantile is looked for this many standard deviations to each side, and is known to this share of one."""
SLOW_SIDES: Mapping[str, int] = {"output_throughput_tok_s": -1, "tpot_ms_p50": 1, "e2e_ms_p50": 1}
"""To which side a slow start moves a metric. That of others, such as TTFT, was not moved in the starts that were measured."""


@dataclass(frozen=True)
class Starts:
    """Logarithms of a metric in starts of one engine: a row for each start, a column for each of `levels`, NaN where there is no
    value. `errors` has the standard error of a point at each level, as the points' own intervals have it."""

    levels: tuple[Level, ...]
    values: Floats
    errors: Floats

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
        return type(self)(tuple(levels), values[~np.isnan(values).all(axis=1)], errors)


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
class _Fits:
    """What the starts of each group say, by group, cell of the grid and number of slow starts: the logarithm of the likelihood,
    the means of the levels and their covariances; by group the number of its starts, and of how many slow ones at most."""

    likelihood: Floats
    means: Floats
    covariances: Floats
    starts: NDArray[np.int64]
    most: NDArray[np.int64]


@dataclass(frozen=True)
class StartModel:
    """The model of the starts of some engines, which have the same levels; `earlier` are other starts, which only say how starts
    differ. `slow_side` is +1 where slow starts have larger values, -1 where they have smaller ones, 0 for a metric without such
    starts. `repeats`: the columns of all starts are repeats at one level, with one value. `freedom` are the degrees of freedom
    of each value: less than 1 where something that all share was estimated and taken away."""

    engines: Sequence[Starts]
    earlier: Sequence[Starts] = ()
    slow_side: int = 0
    repeats: bool = False
    freedom: float = 1.0

    def value(self, *contrasts: Floats, of: Sequence[int] | None = None) -> Mixture:
        """Return what is known of a weighted sum of engines' values: one contrast for each engine, a weight for each of its
        levels. `of` are the numbers of these engines: all, unless it is given."""
        asked, fits = list(range(len(self.engines)) if of is None else of), self._fits
        single = [1] * len(asked)
        means = variances = np.zeros((_CELLS, *single))
        logs = (self._known - self._whole[asked].sum(axis=0)).reshape(_CELLS, *single, -1)
        for axis, (number, contrast) in enumerate(zip(asked, contrasts, strict=True)):
            slow = slice(fits.most[number] + 1)
            shape = [_CELLS, *single[:axis], slow.stop, *single[axis + 1 :]]
            covariances = fits.covariances[number, :, slow]
            means = means + (fits.means[number, :, slow] @ contrast).reshape(shape)
            variances = variances + np.einsum("i,cmij,j->cm", contrast, covariances, contrast).reshape(shape)
            logs = logs + self._parts[number, :, slow].reshape(*shape, -1)
        weights = _weights(logs).sum(axis=-1)
        kept = weights > NEGLIGIBLE
        return Mixture(weights[kept] / weights[kept].sum(), means[kept], np.sqrt(variances[kept]))

    @cached_property
    def means(self) -> Floats:
        """The expected values, by engine and level."""
        slow = np.exp(self._parts - self._whole[:, :, None]) * _weights(self._known)[:, None]
        found: Floats = np.einsum("gcmk,gcmi->gi", slow, self._fits.means)
        return found[: len(self.engines)]

    @property
    def spread(self) -> tuple[float, float]:
        """The expected standard deviation of starts and factor of the errors of points (means of the logarithms)."""
        cells = _weights(self._known).sum(axis=1)
        return math.exp(cells @ np.log(_START_VARIANCE) / 2), math.exp(cells @ np.log(_FACTOR))

    @cached_property
    def _fits(self) -> _Fits:
        return _fit((*self.engines, *self.earlier), self.slow_side, repeats=self.repeats)

    @cached_property
    def _parts(self) -> Floats:
        """The logarithm of the likelihood by group, cell, number of slow starts, and share of slow starts among all."""
        shares, slow = _shares()[0], np.arange(self._fits.likelihood.shape[2])[:, None]
        usual = np.maximum(self._fits.starts[:, None, None] - slow, 0)
        chances = slow * np.log(shares) + usual * np.log1p(-shares)
        found: Floats = self.freedom * self._fits.likelihood[..., None] + chances[:, None]
        return found

    @cached_property
    def _whole(self) -> Floats:
        """The same by group, cell and share, whatever the number of slow starts."""
        most = self._parts.max(axis=2)
        found: Floats = most + np.log(np.exp(self._parts - most[:, :, None]).sum(axis=2))
        return found

    @cached_property
    def _known(self) -> Floats:
        """The logarithm of the weight by cell and share, by the prior and all groups."""
        found: Floats = self._whole.sum(axis=0) + np.log(np.outer(_PRIOR, _shares()[1]))
        return found


def _weights(logs: Floats) -> Floats:
    """Weights that add up to 1, from their logarithms."""
    weights = np.exp(logs - logs.max())
    found: Floats = weights / weights.sum()
    return found


_CELLS = START_SD.size * FACTORS.size
_START_VARIANCE, _FACTOR = (one.ravel() for one in np.meshgrid(START_SD**2, FACTORS, indexing="ij"))
_PRIOR = np.outer(START_PRIOR, FACTOR_PRIOR).ravel()


@cache
def _shares() -> tuple[Floats, Floats]:
    """Shares of slow starts and their weights: the quadrature of Gauss and Jacobi for their Beta distribution."""
    from scipy.special import roots_jacobi

    nodes, weights = roots_jacobi(SHARES, USUAL_BEFORE - 1, SLOW_BEFORE - 1)
    return (1 + nodes) / 2, weights / weights.sum()


def _fit(groups: Sequence[Starts], slow_side: int, *, repeats: bool) -> _Fits:
    """Fit the values of each group's levels: generalised least squares, with the restricted likelihood. Of each number of slow
    starts only the slowest ones are considered: others explain nothing."""
    counts = np.array([len(one.values) for one in groups])
    away = np.full((len(groups), counts.max(), len(groups[0].levels)), np.nan)
    middle = np.zeros((len(groups), 1, away.shape[2]))
    for number, one in enumerate(groups):
        middle[number] = np.nanmedian(one.values, axis=None if repeats else 0)
        own = one.values - middle[number]
        away[number, : len(own)] = own[np.argsort(-slow_side * np.nanmean(own, axis=1), kind="stable")]
    most = np.minimum(np.maximum(SLOW_MOST, (SLOW_SHARE * counts).astype(int)), counts) if slow_side else 0 * counts
    error = (_FACTOR[:, None, None] * np.array([one.errors for one in groups])) ** 2 + ERROR_LEAST**2
    usual = _sums(away, _START_VARIANCE, error, repeats=repeats)
    slow = _sums(away - slow_side * SLOW_BY, _START_VARIANCE + SLOW_SD**2, error + SLOW_LEVEL_SD**2, repeats=repeats)
    information, weighted, squares, logs = (
        one.sum(axis=2, keepdims=True) + _first(other - one, most.max()) for one, other in zip(usual, slow, strict=True)
    )
    covariances = np.linalg.inv(information)
    means = np.einsum("cgmij,cgmj->cgmi", covariances, weighted)
    left = squares - (weighted * means).sum(axis=3)
    likelihood = -0.5 * (logs + np.linalg.slogdet(information)[1] + left)
    likelihood[:, np.arange(most.max() + 1) > most[:, None]] = -np.inf  # groups with fewer starts
    means, covariances, likelihood = (one.swapaxes(0, 1) for one in (means, covariances, likelihood))
    return _Fits(likelihood, means + middle[:, None, :, : means.shape[3]], covariances, counts, most)


def _first(found: Floats, most: int) -> Floats:
    """The sums over the first 0 to `most` starts."""
    return np.concatenate([np.zeros_like(found[:, :, :1]), np.cumsum(found[:, :, :most], axis=2)], axis=2)


def _sums(
    values: Floats, start_variance: Floats, error_variance: Floats, *, repeats: bool
) -> tuple[Floats, Floats, Floats, Floats]:
    """What least squares need of each start, by cell and group: the information on its levels, the weighted values, their sum of
    squares, and the logarithm of the determinant of its covariance, which is diagonal but for the effect that its levels
    share. Rows without values count for nothing."""
    missing = np.isnan(values)
    values = np.where(missing, 0.0, values)
    weights = np.where(missing, 0.0, 1 / error_variance[:, :, None, :])
    shares = start_variance[:, None, None]
    total = 1 + shares * weights.sum(axis=3)
    shared = shares / total
    own = weights * values
    sums = own.sum(axis=3)
    squares = (own * values).sum(axis=3) - shared * sums**2
    logs = np.log(total) - np.log(np.where(missing, 1.0, weights)).sum(axis=3)
    if repeats:
        return (weights.sum(axis=3) / total)[..., None, None], (sums / total)[..., None], squares, logs
    information = -shared[..., None, None] * weights[..., :, None] * weights[..., None, :]
    levels = np.arange(values.shape[2])
    information[..., levels, levels] += weights
    return information, own - shared[..., None] * weights * sums[..., None], squares, logs
