"""The rules of MLPerf Endpoints that a stored run can be held to, and which of them it breaks. Unofficial: only MLCommons judges.

Read from the rules v1.0 (mlcommons/endpoints_policies, branch v1.0_rules_dev, as published in mlcommons/endpoints-submission-docs
2905fd6; a draft whose durations await ratification) and from endpoints-submission-cli 1.5.3.0, whose names the rules have here.
`sample-multiple` is a rule without a check of that tool. The highest level counts as the elected Offline point (5.7.2).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from servebench.analysis.mlperf.steady import COLUMNS, MlperfMetrics, SteadyState, by_issue, metrics_of, steady_state
from servebench.contracts.level import Level
from servebench.contracts.stored import RunData, mapping

SOURCE = "MLPerf Endpoints rules v1.0 draft (endpoints-submission-docs 2905fd6), checker 1.5.3.0, detector 5606359"
OFFICIAL = "windowable"
ULTRA_LOW_MAX, POINTS_MIN, POINTS_MAX = 32, 7, 32
PASSES = 20  # of a point whose data set has no known size
ULTRA_LOW_S, OTHER_S, AGENTIC_S = 600.0, 1200.0, 2400.0
"""The least steady state: of at most ULTRA_LOW_MAX users, of more, and of more in an agentic benchmark."""
RULES: Mapping[str, tuple[str, str]] = {
    "region-computation": ("5.5", "rejected"),
    "point-count": ("5.3", "rejected"),
    "point-cap": ("5.6", "points rejected"),
    "ultra-low-concurrency-coverage": ("5.4", "rejected"),
    "low-concurrency-coverage": ("5.4", "rejected"),
    "med-concurrency-coverage": ("5.4", "rejected"),
    "high-concurrency-coverage": ("5.4", "rejected"),
    "load-pattern": ("6.1", "points rejected"),
    "point-duration": ("6.2", "flagged"),
    "min-query-count": ("6.4", "flagged"),
    "sample-multiple": ("6.4", "flagged"),
    "metric-consistency-tpot-p90": ("9.1", "flagged"),
    "steady-state-basis": ("4.4", "warned"),
}
"""The section of the rules that states each, and what breaking it leads to."""
NOT_JUDGED = (
    *("model-name-valid", "accuracy-coverage", "accuracy-gate", "seed-set-membership", "warmup-present", "warmup-salt"),
    *("approved-drafter", "power-descriptor", "system-description-valid", "point-disclosure-complete"),
)
"""Rules on models, data, seeds, disclosures and accuracy that a load generator's records do not show."""


@dataclass(frozen=True)
class RuleFinding:
    """Whether a rule is kept by a point, or by the curve (`level` None), and the figures that decide."""

    rule: str
    kept: bool
    found: float | str
    needed: float | str
    level: Level | None = None
    repeat: int = 0


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """A point of a curve: what was issued, the metrics of its whole run, and its steady state. `fixed` is whether so many users
    were there throughout; other loads, and agentic benchmarks, have no steady state by the rules."""

    level: Level
    repeat: int = 0
    fixed: bool
    agentic: bool = False
    issued: int
    completed: int
    run_s: float
    total: MlperfMetrics
    steady: SteadyState | None

    @property
    def official(self) -> MlperfMetrics:
        """The metrics that the rules take: those of the steady-state window, else of the whole run."""
        window = self.steady.metrics if self.steady is not None and self.steady.status == OFFICIAL else None
        return self.total if window is None else window

    @property
    def duration_s(self) -> float:
        """What the rules hold against the minimum: the span of the window, or the whole run without one."""
        return self.steady.span_s if self.steady is not None and self.steady.end else self.run_s


def fixed_levels(points: Sequence[CurvePoint]) -> list[int]:
    """Return the different numbers of users of the points whose load is fixed, in order."""
    return sorted({one.level.concurrency for one in points if one.fixed and one.level.concurrency is not None})


def regions_of(levels: Sequence[int]) -> dict[str, tuple[int, int]]:
    """Return the lowest and highest number of users of each region of a curve (5.5); none where its highest level is too low."""
    if max(levels, default=0) <= ULTRA_LOW_MAX:
        return {}
    lowest, highest = min(*levels, ULTRA_LOW_MAX), max(levels)
    third = math.log2(highest - lowest) / 3
    ends = (0, lowest, round(lowest + 2**third), round(lowest + 2 ** (2 * third)), highest)
    return {name: (ends[at] + 1, ends[at + 1]) for at, name in enumerate(("low_latency", "low", "med", "high"))}


def region_of(point: CurvePoint, regions: Mapping[str, tuple[int, int]]) -> str | None:
    """Return the name of the region that a point is in; None for none."""
    users = point.level.concurrency if point.fixed else None
    return next((name for name, (low, high) in regions.items() if users is not None and low <= users <= high), None)


def minimum_s(users: int | None, *, agentic: bool) -> float:
    """Return the least duration of a steady state with so many users (6.2)."""
    if users is not None and users <= ULTRA_LOW_MAX:
        return ULTRA_LOW_S
    return AGENTIC_S if agentic else OTHER_S


def judge(points: Sequence[CurvePoint], data_set: int | None = None) -> list[RuleFinding]:
    """Return what each rule says of a curve and of its points; some need the size of the data set. Pure."""
    return [*_of_curve(fixed_levels(points)), *(found for one in points for found in _of_point(one, data_set))]


def _of_curve(levels: Sequence[int]) -> Iterator[RuleFinding]:
    regions, highest = regions_of(levels), max(levels, default=0)
    yield RuleFinding("region-computation", bool(regions), highest, f"more than {ULTRA_LOW_MAX}")
    yield RuleFinding("point-count", len(levels) >= POINTS_MIN, len(levels), POINTS_MIN)
    yield RuleFinding("point-cap", len(levels) <= POINTS_MAX, len(levels), POINTS_MAX)
    for name, (low, high) in ({**regions, "low_latency": (1, ULTRA_LOW_MAX)}).items():
        inside = sum(low <= one <= high for one in levels)
        rule = f"{'ultra-low' if name == 'low_latency' else name}-concurrency-coverage"
        yield RuleFinding(rule, inside > 0, inside, f"1 of {low} to {high}")


def _of_point(point: CurvePoint, data_set: int | None) -> Iterator[RuleFinding]:
    of_point = partial(RuleFinding, level=point.level, repeat=point.repeat)
    yield of_point("load-pattern", point.fixed, "fixed" if point.fixed else "varying", "fixed")
    least_s = minimum_s(point.level.concurrency, agentic=point.agentic)
    yield of_point("point-duration", point.duration_s >= least_s, point.duration_s, least_s)
    if data_set is not None:
        yield of_point("min-query-count", point.completed >= data_set, point.completed, data_set)
        whole = point.issued > 0 and point.issued % data_set == 0
        yield of_point("sample-multiple", whole, point.issued, f"n x {data_set}")
    tpot = point.official.tpot_p90_ms or 0.0
    yield of_point("metric-consistency-tpot-p90", tpot > 0, tpot, "more than 0")
    steady = point.steady
    # a step after the window is reported and accepted, a drift is not
    accepted = steady is not None and steady.status == OFFICIAL and not steady.verdict.startswith("drifting")
    verdict = "undefined" if steady is None else f"{steady.status}, {steady.verdict}"
    yield of_point("steady-state-basis", accepted, verdict, "windowable, steady")


def curve_of(run: RunData, data_set: int | None = None) -> list[CurvePoint]:
    """Return the points of a run in order, without those that have no stored requests. Raises StoreError."""
    requests, found = run.requests_with(COLUMNS), []
    ramp = mapping(run.config.get("load")).get("ramp")
    for row in run.point_rows if len(requests) else ():
        issued = by_issue(requests[requests["point"] == row.point])
        if not len(issued):
            continue
        users, agentic = row.level.concurrency, bool(issued["session_id"].notna().any())
        fixed, steady = users is not None and not ramp, None
        if users is not None and fixed and not agentic:
            size = data_set or max(users, math.ceil(len(issued) / PASSES))
            steady = steady_state(issued, size, minimum_s(users, agentic=agentic))
        run_s = float(issued["ended_s"].max() - issued["issued_s"].iloc[0])
        found.append(
            CurvePoint(
                level=row.level,
                repeat=row.repeat,
                fixed=fixed,
                agentic=agentic,
                issued=len(issued),
                completed=int(issued["e2e_ms"].notna().sum()),
                run_s=run_s,
                total=metrics_of(issued, run_s),
                steady=steady,
            )
        )
    return sorted(found, key=lambda one: (one.level, one.repeat))
