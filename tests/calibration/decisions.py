"""Cells of `study.until=decided`: how often its decisions are wrong, and what they cost in engine time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from calibration.cells import CalibrationCell, Outcome, Promise
from calibration.simulate import Plant, run_data, simulate_run, simulate_start
from servebench.analysis.stored_runs import side_of
from servebench.analysis.verdict.looks import DECIDING, decide, looks_until
from servebench.analysis.verdict.model import SLOWER, Comparison, Side, VerdictKind
from servebench.analysis.verdict.starts import spread_of
from servebench.contracts.level import Level

MARGIN = 0.03
FIXED_STARTS = 5
STARTS_MOST = 8
"""The most starts of a study here, in place of a budget."""
EARLIER, STORED = 8, 240
"""Starts of the set-up that earlier studies left, where some are known: drawn from so many (of 24 with one seed, the spread was a
quarter too small)."""
PLANT = Plant(words=("load.concurrency=[1,4]", "load.duration_s=15")).planted(wander_sd=0.005)
"""Points of one start differ by about 0.5%: as those of a minute do with the usual wander of 2%, which take four times as
long to simulate."""
LEVELS = ("c1", "c4")

WRONG = Promise(
    name="decided_aa",
    text="`study.until=decided` calls one of two equal engines faster in at most 5% of studies (two levels)",
    bar=0.05,
)
EQUAL = Promise(
    name="decided_equal",
    text="`study.until=decided` calls engines that differ by the margin equal in at most 5% of studies",
    bar=0.05,
)
RIGHT = Promise(
    name="decided_found",
    text=f"`study.until=decided` calls a slower engine slower at both levels within {STARTS_MOST} starts",
    bar=0.80,
    at_most=False,
)
COST = Promise(
    name="decided_time",
    text="`study.until=decided` takes at most half of the engine time of five fixed starts to find a slower engine",
    bar=0.5,
    kind="bias",
)

Stored = Mapping[tuple[Level, str], Sequence[float]]
"""The logarithms of each metric at each level of earlier starts; empty where none are known."""


def cells() -> Iterator[CalibrationCell]:
    """Yield the cells."""
    for spread in (0.01, 0.03):
        for earlier in (False, True):
            name = f"starts differ by {spread:.0%}" + (f", {EARLIER} earlier starts known" if earlier else "")
            truth = partial(_stored, spread) if earlier else dict
            for promise, slowdown, what in ((WRONG, 1.0, "equal engines"), (EQUAL, 1.0315, "3% slower")):
                trial = partial(_called, promise=promise, spread=spread, slowdown=slowdown)
                yield CalibrationCell(promises=(promise,), name=f"{what}, {name}", share=0.5, trial=trial, truth=truth)
            for slowdown in (1.05, 1.10):
                trial = partial(_slowed, spread=spread, slowdown=slowdown)
                what = f"{slowdown - 1:.0%} slower"
                yield CalibrationCell(
                    promises=(RIGHT, COST), name=f"{what}, {name}", share=0.5, trial=trial, truth=truth
                )


def _stored(spread: float) -> Stored:
    """Return what earlier starts of the set-up have measured."""
    rows = simulate_run(PLANT.planted(start_sd=spread), "stored", seed=1, starts=STORED).rows
    return {
        (level, metric.name): [float(np.log(row[metric.name])) for row in rows if row.level == level]
        for level in dict.fromkeys(row.level for row in rows)
        for metric in DECIDING
    }


def _study(seed: int, stored: Stored, spread: float, slowdown: float) -> tuple[Comparison, float]:
    """Run a study of two engines that ends when it has decided. Return what it has decided, and its engine time as a share
    of that of FIXED_STARTS starts of both."""
    plants = [PLANT.planted(start_sd=spread, slowdown=one) for one in (1.0, slowdown)]
    drawn = random.Random(seed).sample(range(STORED), EARLIER)
    known = {key: spread_of(np.array([logs[index] for index in drawn])) for key, logs in stored.items()}
    spreads = {key: one for key, one in known.items() if one is not None}
    sides = [Side(name=name, samples=(), spreads=spreads) for name in "ab"]
    levels: tuple[str, ...] = LEVELS
    rounds = [0.0]
    for start in range(STARTS_MOST):
        spent = 0.0
        for index, (side, plant) in enumerate(zip(sides, plants, strict=True)):
            run, seconds = simulate_start(plant, f"{seed}/{side.name}", seed=seed, start=start, levels=levels)
            samples = (*side.samples, *side_of(run_data(run, plant, side.name)).samples)
            sides[index] = Side(name=side.name, samples=samples, spreads=spreads)
            spent += seconds
        rounds.append(spent)
        (found,) = decide([(sides[0], sides[1])], margin=MARGIN, looks=looks_until(STARTS_MOST))
        levels = tuple(f"c{level}" for level in found.open_levels)
        if not levels:
            break
    return found, sum(rounds) / (FIXED_STARTS * rounds[1])


def _called(seed: int, stored: Stored, *, promise: Promise, spread: float, slowdown: float) -> Outcome:
    """Return whether one of two equal engines is called faster at a level, or engines that differ by the margin equal."""
    found, _ = _study(seed, stored, spread, slowdown)
    wrong = {VerdictKind.FASTER, SLOWER, VerdictKind.MIXED} if promise is WRONG else {VerdictKind.EQUAL}
    return {(promise, ""): float(bool(wrong & set(found.levels.values())))}


def _slowed(seed: int, stored: Stored, *, spread: float, slowdown: float) -> Outcome:
    """Return whether a slowdown is found at all levels, and the share of the fixed engine time that the study took."""
    found, share = _study(seed, stored, spread, slowdown)
    return {(RIGHT, ""): float(set(found.levels.values()) == {SLOWER}), (COST, ""): share}
