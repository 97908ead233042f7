"""How often two detectors of a steady state err on the same simulated points: `not_stationary` of servebench, and that of MLPerf
Endpoints (`analysis/mlperf`), by which its rules choose the window that counts.

Eight users send REQUESTS requests with answers of 64 ± 40 tokens; a pass over the data set has PASS of them. The floor of ten
minutes for a window is not applied, since it concerns no detector.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from calibration.simulate import STEADY, Plant, simulate_run
from calibration.windows import SCENARIOS, window_of
from servebench.analysis.mlperf.steady import SteadyState, by_issue, steady_state
from servebench.analysis.warnings.catalog import NOT_STATIONARY
from servebench.report.export.markdown import table
from support.records import requests_frame

REQUESTS = 1000
PASS = 50
SCENARIO = SCENARIOS[0]


@dataclass(frozen=True, kw_only=True)
class Course:
    """What the speed of the engine does: deviations all of the time, and in a window that begins at a second and has a length."""

    name: str
    deviations: Mapping[str, float] = field(default_factory=dict)
    planted: Callable[[float, float], Mapping[str, float]] = lambda _begin, _length: {}


def _drift(size: float) -> Callable[[float, float], Mapping[str, float]]:
    return lambda begin, length: {"shift": size, "shift_s": begin, "shift_over_s": length}


def _step(size: float, at: float) -> Callable[[float, float], Mapping[str, float]]:
    return lambda begin, length: {"shift": size, "shift_s": begin + at * length}


COURSES = (
    Course(name="steady", deviations={"wander_sd": 0.0}),
    Course(name="steady, wanders by 2% over 5 s"),
    Course(name="steady, wanders by 5% over 10 s", deviations={"wander_sd": 0.05, "wander_s": 10.0}),
    Course(name="steady, wanders by 2% over 60 s", deviations={"wander_s": 60.0}),
    Course(name="slows down by 5%", planted=_drift(0.05)),
    Course(name="slows down by 10%", planted=_drift(0.10)),
    Course(name="slows down by 20%", planted=_drift(0.20)),
    Course(name="15% slower from the middle on", planted=_step(0.15, 0.5)),
    Course(name="15% slower in its last fifth", planted=_step(0.15, 0.8)),
    Course(name="30% slower from the middle on", planted=_step(0.30, 0.5)),
)


@dataclass(frozen=True, kw_only=True)
class Detected:
    """What both say of a point: whether servebench warns or cuts a warm-up, and the steady state of MLPerf Endpoints."""

    warned: bool
    cut: bool
    steady: SteadyState

    @property
    def flagged(self) -> bool:
        """Whether MLPerf's detector tells anything but a steady state, a later step included."""
        return self.steady.verdict != "STEADY STATE"

    @property
    def ramp(self) -> bool:
        """Whether it calls a point steady after it took more than one pass for a ramp."""
        return not self.flagged and self.steady.cropped > 1


def detected(course: Course, seed: int) -> Detected:
    """Return what both say of one point."""
    begin, length = window_of(SCENARIO, REQUESTS, 1.0)
    plant: Plant = SCENARIO.plant(REQUESTS).planted(**{**vars_of(course), **course.planted(begin, length)})
    run = simulate_run(plant, f"{seed}", seed=seed)
    (point,) = run.points
    warned = NOT_STATIONARY.code in point.codes
    steady = steady_state(by_issue(requests_frame(run.records[0])), PASS, 0.0, floor_s=0.0)
    return Detected(warned=warned, cut=bool(point.row.warmup_cut_s) and not warned, steady=steady)


def vars_of(course: Course) -> Mapping[str, float]:
    """Return the deviations of a course, on top of those of an engine without a spread between starts."""
    return {"start_sd": STEADY.start_sd, **course.deviations}


def steady_page(repetitions: int, seed: int, progress: Callable[[str], None], cell: str = "") -> str:
    """Return the table as Markdown, with so many points of each course whose name has `cell` in it."""
    rows = []
    for course in COURSES:
        if cell not in course.name:
            continue
        rng = random.Random(f"{seed}/steady/{course.name}")
        found = [detected(course, rng.randrange(1 << 31)) for _ in range(repetitions)]
        shares = (fmean(getattr(one, name) for one in found) for name in ("warned", "cut", "flagged", "ramp"))
        rows.append([course.name, *(f"{share:.0%}" for share in shares)])
        progress(" | ".join(rows[-1]))
    head = ["speed", "servebench: not_stationary", "cuts a warm-up", "MLPerf: not steady", "cuts a ramp"]
    return "\n".join([*table(head, rows), ""])
