"""Evidence of blocks of load: how good each candidate of a tune is, from blocks within starts within candidates.

A block's value is a logarithm, higher for better: that of candidate, plus that of the block (its prompts, and the minute in
which all measured them), plus that of the start, plus noise. Starts vary by themselves, so ten blocks of one start are no ten
starts: the variance between starts is a term of its own (generalised least squares; Searle, Casella and McCulloch 1992,
"Variance Components"). Both variances are pooled over all candidates and moderated by a prior that is worth a few degrees of
freedom (Smyth 2004), as in `verdict.looks`.

Settings may also make an engine unsteady, and a machine may be disturbed while one candidate is measured. Where the starts of
two candidates differ by more than the pooled spread foresees, their own spread, moderated by the pooled one, takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from servebench.analysis.statistics import Floats
from servebench.analysis.verdict.model import Difference
from servebench.analysis.verdict.reasons import Method, MethodKind
from servebench.contracts.estimate import CONFIDENCE

START_SD, START_FREEDOM = 0.02, 4.0
"""The standard deviation by which starts of one setting are expected to differ, and the degrees of freedom of this prior."""
BLOCK_SD, BLOCK_FREEDOM = 0.01, 4.0
"""The same for blocks of one start."""
OWN_FREEDOM = 2.0
"""The degrees of freedom that the pooled spread has beside the starts of two candidates alone."""
NEGLIGIBLE = 1e-12
RANK_TOLERANCE = 1e-9
"""Directions of a design that are smaller than this, relative to its largest, are rounding errors."""


@dataclass(frozen=True, slots=True)
class MeasuredBlock:
    """The value of one block: of which candidate, in which start of its engine, and which block (the same prompts for all)."""

    candidate: str
    start: str
    block: int
    value: float


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The standard deviations between starts and between blocks of a start, and the degrees of freedom of the first."""

    start: float = START_SD
    block: float = BLOCK_SD
    freedom: float = START_FREEDOM


@dataclass(frozen=True, slots=True)
class OwnSpread:
    """How much starts of one candidate differ, relative to what the pooled spread foresees: the sum of the squares, and its
    degrees of freedom."""

    squares: float = 0.0
    freedom: float = 0.0


@dataclass(frozen=True, slots=True)
class LogDifference:
    """By how much the logarithm of one candidate is above that of another, its standard error, and the degrees of freedom of
    that."""

    value: float
    error: float
    freedom: float

    def reach(self, level: float) -> float:
        """Return how far the true difference may be from `value`, to one side, with probability `level` of being wrong."""
        return self.error * quantile(1 - level, self.freedom)


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """The candidates' estimates, up to a constant that they share, the covariance of these, and their own spreads; `starts` are
    how many each rests on."""

    names: tuple[str, ...]
    means: Floats
    covariance: Floats
    spread: Spread
    own: Mapping[str, OwnSpread] = field(default_factory=dict)
    starts: Mapping[str, int] = field(default_factory=dict)

    def difference(self, a: str, b: str) -> LogDifference:
        """Return by how much the logarithm of `a` is above that of `b`."""
        i, j = self.names.index(a), self.names.index(b)
        variance = self.covariance[i, i] + self.covariance[j, j] - 2 * self.covariance[i, j]
        owns = [self.own.get(name, OwnSpread()) for name in (a, b)]
        squares, freedom = sum(one.squares for one in owns), sum(one.freedom for one in owns)
        ratio = (squares + OWN_FREEDOM) / (freedom + OWN_FREEDOM)
        freedom = self.spread.freedom if ratio <= 1 else min(self.spread.freedom, freedom + OWN_FREEDOM)
        return LogDifference(
            float(self.means[i] - self.means[j]), float(max(variance * max(1.0, ratio), NEGLIGIBLE)) ** 0.5, freedom
        )

    def interval(self, a: str, b: str, level: float) -> tuple[float, float, float]:
        """Return that difference with its two-sided interval, which fails with probability `level`."""
        found = self.difference(a, b)
        half = found.reach(level / 2)
        return found.value, found.value - half, found.value + half

    @property
    def ranking(self) -> tuple[str, ...]:
        """The names, best first."""
        return tuple(self.names[index] for index in np.argsort(-self.means, kind="stable"))


@dataclass(frozen=True)
class Blocks:
    """Evidence of the blocks of two candidates, `other` the baseline."""

    estimates: Estimates
    one: str
    other: str

    def difference(self, confidence: float = CONFIDENCE) -> Difference:
        """Return by how much the objective of `one` is above that of `other`."""
        ends = self.estimates.interval(self.one, self.other, 1 - confidence)
        effect, low, high = map(math.expm1, ends)
        starts = self.estimates.starts
        method = Method(MethodKind.BLOCKS, (starts.get(self.other, 1), starts.get(self.one, 1)))
        return Difference(effect=effect, low=low, high=high, method=method)


def quantile(share: float, freedom: float) -> float:
    """Return the quantile of Student's distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))


def estimate(
    blocks: Sequence[MeasuredBlock], everything: Sequence[MeasuredBlock] | None = None, spread: Spread | None = None
) -> Estimates:
    """Return the estimates of all candidates in these blocks, of which there must be one. The spreads are those of `everything`,
    the blocks themselves unless it is given; the pooled one may be given, too."""
    everything = blocks if everything is None else everything
    spread = spread or spread_of(everything)
    names = tuple(dict.fromkeys(one.candidate for one in blocks))
    design = np.hstack([_dummies([one.candidate for one in blocks], names), _contrasts([one.block for one in blocks])])
    values = np.array([one.value for one in blocks])
    starts = [one.start for one in blocks]
    same = np.array([[a == b for b in starts] for a in starts])
    variance = spread.start**2 * same + spread.block**2 * np.eye(len(blocks))
    weighted = np.linalg.solve(variance, np.column_stack([design, values]))
    information = design.T @ weighted[:, :-1]
    inverse: Floats = np.asarray(np.linalg.pinv(information, hermitian=True), dtype=np.float64)
    found: Floats = inverse @ (design.T @ weighted[:, -1])
    count = len(names)
    return Estimates(
        names=names,
        means=found[:count],
        covariance=inverse[:count, :count],
        spread=spread,
        own=own_spreads(everything, spread),
        starts={name: len({one.start for one in blocks if one.candidate == name}) for name in names},
    )


def spread_of(blocks: Sequence[MeasuredBlock]) -> Spread:
    """Return the spread between starts and between blocks, pooled over the candidates and moderated by the prior."""
    within, within_freedom = _pooled(_residuals(blocks, [one.start for one in blocks]))
    block = _moderated(within, within_freedom, BLOCK_SD, BLOCK_FREEDOM)
    first = _means_of_starts(blocks)
    between, freedom = _pooled(_residuals(first, [one.candidate for one in first]))
    # the mean of a start carries the noise of its blocks, too
    each = max(1.0, len(blocks) / max(len(first), 1))
    pure = max(0.0, between - freedom * block**2 / each)
    start = _moderated(pure, freedom, START_SD, START_FREEDOM)
    return Spread(start=start, block=block, freedom=START_FREEDOM + freedom)


def own_spreads(blocks: Sequence[MeasuredBlock], spread: Spread) -> dict[str, OwnSpread]:
    """Return how much the starts of each candidate differ, relative to `spread`."""
    first = _means_of_starts(blocks)
    each = max(1.0, len(blocks) / max(len(first), 1))
    foreseen = max(spread.start**2 + spread.block**2 / each, NEGLIGIBLE)
    found: dict[str, OwnSpread] = {}
    for one, (square, freedom) in zip(first, _residuals(first, [one.candidate for one in first]), strict=True):
        own = found.get(one.candidate, OwnSpread())
        found[one.candidate] = OwnSpread(own.squares + square / foreseen, own.freedom + freedom)
    return found


def _moderated(squares: float, freedom: float, prior: float, prior_freedom: float) -> float:
    return float(((squares + prior_freedom * prior**2) / (freedom + prior_freedom)) ** 0.5)


def _residuals(blocks: Sequence[MeasuredBlock], groups: Sequence[str]) -> list[tuple[float, float]]:
    """Return for each block the square that groups and blocks leave unexplained, and its share of the degrees of freedom: one
    less its leverage."""
    if len(blocks) < 2:
        return [(0.0, 0.0)] * len(blocks)
    design = np.hstack([_dummies(groups, tuple(dict.fromkeys(groups))), _contrasts([one.block for one in blocks])])
    values = np.array([one.value for one in blocks])
    explains, sizes, _ = np.linalg.svd(design, full_matrices=False)
    explains = explains[:, sizes > RANK_TOLERANCE * sizes.max()]
    left = values - explains @ (explains.T @ values)
    freedom = 1.0 - (explains**2).sum(axis=1)
    return [
        (float(square), float(free)) if free > RANK_TOLERANCE else (0.0, 0.0)
        for square, free in zip(left**2, freedom, strict=True)
    ]


def _pooled(residuals: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the sum of squares and its degrees of freedom."""
    return sum(square for square, _ in residuals), sum(freedom for _, freedom in residuals)


def _means_of_starts(blocks: Sequence[MeasuredBlock]) -> list[MeasuredBlock]:
    """One value for each start: its mean. The block of a start is the first that it measured, which others of its round share."""
    groups: dict[tuple[str, str], list[MeasuredBlock]] = {}
    for one in blocks:
        groups.setdefault((one.candidate, one.start), []).append(one)
    return [
        MeasuredBlock(candidate, start, min(one.block for one in own), float(np.mean([one.value for one in own])))
        for (candidate, start), own in groups.items()
    ]


def _dummies(groups: Sequence[str], names: Sequence[str]) -> Floats:
    index = {name: number for number, name in enumerate(names)}
    found = np.zeros((len(groups), len(names)))
    found[np.arange(len(groups)), [index[name] for name in groups]] = 1.0
    return found


def _contrasts(blocks: Iterable[int]) -> Floats:
    """The effects of the blocks, which add up to 0."""
    numbers = list(blocks)
    names = sorted(set(numbers))
    full = np.array([[float(one == name) for name in names] for one in numbers])
    return full[:, :-1] - full[:, -1:] if len(names) > 1 else np.zeros((len(numbers), 0))
