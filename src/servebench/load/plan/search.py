"""The search for a level: which one to measure next, and the result. Pure, so that it is tested with tables of probes.

Two goals, each reached with as few points as possible:

- `slo`: the highest level at which the share of good requests is `slo.attainment` or more. A level is *met* when the
  lower end of the one-sided Wilson score interval (Wilson 1927, J. Am. Stat. Assoc. 22) of that share reaches
  `attainment`, *missed* when the upper end is below it, and undecided otherwise: then it is measured again and the
  counts are pooled, at most `probes_per_level` times. An undecided level never counts as met. Requests fail in bursts: the
  counts are divided by the design effect, which is that of all points of the search together, for one that saw no failure
  cannot tell how they come. The highest level that is met is measured once more before it is the answer.
- `saturation`: where more load no longer increases throughput. In a closed loop: the smallest concurrency with `share` of
  the highest output throughput seen; doubling stops after two doublings that each brought less than 1 / `share` - 1. In an
  open loop: the highest rate that the engine keeps up with, that is, the requests in flight certainly grow by less than
  1 - `share` of the arrivals.

Levels are doubled from `lower` until one is missed or `upper` is met; then the bracket is bisected (in the logarithm)
until it is `tolerance` wide. No level outside the bounds is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal

from servebench.contracts.settings import SearchSettings
from servebench.util.proportions import wilson

FLAT_DOUBLINGS = 2

Outcome = Literal["found", "never_met", "always_met", "not_enough_data"]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The part of a point that a search uses. `good` of `judged` requests met the SLO, the others in bursts of
    `design_effect` (null: none missed it); `kept_up` is, in an open loop, the share of the arrivals that did not stay in
    flight. `usable` is false if the point
    says nothing about its level (the clock was stepped); `doubts` are its warning codes."""

    point: str
    level: float
    good: int = 0
    judged: int = 0
    design_effect: float | None = None
    throughput_tok_s: float | None = None
    kept_up: float | None = None
    usable: bool = True
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SearchAnswer:
    """The result of a search. `level` is the answer; `bracket` is the highest level that qualifies and the lowest that
    does not.

    `found`: the level. `never_met`: not even the lower bound qualifies (no level). `always_met`: every level up to the upper
    bound qualifies; the level is that bound. `not_enough_data`: the requests do not decide. `said` is the result as a
    sentence, `how` the rule.
    """

    goal: str
    of: str
    outcome: Outcome
    level: float | None
    bracket: tuple[float | None, float | None]
    confidence: float | None
    said: str
    how: str
    probes: tuple[Probe, ...]
    caveats: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain data for a file."""
        return asdict(self)


def requests_needed(attainment: float, confidence: float) -> int:
    """Return the fewest requests, all good, that prove an attainment: n / (n + z^2) >= a; 1 for an attainment of 1."""
    z = NormalDist().inv_cdf(confidence)
    if attainment >= 1:
        return 1
    return math.ceil(z * z * attainment / (1 - attainment))


BAD_SHARE_MAX = 0.2
"""Points with a larger share of bad requests are overloaded: that those are neighbours says nothing of bursts."""


def pooled_design_effect(probes: Sequence[Probe]) -> float:
    """Return the design effect of the failures of all probes, weighted by how many each had; 1 without failures."""
    seen = [
        (probe.judged - probe.good, probe.design_effect)
        for probe in probes
        if probe.usable
        and probe.design_effect is not None
        and probe.judged - probe.good <= BAD_SHARE_MAX * probe.judged
    ]
    total = sum(bad for bad, _ in seen)
    return max(1.0, sum(bad * effect for bad, effect in seen) / total) if total else 1.0


def judge_slo(probes: Sequence[Probe], attainment: float, confidence: float, design_effect: float = 1.0) -> bool | None:
    """Whether a level meets the SLO, by the pooled counts of its points; None when they do not decide.

    An attainment of 1 requires every request to be good, which no sample can prove: it is met when none was bad.
    """
    good = sum(probe.good for probe in probes if probe.usable)
    judged = sum(probe.judged for probe in probes if probe.usable)
    if attainment >= 1:
        return good == judged if judged else None
    effective = math.floor(judged / design_effect)
    bad = min(effective, math.ceil((judged - good) / design_effect))
    low, high = wilson(effective - bad, effective, confidence, one_sided=True)
    if low >= attainment:
        return True
    return False if high < attainment else None


def judge_kept_up(probes: Sequence[Probe], share: float) -> bool | None:
    """Whether the engine kept up with a rate, by the mean over the points of the level; None without data."""
    seen = [probe.kept_up for probe in probes if probe.usable and probe.kept_up is not None]
    return sum(seen) / len(seen) >= share if seen else None


def split_bracket(low: float, high: float, *, whole: bool, tolerance: float) -> float | None:
    """Return the level in the middle of a bracket, in the logarithm; None when the bracket is narrow enough."""
    if high <= low * (1 + tolerance) or (whole and high - low <= 1):
        return None
    middle = math.sqrt(low * high)
    if not whole:
        return float(f"{middle:.4g}")
    return float(min(max(round(middle), int(low) + 1), int(high) - 1))


def next_in_bracket(judged: Mapping[float, bool | None], search: SearchSettings) -> float | None:
    """Return the next level of a search for the highest level that is met; None when the search is over."""
    if search.lower not in judged:
        return search.lower
    met, unmet = _bracket(judged)
    if met is None:
        return None
    if unmet is None:
        return None if met >= search.upper else min(2 * met, search.upper)
    return split_bracket(met, unmet, whole=search.of == "concurrency", tolerance=search.tolerance)


def next_for_knee(throughput: Mapping[float, float], search: SearchSettings) -> float | None:
    """Return the next concurrency of a search for the knee; None when the search is over."""
    if search.lower not in throughput:
        return search.lower
    top = max(throughput)
    if top < search.upper and not _flat(throughput, search.share):
        return min(2 * top, search.upper)
    low, high = knee_bracket(throughput, search.share)
    return None if low is None else split_bracket(low, high, whole=True, tolerance=search.tolerance)


def knee_bracket(throughput: Mapping[float, float], share: float) -> tuple[float | None, float]:
    """Return the highest level below the knee (None when the first level is the knee), and the knee."""
    enough = share * max(throughput.values())
    knee = min(level for level, value in throughput.items() if value >= enough)
    below = [level for level in throughput if level < knee]
    return (max(below) if below else None), knee


def _flat(throughput: Mapping[float, float], share: float) -> bool:
    """Whether the last two doublings each brought less than 1 / share - 1 over the best before them."""
    values = [throughput[level] for level in sorted(throughput)]
    if len(values) <= FLAT_DOUBLINGS:
        return False
    return all(share * values[-i] < max(values[:-i]) for i in range(1, FLAT_DOUBLINGS + 1))


def _bracket(judged: Mapping[float, bool | None]) -> tuple[float | None, float | None]:
    """Return the highest met level below the lowest one that is not met, and the latter."""
    unmet = min((level for level, met in judged.items() if met is not True), default=None)
    met = max((level for level, is_met in judged.items() if is_met and (unmet is None or level < unmet)), default=None)
    return met, unmet


class Search:
    """A search in progress. `next_level` and `answer` are functions of the probes so far; it knows no engines."""

    def __init__(self, search: SearchSettings, attainment: float) -> None:
        self.search = search
        self.attainment = attainment
        self.probes: list[Probe] = []

    def add(self, probe: Probe) -> None:
        """Add a measured point."""
        self.probes.append(probe)

    @property
    def design_effect(self) -> float:
        """By how much bursts of failures reduce what requests say, from all points so far."""
        return pooled_design_effect(self.probes)

    def next_level(self) -> tuple[float, int] | None:
        """Return the next level to measure and the number of points that it already has; None when the search is over."""
        if len(self.probes) >= self.search.max_probes:
            return None
        level = self._undecided_level() or self._new_level() or self._unconfirmed_level()
        return None if level is None else (level, len(self._probes_at(level)))

    def answer(self, interrupted: bool = False) -> SearchAnswer:
        """Return the result of the probes so far."""
        search = self.search
        by_throughput = search.goal == "saturation" and search.of == "concurrency"
        outcome, level, bracket, said = self._knee() if by_throughput else self._highest()
        caveats = list(self._warned_levels())
        if interrupted:
            caveats.append("the search was interrupted: more points would have narrowed the bracket")
        elif len(self.probes) >= search.max_probes and (self._undecided_level() or self._new_level()) is not None:
            caveats.append(f"the search stopped at load.search.max_probes={search.max_probes}: the bracket is wide")
        if by_throughput and outcome == "found" and not _flat(self._doublings(), search.share):
            caveats.append(
                "throughput had not levelled off at the upper bound: with a higher load.search.upper the knee may be higher"
            )
        return SearchAnswer(
            goal=search.goal,
            of=search.of,
            outcome=outcome,
            level=level,
            bracket=bracket,
            confidence=search.confidence if search.goal == "slo" else None,
            said=said,
            how=self._how(),
            probes=tuple(self.probes),
            caveats=tuple(caveats),
        )

    def _probes_at(self, level: float) -> list[Probe]:
        return [probe for probe in self.probes if probe.level == level]

    def _undecided_level(self) -> float | None:
        """Return the last level if it is undecided and may be measured again."""
        if not self.probes:
            return None
        level = self.probes[-1].level
        seen = self._probes_at(level)
        return level if len(seen) < self.search.probes_per_level and self._judge(seen) is None else None

    def _unconfirmed_level(self) -> float | None:
        """Return the answer of an SLO search if it rests on a single point: of many tested levels one passes by luck."""
        if self.search.goal != "slo":
            return None
        met, _ = _bracket(self._judged())
        return met if met is not None and len(self._probes_at(met)) == 1 else None

    def _new_level(self) -> float | None:
        if self.search.goal == "saturation" and self.search.of == "concurrency":
            measured = self._throughput()
            if not measured and self.probes:
                return None
            return next_for_knee(measured, self.search)
        return next_in_bracket(self._judged(), self.search)

    def _judge(self, probes: Sequence[Probe]) -> bool | None:
        if self.search.goal == "slo":
            return judge_slo(probes, self.attainment, self.search.confidence, self.design_effect)
        if self.search.of == "rate":
            return judge_kept_up(probes, self.search.share)
        return True if any(probe.usable and probe.throughput_tok_s is not None for probe in probes) else None

    def _judged(self) -> dict[float, bool | None]:
        return {probe.level: self._judge(self._probes_at(probe.level)) for probe in self.probes}

    def _throughput(self) -> dict[float, float]:
        """Return the mean over the points of each level; 0 for a level that could not be measured, which ends the doubling."""
        found: dict[float, float] = {}
        for level in dict.fromkeys(probe.level for probe in self.probes):
            seen = [p.throughput_tok_s for p in self._probes_at(level) if p.usable and p.throughput_tok_s is not None]
            found[level] = sum(seen) / len(seen) if seen else 0.0
        return found if any(found.values()) else {}

    def _doublings(self) -> dict[float, float]:
        """Return the levels of the doubling, without those of the bisection, which are lower than one before them."""
        measured, climbed = self._throughput(), 0.0
        found = {}
        for level, value in measured.items():
            if level > climbed:
                found[level], climbed = value, level
        return found

    def _highest(self) -> tuple[Outcome, float | None, tuple[float | None, float | None], str]:
        judged = self._judged()
        met, unmet = _bracket(judged)
        what, what_not = ("meets the SLO", "does not") if self.search.goal == "slo" else ("is sustained", "is not")
        unit = self._unit()
        if met is None:
            if unmet is None or judged[unmet] is None:
                return "not_enough_data", None, (None, unmet), f"not enough data to say whether any {unit} {what}"
            return "never_met", None, (None, unmet), f"no {unit} {what}: {unmet:g}, the lower bound, {what_not}"
        if unmet is None:
            if met < self.search.upper:
                return "not_enough_data", met, (met, None), f"{unit} {met:g} {what}; nothing above it was measured"
            return "always_met", met, (met, None), f"every {unit} up to {met:g}, the upper bound, {what}"
        above = f"{unmet:g} {what_not}" if judged[unmet] is False else f"{unmet:g} is undecided"
        return "found", met, (met, unmet), f"{unit} {met:g} is the highest that {what} ({above})"

    def _knee(self) -> tuple[Outcome, float | None, tuple[float | None, float | None], str]:
        measured = self._throughput()
        if len(measured) < FLAT_DOUBLINGS:
            return "not_enough_data", None, (None, None), "not enough data to see where throughput levels off"
        low, knee = knee_bracket(measured, self.search.share)
        best, top = max(measured.values()), max(measured)
        if top >= self.search.upper and knee >= self.search.share * top:
            # throughput proportional to concurrency reaches 95% of its maximum at 95% of the bound
            said = f"throughput still grows at concurrency {top:g}, the upper bound ({measured[top]:.4g} tok/s)"
            return "always_met", top, (top, None), said
        share = measured[knee] / best
        said = (
            f"concurrency {knee:g} gives {measured[knee]:.4g} tok/s, {100 * share:.3g}% of the highest throughput seen"
        )
        return "found", knee, (low, knee), said

    def _unit(self) -> str:
        return "concurrency" if self.search.of == "concurrency" else "rate (req/s)"

    def _how(self) -> str:
        search = self.search
        if search.goal == "slo":
            return (
                f"a level is met when the one-sided {100 * search.confidence:g}% Wilson lower bound of the share of good "
                f"requests is {self.attainment:g} or more; doubling from {search.lower:g}, then bisection"
            )
        if search.of == "rate":
            return (
                "the engine keeps up with a rate when the requests in flight grow by less than "
                f"{100 * (1 - search.share):.2g}% of the arrivals (95% confidence); "
                f"doubling from {search.lower:g}, then bisection"
            )
        return (
            f"the smallest concurrency with {100 * search.share:g}% of the highest output throughput seen; doubling from "
            f"{search.lower:g} until two doublings bring less than {100 * (1 / search.share - 1):.2g}% each, then bisection"
        )

    def _warned_levels(self) -> list[str]:
        by_code: dict[str, list[str]] = {}
        for probe in self.probes:
            for code in probe.doubts:
                by_code.setdefault(code, []).append(f"{probe.level:g}")
        return [f"{code} at {', '.join(dict.fromkeys(levels))}" for code, levels in by_code.items()]
