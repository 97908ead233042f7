"""How many requests meet the SLO at each level, as a curve, and so the highest level at which enough of them do. Pure.

The share of bad requests is f + (1 - f) / (1 + exp(-s (log level - m))): a floor f that no lower load gets below, and a
logistic rise. Floor, slope and the highest level that qualifies have flat priors on a grid; the likelihood is binomial, with
the counts divided by the design effect of failures in bursts (Rao and Scott 1992, Biometrics 48). All probes count, those
above the answer too: to judge the levels near the answer one by one takes several times as many requests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BURST, BURST_WEIGHT = 8.0, 4.0
"""Until failures show how they come they are taken for bursts of so many; this counts like so many bad requests."""

NEAR_BAD = 5.0
"""Points with more than so many times the bad requests that the SLO allows say nothing of bursts: neighbours are bad, too."""

OVERLOADED = 0.2
"""A level with a larger share of bad requests is certainly too high, and says little of where the curve crosses the SLO: it
counts as OVERLOADED_REQUESTS requests."""
OVERLOADED_REQUESTS = 10.0

FLOORS = np.array([0.0, 0.2, 0.4, 0.7, 1.15, 1.7, 2.5, 5.0])
"""Of the bad requests that the SLO allows. With a floor above 1 no level qualifies."""
SLOPES = np.geomspace(0.5, 1000.0, 15)
LEVELS = 400


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The part of a point that a search uses. `good` of `judged` requests met the SLO, the others in bursts of
    `design_effect` (null: none missed it). Its window took `seconds`. `usable` is false if the point says nothing about its level
    (the clock was stepped); `doubts` are its warning codes."""

    point: str
    level: float
    good: int = 0
    judged: int = 0
    design_effect: float | None = None
    seconds: float = 0.0
    usable: bool = True
    doubts: tuple[str, ...] = ()

    @property
    def says_something(self) -> bool:
        """Whether it says anything about its level."""
        return self.usable and self.judged > 0


@dataclass(frozen=True, slots=True)
class Crossing:
    """The highest level that meets the SLO: it is at least `low` and at most `high`, each with the given confidence, and
    `middle` is its median; 0 stands for none."""

    low: float
    middle: float
    high: float


def pooled_design_effect(probes: Sequence[Probe], attainment: float) -> float:
    """Return the design effect of the failures of all probes, weighted by how many each had."""
    allowed = NEAR_BAD * (1 - attainment)
    seen = [(p.judged - p.good, p.design_effect) for p in probes if p.judged - p.good <= allowed * p.judged]
    known = [(bad, effect) for bad, effect in seen if effect is not None]
    total = sum(bad for bad, _ in known) + BURST_WEIGHT
    return max(1.0, (sum(bad * effect for bad, effect in known) + BURST * BURST_WEIGHT) / total)


def crossing(probes: Sequence[Probe], attainment: float, confidence: float) -> Crossing:
    """Return where the curve through the probes crosses the SLO. At least one probe has requests; `attainment` is below 1."""
    allowed = 1 - attainment
    measured = [probe.level for probe in probes]
    at = np.linspace(math.log(min(measured) / 2), math.log(max(measured) * 2), LEVELS)
    floor = np.minimum(FLOORS * allowed, 0.5)
    possible = floor < allowed
    # the curve reaches the allowed share at `at`; where its floor is higher, `at` is the middle of its rise
    rise = np.where(possible, (allowed - floor) / (1 - floor), 0.5)
    offset = np.log(rise / (1 - rise))
    pooled = pooled_design_effect(probes, attainment)
    log_likelihood = np.zeros((at.size, SLOPES.size, floor.size))
    for probe in probes:
        if not probe.judged:
            continue
        bad = 1 - probe.good / probe.judged
        count = probe.judged / max(pooled, probe.design_effect or 1.0)
        if bad > OVERLOADED:
            count = min(count, OVERLOADED_REQUESTS)
        steps = SLOPES[None, :, None] * (math.log(probe.level) - at)[:, None, None]
        share = floor + (1 - floor) / (1 + np.exp(-np.clip(offset + steps, -40, 40)))
        share = np.clip(share, 1e-9, 1 - 1e-9)
        log_likelihood += count * (bad * np.log(share) + (1 - bad) * np.log1p(-share))
    weight = np.exp(log_likelihood - log_likelihood.max()).sum(axis=1)
    weight /= weight.sum()
    never = float(weight[:, ~possible].sum())
    below = never + np.cumsum(weight[:, possible].sum(axis=1))

    def quantile(share: float) -> float:
        return 0.0 if share < never else math.exp(float(np.interp(share, below, at)))

    return Crossing(quantile(1 - confidence), quantile(0.5), quantile(confidence))
