"""Evidence of blocks of load: how good each candidate of a tune is, by the model of starts (`analysis/start_model.py`).

A block's value is a logarithm, higher for better. All candidates of a round measure the same blocks: the same prompts, in the
same minutes. What a block adds to all of them is estimated beside what the candidates are, and taken away: by least squares that
slow starts hardly move (Huber 1964, Ann. Math. Statist. 35). What is left are the starts of each candidate, with blocks as
repeats. How starts and blocks vary, and which starts are slow, is learned from all candidates. A block that two measured adds
nothing to their difference, however it was estimated.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from servebench.analysis.quantiles import Mixture
from servebench.analysis.start_model import StartModel, Starts
from servebench.analysis.verdict.model import Difference
from servebench.analysis.verdict.reasons import Method, MethodKind
from servebench.analysis.verdict.slices import SliceDifference, enough, pooled_error
from servebench.analysis.verdict.starts import FEW_STARTS, STARTS_MIN
from servebench.contracts.estimate import CONFIDENCE
from servebench.contracts.level import Level
from servebench.util.arrays import Floats

BLOCK_ERROR = 0.01
"""The standard error of a block without an interval of its own, before the model's factor, of which about a half is expected."""
SLOW_SIDE = -1
"""Slow starts have lower values, for higher ones are better."""
FREEDOM_MIN = 0.01
"""Where blocks explain everything, as with a single candidate, this is left of each degree of freedom: next to nothing."""
USUAL, SWEEPS = 0.03, 6
"""Deviations up to this one have their whole weight, larger ones less, by weights that are found in so many sweeps."""
ONE = np.ones(1)


@dataclass(frozen=True, slots=True)
class MeasuredBlock:
    """The value of one block: of which candidate, in which start of its engine, and which block (the same prompts for all)."""

    candidate: str
    start: str
    block: int
    value: float
    error: float | None = None
    """The standard error of the value by the block's own requests; None where it is not known."""


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """What is known of candidates by the model of their starts; `starts` are how many each rests on."""

    names: tuple[str, ...]
    model: StartModel
    starts: Mapping[str, int]

    def difference(self, a: str, b: str, again: int = 0) -> Mixture:
        """Return what is known of the logarithm of `a` less that of `b`, or of that of so many starts of both which come."""
        return self.model.value(ONE, -ONE, of=(self.names.index(a), self.names.index(b)), again=again)

    @property
    def ranking(self) -> tuple[str, ...]:
        """The names, best first."""
        return tuple(self.names[index] for index in np.argsort(-self.model.means[:, 0], kind="stable"))

    @property
    def block_to_start(self) -> float:
        """The standard deviation of blocks of one start over that of starts."""
        start, factor = self.model.spread
        errors = [float(np.mean(one.errors)) for one in self.model.engines]
        return factor * float(np.mean(errors)) / start

    def change(self, one: str, other: str, confidence: float = CONFIDENCE, again: int = 0) -> Difference:
        """Return by how much the objective of `one` is above that of `other`, wider where it rests on few starts; or by how much
        it will be in so many starts of both which come."""
        method = Method(MethodKind.BLOCKS, (self.starts[other], self.starts[one]))
        return _change(self.difference(one, other, again), method, confidence)


def change_by_slices(
    known: Sequence[SliceDifference],
    others: Sequence[SliceDifference],
    before: Sequence[MeasuredBlock],
    confidence: float = CONFIDENCE,
    again: int = 0,
) -> Difference:
    """Return by how much an objective is above another, from the differences of their starts, which took turns slice by slice; or
    by how much it will be in so many starts of both which come. How starts differ is learned from those of `others`, too, and
    from blocks `before`, at most: the machine has moved these."""
    of = [Starts.of_one_level([one.value for one in own], pooled_error(own)) for own in (known, others) if enough(own)]
    differences = [replace(one, differences=True) for one in of]
    earlier = estimate(before).model.engines
    model = StartModel(differences, earlier, SLOW_SIDE, repeats=True, earlier_vary_more=True)
    method = Method(MethodKind.STARTS, (len(known), len(known)), slice_by_slice=True)
    return _change(model.value(ONE, of=[0], again=again), method, confidence)


def _change(known: Mixture, method: Method, confidence: float) -> Difference:
    tail = (1 - confidence) / 2 / FEW_STARTS.get(max(min(method.starts), STARTS_MIN), 1.0)
    effect, low, high = (math.expm1(known.quantile(share)) for share in (0.5, tail, 1 - tail))
    return Difference(effect=effect, low=low, high=high, method=method)


def estimate(blocks: Sequence[MeasuredBlock], everything: Sequence[MeasuredBlock] | None = None) -> Estimates:
    """Return the estimates of all candidates in these blocks, of which there must be one. How starts vary is learned from
    `everything`, which has these blocks, too."""
    everything = blocks if everything is None else everything
    asked = {one.start for one in blocks}
    # starts that are not asked for must not move their candidate's value
    groups = [(one.start in asked, one.candidate) for one in everything]
    values, freedom = _without_shared(everything, groups)
    found: dict[tuple[bool, str], dict[str, list[tuple[float, float]]]] = {}
    for group, one, value in zip(groups, everything, values, strict=True):
        error = BLOCK_ERROR if one.error is None else one.error
        found.setdefault(group, {}).setdefault(one.start, []).append((float(value), error))
    most = max(len(own) for starts in found.values() for own in starts.values())
    of: dict[bool, list[Starts]] = {True: [], False: []}
    for (counts, _), starts in found.items():
        whole = np.array([[*own, *[(math.nan, BLOCK_ERROR)] * (most - len(own))] for own in starts.values()])
        of[counts].append(Starts((Level(),) * most, whole[..., 0], whole[..., 1]))
    return Estimates(
        names=tuple(name for counts, name in found if counts),
        model=StartModel(of[True], of[False], SLOW_SIDE, repeats=True, freedom=freedom),
        starts={name: len(own) for (counts, name), own in found.items() if counts},
    )


def _without_shared(blocks: Sequence[MeasuredBlock], groups: Sequence[Hashable]) -> tuple[Floats, float]:
    """Return the values without what each block adds to all groups, and what is left of the degrees of freedom of starts, as a
    share. By this share what was taken away makes starts look more alike, which is given back."""
    values, shared = np.array([one.value for one in blocks]), _dummies([one.block for one in blocks])
    group = _dummies(groups)
    design = np.hstack([group, shared])
    found: Floats = np.zeros(design.shape[1])
    root = np.ones(len(values))
    for _ in range(SWEEPS):
        found = np.asarray(np.linalg.lstsq(design * root[:, None], values * root, rcond=None)[0], dtype=np.float64)
        root = np.sqrt(USUAL / np.maximum(USUAL, np.abs(values - design @ found)))
    own = values - shared @ found[group.shape[1] :]
    first = np.unique([one.start for one in blocks], return_index=True)[1]
    before, after = len(first) - group.shape[1], len(first) - int(np.linalg.matrix_rank(design[first]))
    freedom = max(after / before, FREEDOM_MIN) if before else 1.0
    middle = group @ (group.T @ own / group.sum(axis=0))
    return middle + (own - middle) / freedom**0.5, freedom


def _dummies(keys: Sequence[Hashable]) -> Floats:
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.eye(len(numbers))[[numbers[key] for key in keys]]
