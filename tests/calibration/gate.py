"""Cells of the gate: of its rule alone, on values of starts that are drawn at random."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from calibration.cells import CalibrationCell, Outcome, Promise
from servebench.analysis.start_model import Starts
from servebench.analysis.verdict.gate import GATED, JUDGED, GateQuestion
from servebench.analysis.verdict.looks import decide_pairs, looks_until, open_pair, starts_to_pass
from servebench.analysis.verdict.model import (
    FAILED,
    NOT_WORSE,
    ComparisonRow,
    Metric,
    Side,
    StartValues,
    VerdictKind,
)
from servebench.analysis.verdict.slices import SliceDifference
from servebench.contracts.level import Level

LIMIT = 0.05
QUESTION = GateQuestion(LIMIT)
METRICS = tuple(GATED[name] for name in JUDGED if name != FAILED.name)
LEVELS = (Level(1), Level(4))
SPREADS = (0.01, 0.02, 0.03)
EARLIER = 8
"""Earlier starts, or pairs of them."""
SLICES, SLICE_SD = 12, 0.03
"""Slices of a point, and by how much the ratios of slices of two equal starts differ."""
POINT_ERROR = 0.0087
"""The error of a point that is measured alone: as that of the slices."""

PASSED = Promise(
    name="gate_aa",
    text="the gate passes equal builds at the number of starts that it named itself",
    bar=0.95,
    at_most=False,
)
CAUGHT = Promise(
    name="gate_loss",
    text="the gate passes a build that is worse by its limit, at the same number of starts",
    bar=0.05,
)
BETTER = Promise(
    name="gate_faster",
    text="the gate ends after two starts of each where a build is faster by its limit",
    bar=0.9,
    at_most=False,
)


def cells() -> Iterator[CalibrationCell]:
    """Yield the cells."""
    for in_turns in (True, False):
        for spread in SPREADS:
            name = f"starts differ by {spread:.0%}, {'slice by slice' if in_turns else 'one after another'}"
            for promise, gain in ((PASSED, 0.0), (CAUGHT, -LIMIT), (BETTER, LIMIT)):
                if promise is not BETTER or spread == SPREADS[0]:
                    trial = partial(_passes, promise=promise, spread=spread, in_turns=in_turns, gain=gain)
                    yield CalibrationCell(promises=(promise,), name=name, trial=trial)


def _passes(seed: int, _truth: None, *, promise: Promise, spread: float, in_turns: bool, gain: float) -> Outcome:
    """Return whether the gate passes at the number of starts that it named; nothing where it named none."""
    needed, verdict, looked = judged_study(seed, spread=spread, in_turns=in_turns, gain=gain)
    if needed is None:
        return {(promise, ""): None}
    passed = verdict is NOT_WORSE and (promise is not BETTER or looked <= 2)
    return {(promise, ""): float(passed)}


def judged_study(
    seed: int, *, spread: float, in_turns: bool, gain: float, question: GateQuestion = QUESTION
) -> tuple[int | None, VerdictKind | None, int]:
    """Return the number of starts that the gate names, its verdict with so many, and the starts at which it ended, of a candidate
    whose throughput and speed are `gain` more."""
    rng = np.random.default_rng(seed)
    known = {metric.name: [_earlier(one, in_turns)] for metric, one in _drawn(rng, EARLIER, spread, 0.0, in_turns)}
    needed = starts_to_pass(known, question)
    count = needed or 2
    rows = [
        ComparisonRow(
            level=level, metric=metric, baseline=1.0, candidate=1.0, starts=_start_values(one[place], in_turns)
        )
        for metric, one in _drawn(rng, count, spread, gain, in_turns)
        for place, level in enumerate(LEVELS)
    ]
    earlier = {"in_turns": known} if in_turns else {"earlier": {name: one for name, (one,) in known.items()}}
    side = Side(name="a", samples=(), **earlier)
    (found,) = decide_pairs([open_pair(rows, (side, side), LIMIT)], looks_until(count), question)
    return needed, found.gate, found.starts_looked


Drawn = list[tuple[Metric, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]]


def _drawn(rng: np.random.Generator, count: int, spread: float, gain: float, in_turns: bool) -> Drawn:
    """Logarithms of each metric by level: of the baseline's starts, the candidate's, and the standard errors of their
    differences as their slices have them. All metrics and levels of a start share its speed."""
    effects = rng.normal(0, spread, (2, count))
    found: Drawn = []
    for metric in METRICS:
        way = 1 if metric.higher_is_better else -1
        shift = np.log1p(way * gain)
        levels = []
        for _ in LEVELS:
            slices = rng.normal(0, SLICE_SD, (count, SLICES))
            noise = [np.zeros(count), slices.mean(axis=1)] if in_turns else rng.normal(0, POINT_ERROR, (2, count))
            a, b = (way * (effects[number] + noise[number]) for number in (0, 1))
            levels.append((a, b + shift, slices.std(axis=1, ddof=1) / SLICES**0.5))
        found.append((metric, levels))
    return found


def _start_values(drawn: tuple[np.ndarray, np.ndarray, np.ndarray], in_turns: bool) -> StartValues:
    a, b, errors = drawn
    slices = tuple(
        SliceDifference(float(value), float(error) ** 2 * SLICES * (SLICES - 1), 0.0, SLICES - 1)
        for value, error in zip(b - a, errors, strict=True)
    )
    return StartValues(
        baseline=a, candidate=b, error=(POINT_ERROR, POINT_ERROR), slice_differences=slices if in_turns else ()
    )


def _earlier(drawn: list[tuple[np.ndarray, np.ndarray, np.ndarray]], in_turns: bool) -> Starts:
    values = np.array([b - a if in_turns else a for a, b, _ in drawn]).T
    return Starts(LEVELS, values, np.full(len(LEVELS), POINT_ERROR), differences=in_turns)
