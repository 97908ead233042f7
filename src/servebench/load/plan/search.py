"""The search for a level: which one to measure next, and the result. Pure, so that it is tested with tables of probes.

Two goals, each reached with as few points as possible:

- `slo`: the highest level at which the share of good requests is `slo.attainment` or more. A curve of that share over the level
  (`slo_curve`) is fitted to all points: the answer is the level up to which the SLO is met with `confidence`, and the bracket
  ends at the level above which it is missed with the same confidence. Points are added just below and above the middle of
  the two, each pair with twice as many requests, until the bracket is `tolerance` wide. (An `attainment` of 1, which no
  sample can prove, is met at a level where no request was bad, and found by bisection.)
- `saturation`: where more load no longer increases throughput. In a closed loop: the smallest concurrency with `share` of
  the highest output throughput seen; doubling stops after two doublings that each brought less than 1 / `share` - 1. The
  levels that decide it are measured `probes_per_level` times; the bracket holds the knee with `confidence` at each end, by
  the scatter of repeated points (`sure_knee_bracket`). In an open loop: the most requests a second that the engine
  completes while more arrive than it keeps up with (the requests in flight certainly grow by more than 1 - `share` of the
  arrivals), as the lower end of Student's interval over SATURATED_PROBES such points at least: below it no queue lasts.

Levels are doubled from `lower` until one is missed or `upper` is met; then the bracket is bisected (in the logarithm)
until it is `tolerance` wide. No level outside the bounds is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any, Literal

from servebench.contracts.settings import SearchSettings
from servebench.load.plan.slo_curve import Crossing, Probe, crossing, pooled_design_effect
from servebench.util.figures import number

FLAT_DOUBLINGS = 2
SATURATED_PROBES = 4
SATURATED_RANGE = 2.0
"""Only levels up to so many times the lowest one that is not sustained say how much the engine completes there."""
FALLS_UNDER_OVERLOAD = 0.9
"""An overloaded engine that completes less than this share of what it sustained is slower for being overloaded."""

DESIGN_EFFECT_MAX = 4.0
GROWTH_MAX = 8
"""A point of a search for the SLO load has at most so many times the requests for failures in bursts, and for the late stage."""

Outcome = Literal["found", "never_met", "always_met", "not_enough_data"]
Bracket = tuple[float | None, float | None]


@dataclass(frozen=True)
class NextProbe:
    """The level to measure next, how many points it already has, and the fewest requests (0: as many as usual)."""

    level: float
    repeat: int
    requests: int = 0


@dataclass(frozen=True)
class Finding:
    """What the probes say: see SearchAnswer."""

    outcome: Outcome
    level: float | None
    bracket: Bracket
    said: str


@dataclass(frozen=True, kw_only=True)
class SearchAnswer:
    """The result of a search. `level` is the answer; `bracket` is the highest level that qualifies and the lowest that does
    not, for a knee the highest below it and the lowest that is not: the truth lies between, with `confidence` at each end.

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


def next_for_slo(probes: Sequence[Probe], search: SearchSettings, attainment: float) -> tuple[float, int] | None:
    """Return the next level of a search for the SLO load and its fewest requests; None when the search is over."""
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


def judge_kept_up(probes: Sequence[Probe], share: float) -> bool | None:
    """Whether the engine kept up with a rate, by the mean over the points of the level; None without data."""
    seen = [probe.kept_up for probe in probes if probe.kept_up is not None]
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


def sure_knee_bracket(levels: Mapping[float, Sequence[float]], share: float, confidence: float) -> Bracket:
    """Return the highest level of which, and of all lower ones, the throughput is certainly below `share` of the best, and the
    lowest at which it certainly is not; None where there is none.

    `levels` are the throughputs of the points of each level. Their logarithms scatter by the same standard deviation, known from
    the levels with several points, and are compared with those of the best level by Student's t, one side at a time.
    """
    from scipy.special import stdtrit

    logs = {level: [math.log(value) for value in values] for level, values in levels.items()}
    means = {level: fmean(values) for level, values in logs.items()}
    freedom = sum(len(values) - 1 for values in logs.values())
    if not freedom:
        return None, None
    variance = sum((value - means[level]) ** 2 for level, values in logs.items() for value in values) / freedom
    best = max(means, key=means.__getitem__)
    quantile = float(stdtrit(freedom, confidence))

    def sure(level: float) -> float:
        """Return 1 for certainly enough, -1 for certainly too little, else 0."""
        over = means[level] - means[best] - math.log(share)
        error = math.sqrt(variance * (1 / len(logs[level]) + 1 / len(logs[best]))) if level != best else 0.0
        return 0 if abs(over) <= quantile * error else math.copysign(1, over)

    enough = min(level for level in means if sure(level) > 0)
    below = None
    for level in sorted(means):
        if sure(level) >= 0:
            break
        below = level
    return below, enough


def saturated_rate(probes: Sequence[Probe], share: float, confidence: float) -> tuple[float, float] | None:
    """Return the ends of the one-sided intervals of the requests a second that an engine completes when more arrive, from the
    probes that it did not keep up with; None for fewer than SATURATED_PROBES of them."""
    from scipy.special import stdtrit

    missed = [(p.level, p.completed_req_s) for p in probes if p.kept_up is not None and p.kept_up < share]
    lowest = min((level for level, _ in missed), default=0.0)
    seen = [rate for level, rate in missed if rate is not None and level <= SATURATED_RANGE * lowest]
    if len(seen) < SATURATED_PROBES:
        return None
    half = float(stdtrit(len(seen) - 1, confidence)) * stdev(seen) / math.sqrt(len(seen))
    return fmean(seen) - half, fmean(seen) + half


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
    """A search in progress. `next_probe` and `answer` are functions of the probes so far; it knows no engines."""

    def __init__(self, search: SearchSettings, attainment: float) -> None:
        self.search = search
        self.attainment = attainment
        self.probes: list[Probe] = []
        self._by_curve = search.goal == "slo" and attainment < 1
        self._by_knee = search.goal == "saturation" and search.of == "concurrency"

    def add(self, probe: Probe) -> None:
        """Add a measured point."""
        self.probes.append(probe)

    def next_probe(self) -> NextProbe | None:
        """Return what to measure next; None when the search is over."""
        if self._limit():
            return None
        chosen = self._next()
        if chosen is None:
            return None
        level, requests = chosen
        return NextProbe(level, sum(probe.level == level for probe in self.probes), requests)

    def answer(self, interrupted: bool = False) -> SearchAnswer:
        """Return the result of the probes so far."""
        search = self.search
        finding = self._finding()
        caveats = list(self._warned_levels())
        if interrupted:
            caveats.append("the search was interrupted: more points would have narrowed the bracket")
        elif (limit := self._limit()) and self._next() is not None:
            caveats.append(f"the search stopped at load.search.{limit}: the bracket is wide")
        if self._by_knee and finding.outcome == "found" and not _flat(self._doublings(), search.share):
            caveats.append(
                "throughput had not levelled off at the upper bound: with a higher load.search.upper the knee may be higher"
            )
        return SearchAnswer(
            goal=search.goal,
            of=search.of,
            **vars(finding),
            confidence=search.confidence if self.attainment < 1 or search.goal == "saturation" else None,
            how=self._how(),
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

    def _says(self, probe: Probe) -> bool:
        """Whether a probe says anything about its level."""
        if self.search.goal == "slo":
            return probe.usable and probe.judged > 0
        return probe.usable and (bool(probe.throughput_tok_s) if self._by_knee else probe.kept_up is not None)

    @property
    def _known(self) -> list[Probe]:
        return [probe for probe in self.probes if self._says(probe)]

    def _levels(self) -> dict[float, list[Probe]]:
        """Return the probes of each level that say something, in the order of the levels' first ones."""
        found: dict[float, list[Probe]] = {}
        for probe in self._known:
            found.setdefault(probe.level, []).append(probe)
        return found

    def _next(self) -> tuple[float, int] | None:
        """Return the next level and its fewest requests; None when the search is over."""
        if self.probes and not self._says(self.probes[-1]):
            level = self.probes[-1].level
            tried = sum(probe.level == level for probe in self.probes)
            if tried < self.search.probes_per_level:
                return level, 0
            if not self._by_knee or not self._known:
                return None
        if self._by_curve:
            return next_for_slo(self._known, self.search, self.attainment)
        level_next = self._next_for_knee() if self._by_knee else self._next_in_bracket()
        return None if level_next is None else (level_next, 0)

    def _next_in_bracket(self) -> float | None:
        judged = self._judged()
        level = next_in_bracket(judged, self.search)
        _, unmet = _bracket(judged)
        if level is not None or unmet is None or self.search.goal == "slo" or unmet <= self.search.lower:
            return level
        return None if self._saturated() is not None else unmet

    def _next_for_knee(self) -> float | None:
        measured = self._throughput()
        level = next_for_knee(measured, self.search)
        if level is not None:
            return level
        levels = self._throughputs()
        below, knee = knee_bracket(measured, self.search.share)
        deciding = {one for one in (below, knee, max(measured, key=measured.__getitem__)) if one in levels}
        least = min(deciding, key=lambda one: (len(levels[one]), one))
        return least if len(levels[least]) < self.search.probes_per_level else None

    def _throughputs(self) -> dict[float, list[float]]:
        return {level: [p.throughput_tok_s or 0.0 for p in probes] for level, probes in self._levels().items()}

    def _judged(self) -> dict[float, bool | None]:
        if self.search.goal == "slo":
            return {level: all(p.good == p.judged for p in probes) for level, probes in self._levels().items()}
        return {level: judge_kept_up(probes, self.search.share) for level, probes in self._levels().items()}

    def _saturated(self) -> tuple[float, float] | None:
        return saturated_rate(self._known, self.search.share, self.search.confidence)

    def _throughput(self) -> dict[float, float]:
        """Return the mean over the points of each level; 0 for a level that could not be measured, which ends the doubling."""
        levels = self._throughputs()
        if not levels:
            return {}
        return {
            level: fmean(levels[level]) if level in levels else 0.0
            for level in dict.fromkeys(probe.level for probe in self.probes)
        }

    def _doublings(self) -> dict[float, float]:
        """Return the levels of the doubling, without those of the bisection, which are lower than one before them."""
        measured, climbed = self._throughput(), 0.0
        found = {}
        for level, value in measured.items():
            if level > climbed:
                found[level], climbed = value, level
        return found

    def _finding(self) -> Finding:
        if self._by_knee:
            return self._knee()
        if self._by_curve and self._known:
            return self._slo_load(crossing(self._known, self.attainment, self.search.confidence))
        return self._highest()

    def _slo_load(self, found: Crossing) -> Finding:
        search, unit = self.search, self._unit()
        low, high = _slo_ends(found, search)
        sure = f"{100 * search.confidence:g}% confidence"
        if low >= search.upper:
            said = f"every {unit} up to {search.upper:g}, the upper bound, meets the SLO ({sure})"
            return Finding("always_met", search.upper, (search.upper, None), said)
        if found.high < search.lower:
            said = f"no {unit} meets the SLO: {search.lower:g}, the lower bound, does not ({sure})"
            return Finding("never_met", None, (None, search.lower), said)
        above = high if high <= search.upper else None
        if low < search.lower:
            said = f"not enough data to say whether any {unit} meets the SLO"
            return Finding("not_enough_data", None, (None, above), said)
        not_met = "" if above is None else f"; from {above:g} on it does not ({sure})"
        return Finding("found", low, (low, above), f"{unit} {low:g} meets the SLO ({sure}){not_met}")

    def _highest(self) -> Finding:
        judged = self._judged()
        met, unmet = _bracket(judged)
        what, what_not = ("meets the SLO", "does not") if self.search.goal == "slo" else ("is sustained", "is not")
        unit = self._unit()
        saturated = self._saturated() if self.search.goal == "saturation" else None
        if saturated is not None and unmet is not None and met is not None:
            return self._sustained(saturated[0], met, unmet)
        if met is None:
            if unmet is None or judged[unmet] is None:
                said = f"not enough data to say whether any {unit} {what}"
                return Finding("not_enough_data", None, (None, unmet), said)
            said = f"no {unit} {what}: {unmet:g}, the lower bound, {what_not}"
            return Finding("never_met", None, (None, unmet), said)
        if unmet is None:
            if met < self.search.upper:
                said = f"{unit} {met:g} {what}; nothing above it was measured"
                return Finding("not_enough_data", met, (met, None), said)
            return Finding("always_met", met, (met, None), f"every {unit} up to {met:g}, the upper bound, {what}")
        said = f"{unit} {met:g} is the highest that {what} ({unmet:g} {what_not})"
        return Finding("found", met, (met, unmet), said)

    def _sustained(self, completed: float, met: float, unmet: float) -> Finding:
        """Return the highest rate that is sustained: what the engine certainly completes when more arrives."""
        sure = f"{100 * self.search.confidence:g}% confidence"
        if completed < FALLS_UNDER_OVERLOAD * met:
            level = float(f"{self.search.share * met:.4g}")
            why = f"of {met:g} that arrived nearly all were completed; overloaded the engine completes only {number(completed)}"
            return Finding("found", level, (level, unmet), f"rate (req/s) {level:g} is sustained: {why}")
        level = float(f"{min(completed, unmet):.4g}")
        said = f"rate (req/s) {level:g} is sustained: the engine completes as many when more arrive ({sure}); {unmet:g} is not"
        return Finding("found", level, (level, unmet), said)

    def _knee(self) -> Finding:
        measured, search = self._throughput(), self.search
        if len(measured) < FLAT_DOUBLINGS:
            return Finding("not_enough_data", None, (None, None), "not enough data to see where throughput levels off")
        _, knee = knee_bracket(measured, search.share)
        best, top = max(measured.values()), max(measured)
        if top >= search.upper and knee >= search.share * top:
            # throughput proportional to concurrency reaches 95% of its maximum at 95% of the bound
            said = f"throughput still grows at concurrency {top:g}, the upper bound ({number(measured[top], 4)} tok/s)"
            return Finding("always_met", top, (top, None), said)
        low, high = sure_knee_bracket(self._throughputs(), search.share, search.confidence)
        ends = [f"{side} {end:g}" for side, end in (("above", low), ("at most", high)) if end is not None]
        sure = (
            f"the knee is {' and '.join(ends)} ({100 * search.confidence:g}% confidence)" if ends else "no confidence"
        )
        said = (
            f"concurrency {knee:g} gives {number(measured[knee], 4)} tok/s, {100 * measured[knee] / best:.3g}% of the highest "
            f"throughput seen; {sure}"
        )
        return Finding("found", knee, (low, high), said)

    def _unit(self) -> str:
        return "concurrency" if self.search.of == "concurrency" else "rate (req/s)"

    def _how(self) -> str:
        search = self.search
        if search.goal == "slo":
            return (
                f"a curve of the share that meets the SLO, which must be {self.attainment:g}, by level, through all points; "
                f"doubling from {search.lower:g}, then points on both sides of where the curve crosses"
            )
        if search.of == "rate":
            return (
                "the engine does not keep up with a rate when the requests in flight grow by more than "
                f"{100 * (1 - search.share):.2g}% of the arrivals (95% confidence); doubling from {search.lower:g}, then "
                "bisection; what it completes at rates that it does not keep up with is what it sustains"
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
