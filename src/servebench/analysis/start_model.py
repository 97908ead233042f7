"""How far a start of an engine may be from what the engine does: the one model behind every interval and verdict over starts.

The logarithm of a metric at a load level, in one start of an engine, is

    the engine's value at that level + the effect of the start + the error of the point.

All levels of a start share its effect, because all its requests share its speed. Effects are normal, with one standard
deviation for both engines of a comparison and for earlier starts of their set-ups. A start may also be slow for its whole life
(6 of 82 starts of a real llama.cpp were, by 15 to 57%): slow starts are a class of their own, so that the usual ones do not
pay for them. The errors of points are in proportion to their own intervals, by a factor that has to be learned, too.

Every standard deviation, factor and number of slow starts of a grid is considered, and weighed by a prior and by how well it
explains all the starts (the restricted likelihood: Patterson and Thompson 1971, Biometrika 58). Given these, each engine's value
is normal, so the answer is a mixture of normals (Box and Tiao 1973, "Bayesian Inference in Statistical Analysis", chapter
5). With one start of each engine and nothing earlier, the prior alone speaks.

Two starts that were measured slice by slice, in turns, have one value: their difference. It has the effects of two starts, either
of which may be slow, and an error that its slices show (`verdict/slices.py`): as exactly as their number allows, and how much
the differences of several starts scatter says the rest (for slices alone this is Student's t).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.quantiles import Mixture
from servebench.contracts.level import Level
from servebench.util.arrays import Floats

START_SD = 0.001 * 2.0 ** np.arange(9)
"""Standard deviations between starts that are considered."""
START_PRIOR = np.array([0.04, 0.08, 0.16, 0.22, 0.215, 0.16, 0.085, 0.03, 0.01])
"""Their prior weights: starts of engines that were measured differ by 0.5 to 4%."""
FACTORS = 2.0 ** np.arange(-4, 5)
FACTOR_PRIOR = np.array([0.05, 0.10, 0.20, 0.30, 0.25, 0.08, 0.02, 0.0, 0.0])
"""By which factor points of one start differ from what their own intervals say, and the prior weights."""
SLICE_FACTORS: Floats = 2.0 ** np.linspace(-3.75, 2.25, 9)
"""The same for differences of starts that took turns: what few slices leave open of their error."""
ASSUMED_WITHIN = 2.5
"""Where no slice says anything of their error it is assumed, and right within this factor (that of a standard deviation of its
logarithm): on quiet machines it is a tenth."""
ERROR_LEAST = 5e-4
"""The least standard error of a point."""
SLOW_BEFORE = 1.0, 19.0
"""What is known of slow and usual starts before any was seen, as counts (Beta distribution): of 112 real starts of llama.cpp and
vLLM 6 were slow. With 1 of 80, engines of which one of twelve starts is slow were called equal in four minutes in 42% of 300
drawn studies (four levels, in turns), with this in 46%; 10% slower ones were found within eight starts in 78%, with this in 83%
(fresh starts that differ by 3%)."""
SINGLE_BEFORE = 0.3, 24.7
"""The same where an engine has a single start. Two single starts have a slow one in 10 of 100 cases: with the share above, an
interval of 95% would be that of slow starts, whatever the usual ones do (up to 53% may be chance, with this 15%). Verdicts of
single starts ask for more instead (`verdict/starts.py`)."""
SLOW_BY, SLOW_SD, SLOW_LEVEL_SD = 0.4, 0.4, 0.05
"""By how much slow starts are slower, by how much they differ in that, and from level to level (logarithms): six of 82 real
starts of llama.cpp were slow, five by 15 to 25% and one by 57%. So wide because a start like the last one must not look like
another engine: with 0.33, 0.25 and a share of 1 of 80 equal engines of which one of twelve starts is slow, after 50 earlier
starts, were called different in 7.0, 9.0, 6.5 and 4.8% of 400 drawn studies (starts differ by 1, 2, 3 and 5%), with these in
4.2, 6.8, 4.0 and 4.8% of the same."""
SLOW_MOST, SLOW_SHARE = 4, 0.25
"""Up to so many starts of a group may be slow, or this share of it if that is more."""
SHARES = 24
"""How many shares of slow starts are considered: these are exact for up to 48 starts."""
TINY = np.finfo(float).tiny
NEGLIGIBLE = 1e-6
"""Parts of the mixture with a smaller weight are left out."""
SLOW_SIDES: Mapping[str, int] = {"output_throughput_tok_s": -1, "tpot_ms_p50": 1, "e2e_ms_p50": 1}
"""To which side a slow start moves a metric. That of others, such as TTFT, was not moved in the starts that were measured."""


@dataclass(frozen=True)
class Starts:
    """Logarithms of a metric in starts of one engine: a row for each start, a column for each of `levels`, NaN where there is no
    value. `errors` has the standard error of a point at each level, as the points' own intervals have it, for all starts or in a
    row for each.

    With `differences` each row has those of two starts, whose errors rest on so many degrees of `freedom`; 0: they are assumed,
    infinite: they are right, or wide enough."""

    levels: tuple[Level, ...]
    values: Floats
    errors: Floats
    differences: bool = False
    freedom: float = math.inf

    @classmethod
    def of_one_level(cls, logs: Sequence[float] | Floats, error: float) -> Self:
        """Return the starts of a single level, whichever it is."""
        return cls((Level(),), np.array(logs, dtype=np.float64)[:, None], np.array([error]))

    def at(self, levels: Sequence[Level]) -> Self:
        """Return the starts at these levels, without those that have no value there."""
        values = np.full((len(self.values), len(levels)), np.nan)
        errors = np.zeros(values.shape)
        for column, level in enumerate(levels):
            if level in self.levels:
                known = self.levels.index(level)
                values[:, column], errors[:, column] = self.values[:, known], self.errors[..., known]
        kept = ~np.isnan(values).all(axis=1)
        return replace(self, levels=tuple(levels), values=values[kept], errors=errors[kept])


@dataclass(frozen=True)
class _Fits:
    """What the starts of some groups say, by group, cell of the grid and numbers of slow starts (`slow` of them in all): the
    logarithm of the likelihood, the means of the levels and their covariances; and the number of starts of each group."""

    likelihood: Floats
    means: Floats
    covariances: Floats
    slow: NDArray[np.int64]
    starts: NDArray[np.int64]

    def by_share(self, freedom: float, shares: Floats) -> Floats:
        """Return the logarithm of the likelihood with another axis, for the share of slow starts among all."""
        slow = self.slow[:, None]
        usual = np.maximum(self.starts[:, None, None] - slow, 0)
        chances = slow * np.log(shares) + usual * np.log1p(-shares)
        found: Floats = freedom * self.likelihood[..., None] + chances[:, None]
        return found


@dataclass(frozen=True)
class StartModel:
    """The model of the starts of some engines, which have the same levels; `earlier` are other starts, which only say how starts
    differ. `slow_side` is +1 where slow starts have larger values, -1 where they have smaller ones, 0 for a metric without such
    starts. `repeats`: the columns of all starts are repeats at one level, with one value. `freedom` are the degrees of freedom
    of each value: less than 1 where something that all share was estimated and taken away. `earlier_vary_more`: something else
    moves earlier starts, too, so they only say by how much starts differ at most."""

    engines: Sequence[Starts]
    earlier: Sequence[Starts] = ()
    slow_side: int = 0
    repeats: bool = False
    freedom: float = 1.0
    earlier_vary_more: bool = False

    def value(self, *contrasts: Floats, of: Sequence[int] | None = None, again: int = 0) -> Mixture:
        """Return what is known of a weighted sum of engines' values: one contrast for each engine, a weight for each of its
        levels. `of` are the numbers of these engines: all, unless it is given. With `again` it is that of the means of so many
        usual starts which come, each with a point as those of the engine are."""
        asked, fits = list(range(len(self.engines)) if of is None else of), self._fits
        single = [1] * len(asked)
        means = variances = np.zeros((_CELLS, *single))
        logs = (self._known - self._whole[asked].sum(axis=0)).reshape(_CELLS, *single, -1)
        for axis, (number, contrast) in enumerate(zip(asked, contrasts, strict=True)):
            # groups with few starts have no more slow ones
            slow = np.isfinite(fits.likelihood[number, 0])
            shape = [_CELLS, *single[:axis], int(slow.sum()), *single[axis + 1 :]]
            covariances = fits.covariances[number, :, slow]
            means = means + (fits.means[number, :, slow] @ contrast).T.reshape(shape)
            variances = variances + np.einsum("i,mcij,j->cm", contrast, covariances, contrast).reshape(shape)
            if again:
                variances = variances + (self._of_a_start(number, contrast) / again).reshape(_CELLS, *single)
            logs = logs + self._parts[number][:, slow].reshape(*shape, -1)
        weights = _weights(logs).sum(axis=-1)
        kept = weights > NEGLIGIBLE
        return Mixture(weights[kept] / weights[kept].sum(), means[kept], np.sqrt(variances[kept]))

    def _of_a_start(self, number: int, contrast: Floats) -> Floats:
        """The variance of a contrast in one start of an engine, by cell."""
        own = self.engines[number]
        square = float(contrast**2 @ np.full(contrast.size, np.mean(np.square(own.errors))))
        effects, factor = _effects_and_factor(own.differences)
        found: Floats = effects * _START_VARIANCE * contrast.sum() ** 2 + factor**2 * square
        return found

    @cached_property
    def means(self) -> Floats:
        """The expected values, by engine and level."""
        slow = np.exp(self._parts - self._whole[:, :, None]) * _weights(self._known)[:, None]
        found: Floats = np.einsum("gcmk,gcmi->gi", slow, self._fits.means)
        return found

    @property
    def spread(self) -> tuple[float, float]:
        """The expected standard deviation of starts and factor of the errors of points (means of the logarithms)."""
        cells, factor = _weights(self._known).sum(axis=1), _effects_and_factor(self.engines[0].differences)[1]
        return math.exp(cells @ np.log(_START_VARIANCE) / 2), math.exp(cells @ np.log(factor))

    @cached_property
    def _fits(self) -> _Fits:
        return _fit(self.engines, self.slow_side, repeats=self.repeats)

    @property
    def _shares(self) -> tuple[Floats, Floats]:
        """The shares of slow starts that are considered, and their prior weights."""
        return _shares(SINGLE_BEFORE if min(len(one.values) for one in self.engines) < 2 else SLOW_BEFORE)

    @cached_property
    def _parts(self) -> Floats:
        """The logarithm of the likelihood by engine, cell, numbers of slow starts, and share of slow starts among all."""
        return self._fits.by_share(self.freedom, self._shares[0])

    @cached_property
    def _whole(self) -> Floats:
        """The same by engine, cell and share, whatever the numbers of slow starts."""
        return _summed(self._parts)

    @cached_property
    def _known(self) -> Floats:
        """The logarithm of the weight by cell and share, by the prior and all starts."""
        prior = np.outer(START_PRIOR, _factor_prior(self.engines[0])).ravel()
        found: Floats = self._whole.sum(axis=0) + np.log(np.outer(prior, self._shares[1]) + TINY)
        if self.earlier:
            fits = _fit(self.earlier, self.slow_side, repeats=self.repeats)
            said = _summed(fits.by_share(self.freedom, self._shares[0]))
            if not self.engines[0].differences:
                found += said.sum(axis=0)
            elif self.earlier[0].differences:
                for one, own in zip(self.earlier, said, strict=True):
                    found += _of_starts(own, _factor_prior(one), at_most=self.earlier_vary_more)
            else:
                found += _of_starts(said.sum(axis=0), FACTOR_PRIOR, at_most=self.earlier_vary_more)
        return found


def _summed(parts: Floats) -> Floats:
    """Sum over numbers of slow starts, of logarithms."""
    most = parts.max(axis=2)
    found: Floats = most + np.log(np.exp(parts - most[:, :, None]).sum(axis=2))
    return found


def _of_starts(logs: Floats, factor_prior: Floats, *, at_most: bool) -> Floats:
    """Return the logarithm of the likelihood by what starts differ by alone, whatever the factor of their errors. With `at_most`
    something else moved them, too, and what they show is at least their standard deviation: each from there on is as likely."""
    cells = np.exp(logs - logs.max()).reshape(START_SD.size, FACTORS.size, -1)
    likely = np.einsum("sfm,f->sm", cells, factor_prior)
    if at_most:
        likely = np.cumsum(likely[::-1], axis=0)[::-1] / np.arange(START_SD.size, 0, -1)[:, None]
    found: Floats = np.repeat(np.log(likely + TINY), FACTORS.size, axis=0)
    return found


def _factor_prior(starts: Starts) -> Floats:
    """How probable each factor of the errors is before the starts are known: of differences by what their slices leave open (the
    likelihood of a variance with these degrees of freedom)."""
    if not starts.differences:
        return FACTOR_PRIOR
    if math.isinf(starts.freedom):
        return np.equal(SLICE_FACTORS, 1.0).astype(np.float64)
    if not starts.freedom:
        return _weights(-0.5 * (np.log(SLICE_FACTORS) / math.log(ASSUMED_WITHIN)) ** 2)
    return _weights(-starts.freedom * (np.log(SLICE_FACTORS) + 0.5 / SLICE_FACTORS**2))


def _weights(logs: Floats) -> Floats:
    """Weights that add up to 1, from their logarithms."""
    weights = np.exp(logs - logs.max())
    found: Floats = weights / weights.sum()
    return found


_CELLS = START_SD.size * FACTORS.size
_START_VARIANCE, _FACTOR = (one.ravel() for one in np.meshgrid(START_SD**2, FACTORS, indexing="ij"))
_SLICE_FACTOR = np.tile(SLICE_FACTORS, START_SD.size)


def _effects_and_factor(differences: bool) -> tuple[int, Floats]:
    """How many starts' effects a value has, and the factor of its error by cell."""
    return (2, _SLICE_FACTOR) if differences else (1, _FACTOR)


@cache
def _shares(before: tuple[float, float]) -> tuple[Floats, Floats]:
    """Shares of slow starts and their weights: the quadrature of Gauss and Jacobi for their Beta distribution."""
    from scipy.special import roots_jacobi

    slow, usual = before
    nodes, weights = roots_jacobi(SHARES, usual - 1, slow - 1)
    return (1 + nodes) / 2, weights / weights.sum()


def _fit(groups: Sequence[Starts], slow_side: int, *, repeats: bool) -> _Fits:
    """Fit the values of each group's levels: generalised least squares, with the restricted likelihood. Of each number of slow
    starts only the slowest ones are considered: others explain nothing. Of differences these are at both ends."""
    counts, differences = np.array([len(one.values) for one in groups]), groups[0].differences
    away = np.full((len(groups), counts.max(), len(groups[0].levels)), np.nan)
    middle, means = np.zeros((len(groups), 1, away.shape[2])), np.full(away.shape[:2], np.nan)
    errors = np.zeros(away.shape)
    for number, one in enumerate(groups):
        has = ~np.isnan(one.values).all(axis=0)
        middle[number, 0, has] = np.nanmedian(one.values[:, has], axis=None if repeats else 0)
        away[number, : len(one.values)] = own = one.values - middle[number]
        means[number, : len(own)], errors[number, : len(own)] = np.nanmean(own, axis=1), one.errors
    most = np.minimum(np.maximum(SLOW_MOST, (SLOW_SHARE * counts).astype(int)), counts) if slow_side else 0 * counts
    sides = (slow_side, -slow_side) if differences else (slow_side,)
    effects, factor = _effects_and_factor(differences)
    variance = effects * _START_VARIANCE
    error = (factor[:, None, None, None] * errors) ** 2 + ERROR_LEAST**2
    usual = _sums(away, variance, error, repeats=repeats)
    numbers = np.array([one for one in np.ndindex(*[most.max() + 1] * len(sides)) if sum(one) <= most.max()])
    parts = [one.sum(axis=2, keepdims=True) for one in usual]
    for side, number in zip(sides, numbers.T, strict=True):
        # rows without values are the last
        order = np.arange(len(groups))[:, None], np.argsort(-side * means, axis=1, kind="stable")
        slow = _sums(away - side * SLOW_BY, variance + SLOW_SD**2, error + SLOW_LEVEL_SD**2, repeats=repeats)
        changes = ((other - one)[:, *order] for one, other in zip(usual, slow, strict=True))
        parts = [part + _first(change, most.max())[:, :, number] for part, change in zip(parts, changes, strict=True)]
    information, weighted, squares, logs = parts
    if not repeats:
        # a level that a group lacks has any value, and says nothing
        lacks = np.expand_dims(np.isnan(away).all(axis=1), (1, 3))
        information = information + np.eye(away.shape[2]) * lacks
    covariances = np.linalg.inv(information)
    values = np.einsum("cgmij,cgmj->cgmi", covariances, weighted)
    left = squares - (weighted * values).sum(axis=3)
    likelihood = -0.5 * (logs + np.linalg.slogdet(information)[1] + left)
    likelihood[:, numbers.sum(axis=1) > most[:, None]] = -np.inf
    values, covariances, likelihood = (one.swapaxes(0, 1) for one in (values, covariances, likelihood))
    values = values + middle[:, None, :, : values.shape[3]]
    return _Fits(likelihood, values, covariances, numbers.sum(axis=1), effects * counts)


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
    weights = np.where(missing, 0.0, 1 / error_variance)
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
