"""Cells of engines that take turns slice by slice, on a machine that wanders."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from calibration.cells import CalibrationCell, Outcome, Promise
from calibration.comparisons import FOUND, VERDICTS
from calibration.simulate import Plant, SimulatedRun, run_data, simulate_in_turns
from servebench.analysis.pairing import compare_speed
from servebench.analysis.verdict.gate import GATED
from servebench.analysis.verdict.looks import decide_pairs, open_pair
from servebench.analysis.verdict.model import EQUAL, FASTER, MIXED, SLOWER, ComparisonRow, Side, StartValues
from servebench.analysis.verdict.slices import difference_of, slice_differences, values_and_errors
from servebench.contracts.estimate import Z_95
from servebench.contracts.level import Level
from servebench.contracts.precision import LOOKS
from servebench.load.plan.slices import AddedStarts, Rotation, plan_slices

MARGIN, STARTS_MOST = 0.05, LOOKS[-1]
HOLDS = Promise(
    name="slices_coverage",
    text="the 95% interval of the ratio of two starts that take turns holds the true one",
    bar=0.93,
    at_most=False,
)
WIDTH = Promise(
    name="slices_width", text="it is at most 1.5 times as wide as the ratios scatter", bar=1.5, kind="width"
)
AA = Promise(
    name="slices_aa",
    text="`compare` calls two equal engines that take turns faster or slower",
    bar=0.05,
)
POWER = Promise(
    name="slices_power10",
    text="a slowdown of 10% is found with three starts that take turns and differ by 1%",
    bar=0.95,
    at_most=False,
)
DECIDED_AA = Promise(
    name="slices_decided_aa",
    text="`study.until=decided` calls one of two equal engines that take turns faster or slower",
    bar=0.05,
)
DECIDED_EQUAL = Promise(
    name="slices_decided_equal",
    text=f"it calls engines that take turns and differ by the margin ({MARGIN:.0%}) equal",
    bar=0.05,
)
DECIDED_SOON = Promise(
    name="slices_decided_soon",
    text="it calls equal engines that take turns equal within four minutes of engines that start in a second",
    bar=0.90,
    at_most=False,
)
DECIDED_FOUND = Promise(
    name="slices_decided_found",
    text="it calls an engine that is 10% slower so within three such minutes",
    bar=0.90,
    at_most=False,
)

PLANT = Plant(words=("load.concurrency=[1,8]", "load.duration_s=30"))
"""Eight slices of 4 s each."""
METRICS = tuple(GATED[name] for name in ("output_throughput_tok_s", "ttft_ms_p50", "e2e_ms_p50"))
SLICE_SD, START_S, OVERHEAD_S, LEVEL_S, ANSWER_S = 0.04, 2.0, 2.0, 3.0, 0.6
"""How the ratios of slices of 4 s scatter, how long two starts take, what comes with them and with each level (two warm-ups), and
an answer, all as of real llama.cpp on two cores."""
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
    for starts, lost in ((2, 0.4), (3, 0.4), (2, 0.7)):
        trial = partial(_equal, plant=PLANT.planted(start_sd=0.01, machine_sd=0.10), starts=starts, lost=lost)
        yield CalibrationCell(promises=(AA,), name=f"{starts} starts a side, {lost:.0%} of slices lost", trial=trial)
    for lost in (0.0, 0.4):
        trial = partial(_slowed, plant=PLANT.planted(start_sd=0.01, machine_sd=0.10), starts=3, lost=lost)
        name = f"two levels{f', {lost:.0%} of slices lost' if lost else ''}"
        yield CalibrationCell(promises=(POWER,), name=name, share=0.5, trial=trial)
    for levels in (1, 4):
        for spread in (0.005, 0.01, 0.03, 0.05):
            name = f"{levels} level{'s' * (levels > 1)}, starts differ by {spread:.1%}"
            # engines whose starts differ by 3% take longer
            soon = spread <= 0.01
            for promises, gain in (
                ((DECIDED_AA, DECIDED_SOON) if soon else (DECIDED_AA,), 0.0),
                ((DECIDED_EQUAL,), MARGIN),
                *([((DECIDED_FOUND,), -0.1)] if soon else []),
            ):
                trial = partial(_decided, promises=promises, levels=levels, spread=spread, gain=gain)
                yield CalibrationCell(promises=promises, name=name, trial=trial)


def _decided(
    seed: int, _truth: None, *, promises: tuple[Promise, ...], levels: int, spread: float, gain: float
) -> Outcome:
    """Return what a study finds that adds starts, whose values are drawn, and whether it does in time."""
    rng = np.random.default_rng(seed)
    plan = plan_slices(2, 20.0, ANSWER_S, "", until=True, added=AddedStarts(levels=levels, start_s=START_S))
    assert plan is not None
    (opens_s, closes_s), *others = plan.slices[0]
    count, each_s = 1 + len(others), closes_s - opens_s
    level_s, listed = LEVEL_S + count * 2 * (each_s + plan.drain_s), [Level(number + 1) for number in range(levels)]
    rotation = Rotation.of(listed, START_S + OVERHEAD_S + LEVEL_S, level_s)
    levels_of = [len(rotation.of_start(start)) for start in range(STARTS_MOST)]
    # of later starts only the first level is warmed up
    warmed = [1 if start else count for start, count in enumerate(levels_of)]
    starts_s = [
        START_S + OVERHEAD_S + LEVEL_S * warm + (level_s - LEVEL_S) * own
        for warm, own in zip(warmed, levels_of, strict=True)
    ]
    scatter = SLICE_SD * (4.0 / (each_s - plan.lead_s)) ** 0.5
    effects = rng.normal(0, spread, (2, STARTS_MOST))
    rows = []
    for metric in METRICS:
        way = 1 if metric.higher_is_better else -1
        for level in listed:
            places = tuple(start for start in range(STARTS_MOST) if level in rotation.of_start(start))
            logs = rng.normal(0, scatter / 2**0.5, (2, STARTS_MOST, count))
            a, b = way * (logs + effects[:, :, None])
            b = b + np.log1p(way * gain) if way * gain > -1 else b
            a, b = a[list(places)], b[list(places)]
            known = tuple(difference_of([pair]) for pair in zip(a, b, strict=True))
            starts = StartValues(
                baseline=a.mean(axis=1),
                candidate=b.mean(axis=1),
                error=(0.03, 0.03),
                names=(tuple(map(str, places)),) * 2,
                places=(places,) * 2,
                slice_differences=known,
            )
            rows.append(ComparisonRow(level=level, metric=metric, baseline=1.0, candidate=1.0, starts=starts))
    side = Side(name="a", samples=())
    (found,) = decide_pairs([open_pair(rows, (side, side), MARGIN)])
    assert found.first is not None
    called, seconds = found.first.result, sum(starts_s[: found.starts_looked])
    answers = {
        DECIDED_AA: bool({FASTER, SLOWER, MIXED} & {called, *found.levels.values()}),
        DECIDED_EQUAL: called is EQUAL,
        DECIDED_SOON: called is EQUAL and seconds <= 240,
        DECIDED_FOUND: called is SLOWER and seconds <= 180,
    }
    return {(promise, ""): float(answers[promise]) for promise in promises}


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


def _equal(seed: int, _truth: None, *, plant: Plant, starts: int, lost: float = 0.0) -> Outcome:
    """Return whether two equal engines are called different."""
    return {(AA, ""): float(_compared(seed, plant, starts, 1.0, lost)[0] in VERDICTS)}


def _slowed(seed: int, _truth: None, *, plant: Plant, starts: int, lost: float) -> Outcome:
    """Return whether a slowdown is found in the first question."""
    return {(POWER, ""): float(_compared(seed, plant, starts, 1.10, lost)[1] == "slower")}


def _without(run: SimulatedRun, lost: float, seed: str) -> SimulatedRun:
    """Return a run of whose slices this share has no values, as of those in which another program took the cores."""
    rng, points = random.Random(seed), []
    for point in run.points:
        known = json.loads(point.row.slice_values or "{}")
        gone = [rng.random() < lost for _ in next(iter(known.values()), ())]
        left = {
            name: [None if one else value for one, value in zip(gone, own, strict=True)] for name, own in known.items()
        }
        points.append(replace(point, row=replace(point.row, slice_values=json.dumps(left))))
    return replace(run, points=tuple(points))


def _compared(seed: int, plant: Plant, starts: int, slowdown: float, lost: float = 0.0) -> tuple[str, str]:
    """Return the result of a comparison and of its first question."""
    plants = [_on_machine(plant.planted(slowdown=one), seed) for one in (1.0, slowdown)]
    runs = simulate_in_turns(plants, f"{seed}", seed=seed, starts=starts)
    if lost:
        runs = [_without(one, lost, f"{seed}/{number}") for number, one in enumerate(runs)]
    (found,) = compare_speed([(run_data(runs[0], plants[0], "a"), run_data(runs[1], plants[1], "b"))])
    assert found.first is not None
    assert found.first.method is not None
    # too few slices leave it to the points
    assert lost or found.first.method.slice_by_slice
    return found.result, found.first.result
