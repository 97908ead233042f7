"""The search for the highest load that meets an SLO: which level to measure next, and the result. Pure, so that it is tested with
tables of probes.

Levels are doubled from `lower` until one misses the SLO or `upper` meets it. A curve of the share of good requests over the level
is fitted to all points: the answer is the level up to which the SLO is met with `confidence`, and the bracket ends at the level
above which it is missed with the same confidence. Points are added just below and above the middle of the two, each pair with
twice as many requests, until the bracket is `tolerance` wide. No level outside the bounds is measured.

The share of bad requests is f + (1 - f) / (1 + exp(-s (log level - m))): a floor f that no lower load gets below, and a
logistic rise. Floor, slope and the highest level that qualifies have flat priors on a grid; the likelihood is binomial, with
the counts divided by the design effect of failures in bursts (Rao and Scott 1992, Biometrics 48). All probes count, those
above the answer too: to judge the levels near the answer one by one takes several times as many requests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from servebench.contracts.settings import SearchSettings

DESIGN_EFFECT_MAX = 4.0
GROWTH_MAX = 8
"""A point has at most so many times the requests for failures in bursts, and for the late stage."""
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

Outcome = Literal["found", "never_met", "always_met", "not_enough_data"]
Bracket = tuple[float | None, float | None]


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


@dataclass(frozen=True)
class NextProbe:
    """The level to measure next, how many points it already has, and the fewest requests (0: as many as usual)."""

    level: float
    repeat: int
    requests: int = 0


@dataclass(frozen=True, kw_only=True)
class SearchAnswer:
    """The result of a search. `level` is the answer; `bracket` is the highest level that qualifies and the lowest that does
    not: the truth lies between, with `confidence` at each end.

    `found`: the level. `never_met`: not even the lower bound qualifies (no level). `always_met`: every level up to the upper
    bound qualifies; the level is that bound. `not_enough_data`: the requests do not decide. `said` is the result as a
    sentence, `how` the rule.
    """

    of: str
    outcome: Outcome
    level: float | None
    bracket: Bracket
    confidence: float
    said: str
    how: str
    probes: tuple[Probe, ...]
    caveats: tuple[str, ...] = ()


def requests_needed(attainment: float, confidence: float) -> int:
    """Return the fewest requests, all good, that prove an attainment below 1: n / (n + z^2) >= a."""
    z = NormalDist().inv_cdf(confidence)
    return math.ceil(z * z * attainment / (1 - attainment))


def next_for_slo(probes: Sequence[Probe], search: SearchSettings, attainment: float) -> tuple[float, int] | None:
    """Return the next level of a search and its fewest requests; None when the search is over."""
    met = [probe.good >= attainment * probe.judged for probe in probes]
    top = max((probe.level for probe in probes), default=0.0)
    if all(met) and top < search.upper:
        return (min(2 * top, search.upper) if top else search.lower), 0
    found = crossing(probes, attainment, search.confidence)
    if _slo_decided(found, search):
        return None
    first = next((at for at, one in enumerate(met) if not one or probes[at].level >= search.upper), 0)
    stage = len(probes) - first - 1
    highest = max((probe.level for probe, one in zip(probes, met, strict=True) if one), default=search.lower)
    level = min(_beside(found, search, probes, above=stage % 2 == 0), 2 * highest, search.upper)
    effect = min(pooled_design_effect(probes, attainment), DESIGN_EFFECT_MAX)
    factor = effect * min(2 ** (stage // 2), GROWTH_MAX)
    return max(level, search.lower), math.ceil(factor * requests_needed(attainment, search.confidence))


def _beside(found: Crossing, search: SearchSettings, probes: Sequence[Probe], *, above: bool) -> float:
    """Return the level just above or below the middle of where the crossing lies; of two whole ones that with fewer requests."""
    if search.of == "concurrency":
        below = float(math.floor(found.middle))
        return min((below + 1, below), key=lambda level: sum(p.judged for p in probes if p.level == level))
    step = 1 + search.tolerance / 2
    level = min(found.high, found.middle * step) if above else max(found.low, found.middle / step)
    return float(f"{level:.4g}")


def _slo_ends(found: Crossing, search: SearchSettings) -> tuple[float, float]:
    """Return the highest level that meets the SLO, and the lowest that does not."""
    if search.of == "concurrency":
        return math.floor(found.low), math.floor(found.high) + 1.0
    return float(f"{found.low:.4g}"), float(f"{found.high:.4g}")


def _slo_decided(found: Crossing, search: SearchSettings) -> bool:
    low, high = _slo_ends(found, search)
    # the highest level that may qualify
    best = high - 1 if search.of == "concurrency" else high
    return (
        low >= search.upper
        or found.high < search.lower
        or (low >= search.lower and best <= low * (1 + search.tolerance))
    )


class Search:
    """A search in progress. `next_probe` and `answer` are functions of the probes so far; it knows no engines."""

    def __init__(self, search: SearchSettings, attainment: float) -> None:
        self.search = search
        self.attainment = attainment
        self.probes: list[Probe] = []
        """The measured points."""

    def next_probe(self) -> NextProbe | None:
        """Return what to measure next; None when the search is over."""
        if self._limit() or (chosen := self._next()) is None:
            return None
        level, requests = chosen
        return NextProbe(level, sum(probe.level == level for probe in self.probes), requests)

    def answer(self, interrupted: bool = False) -> SearchAnswer:
        """Return the result of the probes so far."""
        search = self.search
        caveats = list(self._warned_levels())
        if interrupted:
            caveats.append("the search was interrupted: more points would have narrowed the bracket")
        elif (limit := self._limit()) and self._next() is not None:
            caveats.append(f"the search stopped at load.search.{limit}: the bracket is wide")
        outcome, level, bracket, said = self._finding()
        return SearchAnswer(
            of=search.of,
            outcome=outcome,
            level=level,
            bracket=bracket,
            said=said,
            confidence=search.confidence,
            how=(
                f"a curve of the share that meets the SLO, which must be {self.attainment:g}, by level, through all points; "
                f"doubling from {search.lower:g}, then points on both sides of where the curve crosses"
            ),
            probes=tuple(self.probes),
            caveats=tuple(caveats),
        )

    def _limit(self) -> str:
        """Return the limit that the search has reached, as a setting; empty for none."""
        search = self.search
        if len(self.probes) >= search.max_probes:
            return f"max_probes={search.max_probes}"
        if search.budget_s is not None and sum(probe.seconds for probe in self.probes) >= search.budget_s:
            return f"budget_s={search.budget_s:g}"
        return ""

    @property
    def _known(self) -> list[Probe]:
        return [probe for probe in self.probes if probe.says_something]

    def _next(self) -> tuple[float, int] | None:
        """Return the next level and its fewest requests; None when the search is over."""
        if self.probes and not self.probes[-1].says_something:
            level = self.probes[-1].level
            tried = sum(probe.level == level for probe in self.probes)
            return (level, 0) if tried < self.search.probes_per_level else None
        return next_for_slo(self._known, self.search, self.attainment)

    def _finding(self) -> tuple[Outcome, float | None, Bracket, str]:
        """Return what the probes say: the first fields of SearchAnswer, and its sentence."""
        search, unit = self.search, "concurrency" if self.search.of == "concurrency" else "rate (req/s)"
        unknown = f"not enough data to say whether any {unit} meets the SLO"
        if not self._known:
            return "not_enough_data", None, (None, None), unknown
        found = crossing(self._known, self.attainment, search.confidence)
        low, high = _slo_ends(found, search)
        sure = f"{100 * search.confidence:g}% confidence"
        if low >= search.upper:
            said = f"every {unit} up to {search.upper:g}, the upper bound, meets the SLO ({sure})"
            return "always_met", search.upper, (search.upper, None), said
        if found.high < search.lower:
            said = f"no {unit} meets the SLO: {search.lower:g}, the lower bound, does not ({sure})"
            return "never_met", None, (None, search.lower), said
        above = high if high <= search.upper else None
        if low < search.lower:
            return "not_enough_data", None, (None, above), unknown
        not_met = "" if above is None else f"; from {above:g} on it does not ({sure})"
        return "found", low, (low, above), f"{unit} {low:g} meets the SLO ({sure}){not_met}"

    def _warned_levels(self) -> list[str]:
        by_code: dict[str, list[str]] = {}
        for probe in self.probes:
            for code in probe.doubts:
                by_code.setdefault(code, []).append(f"{probe.level:g}")
        return [f"{code} at {', '.join(dict.fromkeys(levels))}" for code, levels in by_code.items()]


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
