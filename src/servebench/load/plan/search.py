"""Which level to measure next, and what the search found: pure, so that a table of probes tests it.

Two questions, each answered by as few points as decide it:

- `slo`: the highest level at which the share of good requests is `slo.attainment` or more. A level is *met* when the
  lower end of the one-sided Wilson score interval (Wilson 1927, J. Am. Stat. Assoc. 22) of that share reaches
  `attainment`, *missed* when the upper end stays under it, and undecided between: then it is measured again and the
  counts are pooled, at most `probes_per_level` times. What stays undecided is never called met.
- `saturation`: where more load no longer brings more. In a closed loop that is the smallest concurrency with `share` of
  the highest output throughput seen, the doubling stopping after two doublings that each brought less than
  1 / `share` - 1. In an open loop it is the highest rate that the engine keeps up with: its answers end over at most
  1 / `share` of the time over which their requests were sent.

A level is first doubled from `lower` until one is missed or `upper` is met, then the bracket is bisected (in the
logarithm) until it is `tolerance` wide. No level outside the bounds is measured.
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
    """What one point says to a search. `good` of `judged` requests met the SLO; `kept_up` is, in an open loop, the time
    over which requests were sent over that over which their answers ended. `usable` is false where the point says
    nothing (the clock was stepped); `doubts` are its codes."""

    point: str
    level: float
    good: int = 0
    judged: int = 0
    throughput_tok_s: float | None = None
    kept_up: float | None = None
    usable: bool = True
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SearchAnswer:
    """What was found. `level` is the answer; `bracket` the highest level that is in and the lowest that is out.

    `found`: the level. `never_met`: not even at the lower bound (no level). `always_met`: up to the upper bound, which is
    the level. `not_enough_data`: the requests do not decide it. `said` says it in words, `how` by what rule.
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
        """As plain data for a file."""
        return asdict(self)


def requests_to_decide(attainment: float, confidence: float) -> int:
    """The fewest requests, all good, that show an attainment: n / (n + z^2) >= a. One more where the share must be 1."""
    z = NormalDist().inv_cdf(confidence)
    if attainment >= 1:
        return 1
    return math.ceil(z * z * attainment / (1 - attainment))


def judge_slo(probes: Sequence[Probe], attainment: float, confidence: float) -> bool | None:
    """Whether a level meets the SLO, from the pooled counts of its points; None when they do not decide it.

    An attainment of 1 asks that every request is good, which no sample can show: it is met when none was bad.
    """
    good = sum(probe.good for probe in probes if probe.usable)
    judged = sum(probe.judged for probe in probes if probe.usable)
    if attainment >= 1:
        return good == judged if judged else None
    low, high = wilson(good, judged, confidence, one_sided=True)
    if low >= attainment:
        return True
    return False if high < attainment else None


def judge_kept_up(probes: Sequence[Probe], share: float) -> bool | None:
    """Whether the engine kept up with a rate: the mean over the points of a level."""
    seen = [probe.kept_up for probe in probes if probe.usable and probe.kept_up is not None]
    return sum(seen) / len(seen) >= share if seen else None


def between(low: float, high: float, *, whole: bool, tolerance: float) -> float | None:
    """A level that cuts a bracket in two, in the logarithm; None when the bracket is narrow enough."""
    if high <= low * (1 + tolerance) or (whole and high - low <= 1):
        return None
    middle = math.sqrt(low * high)
    if not whole:
        return float(f"{middle:.4g}")
    return float(min(max(round(middle), int(low) + 1), int(high) - 1))


def next_in_bracket(judged: Mapping[float, bool | None], search: SearchSettings) -> float | None:
    """The next level of a search for the highest that is met; None when the search is over."""
    if search.lower not in judged:
        return search.lower
    met, unmet = _bracket(judged)
    if met is None:
        return None
    if unmet is None:
        return None if met >= search.upper else min(2 * met, search.upper)
    return between(met, unmet, whole=search.of == "concurrency", tolerance=search.tolerance)


def next_for_knee(throughput: Mapping[float, float], search: SearchSettings) -> float | None:
    """The next concurrency of a search for the knee; None when it is over."""
    if search.lower not in throughput:
        return search.lower
    top = max(throughput)
    if top < search.upper and not _flat(throughput, search.share):
        return min(2 * top, search.upper)
    low, high = knee_bracket(throughput, search.share)
    return None if low is None else between(low, high, whole=True, tolerance=search.tolerance)


def knee_bracket(throughput: Mapping[float, float], share: float) -> tuple[float | None, float]:
    """The highest level before the knee (None when the first level is the knee), and the knee itself."""
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
    """The lowest level that is not met, and the highest met one under it."""
    unmet = min((level for level, met in judged.items() if met is not True), default=None)
    met = max((level for level, is_met in judged.items() if is_met and (unmet is None or level < unmet)), default=None)
    return met, unmet


class Search:
    """A search at work: told of probes, it names the next level and, when it is over, the answer.

    Knows nothing of engines: `next_level` and `answer` are functions of the probes so far.
    """

    def __init__(self, search: SearchSettings, attainment: float) -> None:
        self.search = search
        self.attainment = attainment
        self.probes: list[Probe] = []

    def tell(self, probe: Probe) -> None:
        """A point was measured."""
        self.probes.append(probe)

    def next_level(self) -> tuple[float, int] | None:
        """The level to measure next and how many points it has already; None when the search is over."""
        if len(self.probes) >= self.search.max_probes:
            return None
        level = self._again() or self._onward()
        return None if level is None else (level, len(self._of(level)))

    def answer(self, interrupted: bool = False) -> SearchAnswer:
        """What the probes so far say."""
        search = self.search
        by_throughput = search.goal == "saturation" and search.of == "concurrency"
        outcome, level, bracket, said = self._knee() if by_throughput else self._highest()
        caveats = list(self._doubted())
        if interrupted:
            caveats.append("the search was interrupted: more points would have narrowed it")
        elif len(self.probes) >= search.max_probes and (self._again() or self._onward()) is not None:
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

    def _of(self, level: float) -> list[Probe]:
        return [probe for probe in self.probes if probe.level == level]

    def _again(self) -> float | None:
        """A level that is undecided and may be measured once more: always the last one."""
        if not self.probes:
            return None
        level = self.probes[-1].level
        seen = self._of(level)
        return level if len(seen) < self.search.probes_per_level and self._judge(seen) is None else None

    def _onward(self) -> float | None:
        if self.search.goal == "saturation" and self.search.of == "concurrency":
            measured = self._throughput()
            if not measured and self.probes:
                return None
            return next_for_knee(measured, self.search)
        return next_in_bracket(self._judged(), self.search)

    def _judge(self, probes: Sequence[Probe]) -> bool | None:
        if self.search.goal == "slo":
            return judge_slo(probes, self.attainment, self.search.confidence)
        if self.search.of == "rate":
            return judge_kept_up(probes, self.search.share)
        return True if any(probe.usable and probe.throughput_tok_s is not None for probe in probes) else None

    def _judged(self) -> dict[float, bool | None]:
        return {probe.level: self._judge(self._of(probe.level)) for probe in self.probes}

    def _throughput(self) -> dict[float, float]:
        """The mean over the points of each level; 0 where a level could not be measured, so that it ends the climb."""
        found: dict[float, float] = {}
        for level in dict.fromkeys(probe.level for probe in self.probes):
            seen = [p.throughput_tok_s for p in self._of(level) if p.usable and p.throughput_tok_s is not None]
            found[level] = sum(seen) / len(seen) if seen else 0.0
        return found if any(found.values()) else {}

    def _doublings(self) -> dict[float, float]:
        """The levels of the climb, without those of the bisection, which are lower than one before them."""
        measured, climbed = self._throughput(), 0.0
        found = {}
        for level, value in measured.items():
            if level > climbed:
                found[level], climbed = value, level
        return found

    def _highest(self) -> tuple[Outcome, float | None, tuple[float | None, float | None], str]:
        judged = self._judged()
        met, unmet = _bracket(judged)
        what = "meets the SLO" if self.search.goal == "slo" else "is kept up with"
        unit = self._unit()
        if met is None:
            if unmet is None or judged[unmet] is None:
                return "not_enough_data", None, (None, unmet), f"not enough data to say whether any {unit} {what}"
            return "never_met", None, (None, unmet), f"no {unit} {what}: {unmet:g}, the lower bound, does not"
        if unmet is None:
            if met < self.search.upper:
                return "not_enough_data", met, (met, None), f"{unit} {met:g} {what}; nothing above it was measured"
            return "always_met", met, (met, None), f"every {unit} up to {met:g}, the upper bound, {what}"
        above = f"{unmet:g} does not" if judged[unmet] is False else f"{unmet:g} is undecided"
        return "found", met, (met, unmet), f"{unit} {met:g} is the highest that {what} ({above})"

    def _knee(self) -> tuple[Outcome, float | None, tuple[float | None, float | None], str]:
        measured = self._throughput()
        if len(measured) < FLAT_DOUBLINGS:
            return "not_enough_data", None, (None, None), "not enough data to see where throughput levels off"
        low, knee = knee_bracket(measured, self.search.share)
        best, top = max(measured.values()), max(measured)
        if top >= self.search.upper and knee >= self.search.share * top:
            # throughput in proportion to concurrency has 95 % of its most at 95 % of the bound
            said = f"throughput still grows at concurrency {top:g}, the upper bound ({measured[top]:.4g} tok/s)"
            return "always_met", top, (top, None), said
        share = measured[knee] / best
        said = f"concurrency {knee:g} gives {measured[knee]:.4g} tok/s, {100 * share:.3g} % of the most that was seen"
        return "found", knee, (low, knee), said

    def _unit(self) -> str:
        return "concurrency" if self.search.of == "concurrency" else "rate (req/s)"

    def _how(self) -> str:
        search = self.search
        if search.goal == "slo":
            return (
                f"a level is met when the one-sided {100 * search.confidence:g} % Wilson lower bound of the share of good "
                f"requests is {self.attainment:g} or more; doubling from {search.lower:g}, then bisection"
            )
        if search.of == "rate":
            return (
                "a rate is kept up with when the answers end over at most "
                f"{1 / search.share:.3g} times as long as the requests were sent; doubling from {search.lower:g}, then bisection"
            )
        return (
            f"the smallest concurrency with {100 * search.share:g} % of the highest output throughput seen; doubling from "
            f"{search.lower:g} until two doublings bring less than {100 * (1 / search.share - 1):.2g} % each, then bisection"
        )

    def _doubted(self) -> list[str]:
        by_code: dict[str, list[str]] = {}
        for probe in self.probes:
            for code in probe.doubts:
                by_code.setdefault(code, []).append(f"{probe.level:g}")
        return [f"{code} at {', '.join(dict.fromkeys(levels))}" for code, levels in by_code.items()]
