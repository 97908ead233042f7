"""Cells of `study.until=decided`: how often its decisions are wrong, and what they cost in engine time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from calibration.cells import CalibrationCell, Outcome, Promise
from calibration.simulate import Plant, run_data, simulate_run, simulate_start
from servebench.analysis.estimate import error_of
from servebench.analysis.start_model import Starts
from servebench.analysis.stored_runs import samples_of
from servebench.analysis.verdict.looks import decide, looks_until
from servebench.analysis.verdict.model import METRICS, OPEN, SLOWER, Comparison, Side, VerdictKind

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
    text="`study.until=decided` calls one of two equal engines faster, at any level (two levels)",
    bar=0.05,
)
EQUAL = Promise(
    name="decided_equal",
    text="`study.until=decided` calls engines that differ by the margin equal",
    bar=0.05,
)
RIGHT = Promise(
    name="decided_found",
    text=f"`study.until=decided` calls a slower engine slower within {STARTS_MOST} starts",
    bar=0.80,
    at_most=False,
)
COST = Promise(
    name="decided_time",
    text="`study.until=decided` finds a slower engine in at most half of the time of five fixed starts",
    bar=0.5,
    kind="bias",
)

Stored = Mapping[str, Starts]
"""Earlier starts by metric; empty where none are known."""


def cells() -> Iterator[CalibrationCell]:
    """Yield the cells."""
    for spread in (0.005, 0.01, 0.03, 0.05):
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
    levels = {level: [row for row in rows if row.level == level] for level in dict.fromkeys(row.level for row in rows)}
    found = {}
    for metric in METRICS:
        if all(row.get(metric.name) for row in rows):
            logs = np.log([[row[metric.name] for row in own] for own in levels.values()]).T
            errors = np.array([error_of(own, metric.name) for own in levels.values()])
            found[metric.name] = Starts(tuple(levels), logs, errors)
    return found


def _study(seed: int, stored: Stored, spread: float, slowdown: float) -> tuple[Comparison, float]:
    """Run a study of two engines that ends when it has decided. Return what it has decided, and its engine time as a share
    of that of FIXED_STARTS starts of both."""
    plants = [PLANT.planted(start_sd=spread, slowdown=one) for one in (1.0, slowdown)]
    drawn = random.Random(seed).sample(range(STORED), EARLIER)
    earlier = {name: replace(one, values=one.values[drawn]) for name, one in stored.items()}
    sides = [Side(name=name, samples=(), earlier=earlier) for name in "ab"]
    rounds = [0.0]
    for start in range(STARTS_MOST):
        spent = 0.0
        for index, (side, plant) in enumerate(zip(sides, plants, strict=True)):
            run, seconds = simulate_start(plant, f"{seed}/{side.name}", seed=seed, start=start, levels=LEVELS)
            samples = (*side.samples, *samples_of(run_data(run, plant, side.name)))
            sides[index] = replace(side, samples=samples)
            spent += seconds
        rounds.append(spent)
        (found,) = decide([(sides[0], sides[1])], margin=MARGIN, looks=looks_until(STARTS_MOST))
        if found.answered:
            break
    return found, sum(rounds) / (FIXED_STARTS * rounds[1])


def _called(seed: int, stored: Stored, *, promise: Promise, spread: float, slowdown: float) -> Outcome:
    """Return whether one of two equal engines is called faster, or engines that differ by the margin equal."""
    found, _ = _study(seed, stored, spread, slowdown)
    first = found.first.result if found.first is not None else OPEN
    if promise is EQUAL:
        return {(promise, ""): float(first is VerdictKind.EQUAL)}
    return {
        (promise, ""): float(bool({VerdictKind.FASTER, SLOWER, VerdictKind.MIXED} & {first, *found.levels.values()}))
    }


def _slowed(seed: int, stored: Stored, *, spread: float, slowdown: float) -> Outcome:
    """Return whether a slowdown is found, and the share of the fixed engine time that the study took."""
    found, share = _study(seed, stored, spread, slowdown)
    return {(RIGHT, ""): float(found.first is not None and found.first.result is SLOWER), (COST, ""): share}
