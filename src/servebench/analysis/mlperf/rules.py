"""The rules of MLPerf Endpoints that a stored run can be held to, and which of them it breaks. Unofficial: only MLCommons judges.

Read from the rules v1.0 (mlcommons/endpoints_policies, branch v1.0_rules_dev, as published in mlcommons/endpoints-submission-docs
2905fd6; a draft whose durations await ratification) and from endpoints-submission-cli 1.5.3.0, whose names the rules have here.
`sample-multiple` is a rule without a check of that tool. The highest level counts as the elected Offline point (5.7.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from servebench.analysis.mlperf.steady import Metrics, Samples, SteadyState, pass_size, steady_state
from servebench.contracts.level import Level
from servebench.contracts.stored import RunData, mapping

SOURCE = "MLPerf Endpoints rules v1.0 draft (endpoints-submission-docs 2905fd6), checker 1.5.3.0, detector 5606359"
ULTRA_LOW_MAX = 32
POINTS_MIN, POINTS_MAX = 7, 32
ULTRA_LOW_S, OTHER_S, AGENTIC_S = 600.0, 1200.0, 2400.0
"""The least steady state: at most ULTRA_LOW_MAX users, more, and more in an agentic benchmark."""

Consequence = Literal["rejected", "points rejected", "flagged", "total counts"]


@dataclass(frozen=True)
class Rule:
    """A rule by its name, the section of the rules that states it, and what breaking it leads to."""

    name: str
    section: str
    consequence: Consequence


RULES: Mapping[str, Rule] = {
    one.name: one
    for one in (
        Rule("region-computation", "5.5", "rejected"),
        Rule("point-count", "5.3", "rejected"),
        Rule("point-cap", "5.6", "points rejected"),
        Rule("ultra-low-concurrency-coverage", "5.4", "rejected"),
        Rule("low-concurrency-coverage", "5.4", "rejected"),
        Rule("med-concurrency-coverage", "5.4", "rejected"),
        Rule("high-concurrency-coverage", "5.4", "rejected"),
        Rule("load-pattern", "6.1", "points rejected"),
        Rule("point-duration", "6.2", "flagged"),
        Rule("min-query-count", "6.4", "flagged"),
        Rule("sample-multiple", "6.4", "flagged"),
        Rule("metric-consistency-tpot-p90", "9.1", "flagged"),
        Rule("steady-state-basis", "4.4", "total counts"),
    )
}
NOT_JUDGED = (
    *("model-name-valid", "accuracy-coverage", "accuracy-gate", "seed-set-membership", "warmup-present", "warmup-salt"),
    *("approved-drafter", "power-descriptor", "system-description-valid", "point-disclosure-complete"),
)
"""Rules on models, data, seeds, disclosures and accuracy that a load generator's records do not show."""


@dataclass(frozen=True, kw_only=True)
class RuleFinding:
    """Whether a rule is kept, by a point (`level`, `repeat`) or by the curve, and the figures that decide."""

    rule: Rule
    kept: bool
    found: float | str
    needed: float | str
    level: Level | None = None
    repeat: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "rule": self.rule.name,
            "section": self.rule.section,
            "if_broken": self.rule.consequence,
            "kept": self.kept,
            "level": None if self.level is None else str(self.level),
            "repeat": self.repeat,
            "found": self.found,
            "needed": self.needed,
        }


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """A point of a curve: what was issued, what the whole run of it gives, and its steady state. `fixed` is whether so many
    users were there throughout; an open loop has no steady state by the rules, nor has an agentic benchmark."""

    level: Level
    repeat: int = 0
    fixed: bool
    agentic: bool = False
    issued: int
    completed: int
    run_s: float
    total: Metrics
    steady: SteadyState | None

    @property
    def users(self) -> int | None:
        """How many users it has; None for a load that is not fixed."""
        return self.level.concurrency if self.fixed else None

    @property
    def official(self) -> Metrics:
        """The metrics that the rules take: those of the steady-state window, else of the whole run."""
        window = self.steady.window if self.steady is not None and self.steady.official else None
        return self.total if window is None else window.samples.metrics(window.span_s)

    @property
    def duration_s(self) -> float:
        """What the rules hold against the minimum: the span of the window, or the whole run without one."""
        return self.steady.window.span_s if self.steady is not None and self.steady.window is not None else self.run_s

    def as_dict(self, regions: Regions | None) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "level": str(self.level),
            "repeat": self.repeat,
            "region": region_of(self.users, regions),
            "issued": self.issued,
            "completed": self.completed,
            "run_s": self.run_s,
            "official": vars(self.official),
            "total": vars(self.total),
            "steady_state": self.steady and self.steady.as_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class Regions:
    """The highest level of each region; the lowest is the one after that of the region before."""

    lowest: int
    low: int
    medium: int
    highest: int


def regions_of(levels: Sequence[int]) -> Regions | None:
    """Return the regions of a curve with these numbers of users (5.5); None where the rules know none."""
    lowest, highest = min(levels, default=0), max(levels, default=0)
    if not 1 <= lowest <= ULTRA_LOW_MAX < highest:
        return None
    third = math.log2(highest - lowest) / 3
    return Regions(
        lowest=lowest, low=round(lowest + 2**third), medium=round(lowest + 2 ** (2 * third)), highest=highest
    )


def region_of(users: int | None, regions: Regions | None) -> str | None:
    """Return the name of the region that a level is in; None where it has none."""
    if users is None or regions is None:
        return None
    ends = ("low_latency", regions.lowest), ("low", regions.low), ("med", regions.medium), ("high", regions.highest)
    return next((name for name, end in ends if users <= end), None)


def minimum_s(users: int | None, *, agentic: bool) -> float:
    """Return the least duration of a steady state with so many users (6.2)."""
    if users is not None and users <= ULTRA_LOW_MAX:
        return ULTRA_LOW_S
    return AGENTIC_S if agentic else OTHER_S


def judge(points: Sequence[CurvePoint], data_set: int | None = None) -> list[RuleFinding]:
    """Return what each rule says of a curve and of its points; some need the size of the data set. Pure."""
    found = list(_of_curve([one.users for one in points if one.users is not None]))
    for one in points:
        found += _of_point(one, data_set)
    return found


def broken(findings: Sequence[RuleFinding]) -> list[RuleFinding]:
    """Return the findings of rules that are broken."""
    return [one for one in findings if not one.kept]


def _of_curve(users: Sequence[int]) -> Iterator[RuleFinding]:
    levels = sorted(set(users))
    regions = regions_of(levels)
    ends = f"{levels[0]} to {levels[-1]}" if levels else "none"
    yield _finding("region-computation", regions is not None, ends, f"from at most {ULTRA_LOW_MAX} to more")
    yield _finding("point-count", len(levels) >= POINTS_MIN, len(levels), POINTS_MIN)
    yield _finding("point-cap", len(levels) <= POINTS_MAX, len(levels), POINTS_MAX)
    ultra_low = [one for one in levels if one <= ULTRA_LOW_MAX]
    yield _finding("ultra-low-concurrency-coverage", bool(ultra_low), len(ultra_low), f"1 to {ULTRA_LOW_MAX}")
    if regions is None:
        return
    bounds = {
        "low": (regions.lowest + 1, regions.low),
        "med": (regions.low + 1, regions.medium),
        "high": (regions.medium + 1, regions.highest),
    }
    for name, (first, last) in bounds.items():
        inside = [one for one in levels if first <= one <= last]
        yield _finding(f"{name}-concurrency-coverage", bool(inside), len(inside), f"{first} to {last}")


def _of_point(point: CurvePoint, data_set: int | None) -> Iterator[RuleFinding]:
    def of_point(name: str, kept: bool, found: float | str, needed: float | str) -> RuleFinding:
        return RuleFinding(
            rule=RULES[name], kept=kept, found=found, needed=needed, level=point.level, repeat=point.repeat
        )

    yield of_point("load-pattern", point.fixed, "fixed" if point.fixed else "varying", "fixed")
    least_s = minimum_s(point.users, agentic=point.agentic)
    yield of_point("point-duration", point.duration_s >= least_s, point.duration_s, least_s)
    if data_set is not None:
        yield of_point("min-query-count", point.completed >= data_set, point.completed, data_set)
        whole = point.issued > 0 and point.issued % data_set == 0
        yield of_point("sample-multiple", whole, point.issued, f"n x {data_set}")
    tpot = point.official.tpot_p90_ms
    yield of_point("metric-consistency-tpot-p90", tpot is not None and tpot > 0, tpot or 0.0, "more than 0")
    if point.steady is not None:
        steady = point.steady
        verdict = f"{steady.status}, {steady.verdict}"
        yield of_point("steady-state-basis", steady.accepted, verdict, "windowable, steady")


def _finding(name: str, kept: bool, found: float | str, needed: float | str) -> RuleFinding:
    return RuleFinding(rule=RULES[name], kept=kept, found=found, needed=needed)


def curve_of(run: RunData, data_set: int | None = None) -> list[CurvePoint]:
    """Return the points of a run in order, without those that have no stored requests."""
    requests = run.requests
    if not len(requests):
        return []
    ramp = mapping(run.config.get("load")).get("ramp")
    found = []
    for row in run.point_rows:
        samples = Samples.of(requests[requests["point"] == row.point])
        if samples.count:
            found.append(_point(samples, row.level, row.repeat, fixed=row.rate is None and not ramp, data_set=data_set))
    return sorted(found, key=lambda one: (one.level, one.repeat))


def _point(samples: Samples, level: Level, repeat: int, *, fixed: bool, data_set: int | None) -> CurvePoint:
    steady = None
    if fixed and not samples.agentic and level.concurrency is not None:
        size = pass_size(samples, level.concurrency, data_set)
        steady = steady_state(samples, size, minimum_s(level.concurrency, agentic=False))
    return CurvePoint(
        level=level,
        repeat=repeat,
        fixed=fixed and level.concurrency is not None,
        agentic=samples.agentic,
        issued=samples.count,
        completed=samples.completed,
        run_s=samples.run_s,
        total=samples.metrics(samples.run_s),
        steady=steady,
    )
