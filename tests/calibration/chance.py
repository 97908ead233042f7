"""Cells of what is called chance with one start each: of the rule alone, on values of starts that are drawn at random."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from calibration.cells import CalibrationCell, Outcome, Promise
from servebench.analysis.start_model import Starts
from servebench.analysis.verdict.model import THROUGHPUT
from servebench.analysis.verdict.starts import evidence_of
from servebench.contracts.level import Level

SPREADS = (0.005, 0.01, 0.02, 0.03, 0.05)
EARLIER = (0, 3, 5, 10)
"""Earlier starts of both set-ups."""
POINT_ERROR = 0.0087
"""The error of a point, as it is known from its own interval."""
LEVELS = (Level(1), Level(4))

CHANCE = Promise(
    name="chance",
    text="with one start each, two equal engines differ by more than is called chance",
    bar=0.05,
)


def cells() -> Iterator[CalibrationCell]:
    """Yield the cells."""
    for spread in SPREADS:
        for earlier in EARLIER:
            name = f"starts differ by {spread:.1%}, {earlier} earlier starts known"
            trial = partial(_beyond, spread=spread, earlier=earlier)
            yield CalibrationCell(promises=(CHANCE,), name=name, trial=trial)


def _beyond(seed: int, _truth: None, *, spread: float, earlier: int) -> Outcome:
    """Return whether two single starts of equal engines differ by more than is called chance, at the first level."""
    rng = np.random.default_rng(seed)
    slower, faster, *known = (_starts(rng, count, spread) for count in (1, 1, (earlier + 1) // 2, earlier // 2))
    if slower.values[0, 0] > faster.values[0, 0]:
        slower, faster = faster, slower
    found = evidence_of(slower, faster, THROUGHPUT.name, known if earlier else ())
    lead = replace(found, weights=np.array([1.0, 0.0])).difference()
    return {(CHANCE, ""): float(lead.effect > lead.chance)}


def _starts(rng: np.random.Generator, count: int, spread: float) -> Starts:
    """Logarithms of so many starts of one engine, each of which has an effect that its levels share."""
    values = rng.normal(0, spread, (count, 1)) + rng.normal(0, POINT_ERROR, (count, len(LEVELS)))
    return Starts(LEVELS, values, np.full(len(LEVELS), POINT_ERROR))
