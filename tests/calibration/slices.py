"""Cells of engines that take turns slice by slice, on a machine that wanders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from calibration.cells import CalibrationCell, Outcome, Promise
from calibration.comparisons import FOUND, VERDICTS
from calibration.simulate import Plant, run_data, simulate_in_turns
from servebench.analysis.pairing import compare_speed
from servebench.analysis.verdict.slices import slice_differences, values_and_errors
from servebench.contracts.estimate import Z_95

HOLDS = Promise(
    name="slices_coverage",
    text="the 95% interval of the ratio of two starts that take turns holds the true one in at least 93%",
    bar=0.93,
    at_most=False,
)
WIDTH = Promise(
    name="slices_width", text="it is at most 1.5 times as wide as the ratios scatter", bar=1.5, kind="width"
)
AA = Promise(
    name="slices_aa",
    text="`compare` calls two equal engines that take turns faster or slower in at most 5% of comparisons (two levels)",
    bar=0.05,
)
POWER = Promise(
    name="slices_power10",
    text="a slowdown of 10% is found with three starts that take turns and differ by 1%",
    bar=0.95,
    at_most=False,
)

PLANT = Plant(words=("load.concurrency=[1,8]", "load.duration_s=30"))
"""Twelve slices of 2.5 s each."""
MACHINES = {"a steady machine": 0.0, "a machine that wanders by 10% over a minute": 0.10}


def cells() -> Iterator[CalibrationCell]:
    """Yield the cells."""
    for name, machine_sd in MACHINES.items():
        trial = partial(_ratio, plant=PLANT.planted(start_sd=0.0, machine_sd=machine_sd))
        yield CalibrationCell(promises=(HOLDS, WIDTH), name=name, trial=trial)
    for starts in (2, 3):
        for spread in (0.005, 0.01, 0.03):
            plant = PLANT.planted(start_sd=spread, machine_sd=0.10)
            name = f"{starts} starts a side, starts differ by {spread:.1%}"
            yield CalibrationCell(promises=(AA,), name=name, trial=partial(_equal, plant=plant, starts=starts))
    trial = partial(_slowed, plant=PLANT.planted(start_sd=0.01, machine_sd=0.10), starts=3)
    yield CalibrationCell(promises=(POWER,), name="two levels", share=0.5, trial=trial)


def _on_machine(plant: Plant, seed: int) -> Plant:
    return replace(plant, variation=replace(plant.variation, machine_seed=seed))


def _ratio(seed: int, _truth: None, *, plant: Plant) -> Outcome:
    """Return whether the interval of the ratio of two equal starts holds 1, and its width, by level and metric."""
    a, b = simulate_in_turns([_on_machine(plant, seed)] * 2, f"{seed}", seed=seed)
    found: dict[tuple[Promise, str], float | tuple[float, float] | None] = {}
    for x, y in zip(a.rows, b.rows, strict=True):
        for column, title in FOUND.items():
            known = values_and_errors(slice_differences([[x]], [[y]], column), np.zeros(1), 0.0)
            (value,), (error,) = (one.tolist() for one in known)
            half, line = Z_95 * error, f"{title}, {x.level.words}"
            found[HOLDS, line] = float(abs(value) <= half)
            found[WIDTH, line] = value, half
    return found


def _equal(seed: int, _truth: None, *, plant: Plant, starts: int) -> Outcome:
    """Return whether two equal engines are called different."""
    return {(AA, ""): float(_compared(seed, plant, starts, 1.0)[0] in VERDICTS)}


def _slowed(seed: int, _truth: None, *, plant: Plant, starts: int) -> Outcome:
    """Return whether a slowdown is found in the first question."""
    return {(POWER, ""): float(_compared(seed, plant, starts, 1.10)[1] == "slower")}


def _compared(seed: int, plant: Plant, starts: int, slowdown: float) -> tuple[str, str]:
    """Return the result of a comparison and of its first question."""
    plants = [_on_machine(plant.planted(slowdown=one), seed) for one in (1.0, slowdown)]
    runs = simulate_in_turns(plants, f"{seed}", seed=seed, starts=starts)
    (found,) = compare_speed([(run_data(runs[0], plants[0], "a"), run_data(runs[1], plants[1], "b"))])
    assert found.first is not None
    assert found.first.method is not None
    assert found.first.method.slice_by_slice
    return found.result, found.first.result
