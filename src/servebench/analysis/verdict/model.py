"""Two runs, the questions between them, and what comes out: differences and verdicts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.disturbance import Taker
from servebench.analysis.fairness import SettingDifference
from servebench.analysis.quality.agreement import Agreement
from servebench.analysis.quality.parity import Parity
from servebench.analysis.start_model import Starts
from servebench.analysis.verdict.reasons import Method, Reason, ReasonKind
from servebench.analysis.verdict.slices import SliceDifferences
from servebench.analysis.within_run import VALUES_MIN
from servebench.contracts.estimate import Interval
from servebench.contracts.level import Level
from servebench.contracts.point_row import POINT_COLUMNS, PointRow
from servebench.util.arrays import Floats

P99_REQUESTS_MIN = 368
"""Requests from which on a p99 has a two-sided 95% interval at all: with fewer, the largest of them is below the true p99 too
often (order statistics: Hahn and Meeker 1991, "Statistical Intervals", chapter 5)."""


class VerdictKind(StrEnum):
    """What is known of a question between a baseline and a candidate."""

    FASTER = "faster"  # the candidate is better
    SLOWER = "slower"  # the candidate is worse
    MIXED = "mixed"  # it is better in some metrics and worse in others
    EQUAL = "no difference"  # a difference, if there is one, is too small to matter
    NOT_WORSE = (
        "not worse"  # the candidate is worse by no more than the margin of `study.until=gate`, and may be better
    )
    OPEN = "not enough data"  # more data may decide
    UNEQUAL = "unequal_settings"  # the runs have different settings that matter: what they differ by is likely at most
    NOT_COMPARED = "not compared"  # more starts would not decide


FASTER, SLOWER, MIXED, EQUAL = VerdictKind.FASTER, VerdictKind.SLOWER, VerdictKind.MIXED, VerdictKind.EQUAL
OPEN, UNEQUAL, NOT_COMPARED = VerdictKind.OPEN, VerdictKind.UNEQUAL, VerdictKind.NOT_COMPARED
NOT_WORSE = VerdictKind.NOT_WORSE
DIFFERENT = frozenset({FASTER, SLOWER})


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A relative change from a baseline with its interval, 0.1 for ten percent more; of shares of requests the plain difference.

    `p` is two-sided, and None where nothing was tested.
    """

    effect: float
    low: float
    high: float
    method: Method
    p: float | None = None

    @property
    def leaves_out_zero(self) -> bool:
        """Whether the interval leaves out 0."""
        return not self.low <= 0 <= self.high

    @property
    def bound(self) -> float:
        """The largest change that the interval allows, either way."""
        return max(abs(self.low), abs(self.high))

    @property
    def chance(self) -> float:
        """What chance allows of a lead, as a share: the reach of its interval towards none."""
        return math.expm1(math.log1p(self.effect) - self.logs[0])

    @property
    def logs(self) -> Interval:
        """The ends of the interval as logarithms."""
        low, high = (math.log1p(end) if end > -1 else -math.inf for end in (self.low, self.high))
        return low, high

    def widened(self, share: float) -> Self:
        """Return the difference with an interval that is wider by this share at each end."""
        return replace(self, low=(1 + self.low) / (1 + share) - 1, high=(1 + self.high) * (1 + share) - 1)


@dataclass(frozen=True)
class Metric:
    """A compared metric. `source` is the array of a ComparedPoint, `percent` is None for a mean."""

    name: str
    title: str
    source: str
    percent: float | None
    higher_is_better: bool = False
    unit: str = "ms"
    requests_min: int = VALUES_MIN


METRICS = tuple(
    Metric(name, facts.title, source, percent, facts.better == "higher", facts.unit, requests_min)
    for name, source, percent, requests_min in (
        ("output_throughput_tok_s", "throughput_tok_s", None, VALUES_MIN),
        ("ttft_ms_p50", "ttft_ms", 50, VALUES_MIN),
        ("ttft_ms_p99", "ttft_ms", 99, P99_REQUESTS_MIN),
        ("tpot_ms_p50", "tpot_ms", 50, VALUES_MIN),
        ("e2e_ms_p50", "e2e_ms", 50, VALUES_MIN),
    )
    for facts in [POINT_COLUMNS[name]]
)
THROUGHPUT = METRICS[0]
FAILED = Metric("failed_share", "failed requests", "failed", None, unit="")


@dataclass(frozen=True, kw_only=True)
class ComparedPoint:
    """One point of a run: its columns (`row`), and arrays over the requests in its window, in the order sent. Points without a
    `start_id` are taken to share a start of the engine.

    Latencies are infinite for failed requests and NaN where undefined. `throughput_tok_s` has one entry per slice of time.
    `sizes` are the planned prompt tokens; with the ids they identify the same request in another run.
    """

    row: PointRow
    request_ids: tuple[str, ...] = ()
    sizes: Floats = field(default_factory=lambda: np.empty(0))
    failed: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    ttft_ms: Floats = field(default_factory=lambda: np.empty(0))
    tpot_ms: Floats = field(default_factory=lambda: np.empty(0))
    e2e_ms: Floats = field(default_factory=lambda: np.empty(0))
    throughput_tok_s: Floats | None = None

    def known(self, source: str) -> Floats:
        """Return the values of one of these arrays that are defined."""
        values: Floats | None = getattr(self, source)
        return np.empty(0) if values is None else values[~np.isnan(values)]


@dataclass(frozen=True, kw_only=True)
class Side:
    """A run as one side of a comparison.

    `earlier` are other starts of its set-up, by metric: they say by how much starts differ; `in_turns` does it for differences of
    starts that took turns with those of the other side. `start_seconds` is how long one start was measured. `name` is its label,
    `run_id` identifies it.
    """

    name: str
    samples: tuple[ComparedPoint, ...]
    run_id: str = ""
    earlier: Mapping[str, Starts] = field(default_factory=dict)
    in_turns: Mapping[str, Sequence[Starts]] = field(default_factory=dict)
    start_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class StartValues:
    """A metric at a level by start of the engine: logarithms (for `failed_share`: shares), in the order of the starts.

    `error` is the standard error of one start's value on either side, as its requests have it. `names` are the starts of each
    side, so that values of one start at several levels are known to be of one; without them the numbers of the starts. `places`
    are their numbers in the study, which has not each level in each start; without them there is one of each. If `paired`,
    starts at the same place sent the same requests. `slice_differences` are those of starts at the same place, None where they
    were not measured slice by slice; empty if none was.
    """

    baseline: Floats
    candidate: Floats
    error: tuple[float, float] = (0.0, 0.0)
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    places: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    paired: bool = False
    slice_differences: SliceDifferences = ()

    @property
    def measured(self) -> set[int]:
        """The numbers of the starts in which both sides have the level."""
        ours, theirs = (
            set(own or range(side.size)) for own, side in zip(self.places, (self.baseline, self.candidate), strict=True)
        )
        return ours & theirs

    @property
    def fewest(self) -> int:
        """The starts of the side with fewer."""
        return min(self.baseline.size, self.candidate.size)

    @property
    def finite(self) -> bool:
        """Whether each start has a finite value."""
        return bool(np.isfinite(self.baseline).all() and np.isfinite(self.candidate).all())

    def first(self, count: int) -> Self:
        """Return the values of the first `count` starts of the study."""
        ours, theirs = (sum(one < count for one in own) if own else count for own in self.places)
        known = self.slice_differences[:ours] if any(self.slice_differences[:ours]) else ()
        return replace(self, baseline=self.baseline[:ours], candidate=self.candidate[:theirs], slice_differences=known)

    def side(self, number: int) -> dict[str, float]:
        """Return the values of the baseline (0) or the candidate (1) by start."""
        values = (self.baseline, self.candidate)[number].tolist()
        return dict(zip(self.names[number] or map(str, range(len(values))), values, strict=False))


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One question: a metric at a level.

    For `failed_share`, `baseline`, `candidate` and `effect` are shares of requests and their difference. `starts` are the
    values of each start; with one start on a side the interval is that of these two starts, not of the engines. A row that
    does not compete is provisional: its points have warnings whose effect on this metric has no known bound (`doubts`). Effects
    with a bound have widened the interval.

    A study with `study.until=decided` looked at it after `looked` starts (0: not yet).
    """

    level: Level
    metric: Metric
    baseline: float | None
    candidate: float | None
    difference: Difference | None = None
    p_corrected: float | None = None
    result: VerdictKind = OPEN
    """What is known."""
    reasons: tuple[Reason, ...] = ()
    """Why it has no verdict, or what its verdict rests on."""
    bound: float | None = None
    starts: StartValues | None = None
    competes: bool = True
    doubts: tuple[str, ...] = ()
    widened: tuple[float, ...] = ()
    """By which share warnings of a known size widen the interval at each end: those of the first start of each side, of the
    first two, and so on."""
    level_missing: bool = False
    """Whether the whole level cannot be compared: the candidate lacks it, or a point of it is void."""
    looked: int = 0
    overall: bool = False
    """Whether it is the mean over all levels, and `level` says nothing."""

    @property
    def effect(self) -> float | None:
        """The difference without its interval."""
        return self.difference.effect if self.difference else None

    @property
    def low(self) -> float | None:
        """The lower end of its interval."""
        return self.difference.low if self.difference else None

    @property
    def high(self) -> float | None:
        """The upper end of its interval."""
        return self.difference.high if self.difference else None

    @property
    def p(self) -> float | None:
        """The p-value of this row alone."""
        return self.difference.p if self.difference else None

    @property
    def method(self) -> Method | None:
        """What the interval rests on."""
        return self.difference.method if self.difference else None

    @property
    def may_be_chance(self) -> bool:
        """Whether the row's own interval leaves out 0, and the p-value corrected for all questions does not."""
        tested = self.result is OPEN and self.p_corrected is not None
        return tested and self.difference is not None and self.difference.leaves_out_zero

    @property
    def worst_case(self) -> float:
        """By how much, as a share, the candidate may be worse at the end of the interval; negative when it is better."""
        if self.difference is None:
            return float("inf")
        return -self.difference.low if self.metric.higher_is_better else self.difference.high

    @property
    def more_starts_help(self) -> bool:
        """Whether it can be compared, or can be with more starts."""
        return self.starts is not None or self.has(ReasonKind.FEW_REQUESTS_YET)

    def judged(self, kind: VerdictKind, *, bound: float | None = None) -> Self:
        """Return the row with this verdict, for the same reasons."""
        return replace(self, result=kind, bound=bound)

    def because(self, *reasons: Reason) -> Self:
        """Return the row with these reasons in place of its own."""
        return replace(self, reasons=reasons)

    def turned(self) -> Self:
        """Return the row with baseline and candidate exchanged; not for `failed_share`."""
        found = self.difference
        if found is not None:
            ends = (found.effect, found.high, found.low)
            # what falls to nothing has no relative change the other way
            effect, low, high = (1 / (1 + one) - 1 if one > -1 else np.inf for one in ends)
            found = replace(found, effect=effect, low=low, high=high) if high < np.inf else None
        turned = replace(self, baseline=self.candidate, candidate=self.baseline, difference=found)
        opposite = {FASTER: SLOWER, SLOWER: FASTER, NOT_WORSE: OPEN}
        return turned.judged(opposite.get(self.result, self.result), bound=self.bound)

    def has(self, kind: ReasonKind) -> bool:
        """Return whether this is one of its reasons."""
        return any(one.kind is kind for one in self.reasons)


def better(metric: Metric, effect: float) -> VerdictKind:
    """Return what a change of a metric makes the candidate."""
    return FASTER if (effect > 0) == metric.higher_is_better else SLOWER


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs compared. `bound` goes with the result `EQUAL`; `ids` are the run ids of the labels `baseline` and
    `candidate`.

    `starts` and `start_seconds` are how many starts each run has and how long one was measured; without them the number of
    starts was not fixed before."""

    baseline: str
    candidate: str
    ids: tuple[str, str] = ("", "")
    rows: tuple[ComparisonRow, ...]
    unequal: tuple[SettingDifference, ...] = ()
    margin: float
    result: VerdictKind = OPEN
    bound: float | None = None
    starts: tuple[int, int] | None = None
    start_seconds: tuple[float | None, float | None] = (None, None)
    first: ComparisonRow | None = None
    """The first question: output throughput over all levels. A study with `study.until=decided` ends by it."""
    starts_needed: int | None = None
    """With how many starts such a study would decide it, if it goes on as so far; None for more than can be said."""
    gate: VerdictKind | None = None
    """By what a study with `study.until=gate` ends: NOT_WORSE (passes), SLOWER (fails), OPEN or NOT_COMPARED; None in others."""
    shared_with: Taker | None = None
    """Who took the machine for a part of their points, which makes the intervals wider."""
    not_started: tuple[str, ...] = ()
    """The labels of those of the two runs that never started."""
    agreements: tuple[Agreement, ...] = ()
    """How right their answers are, by benchmark, where that was compared."""
    parities: tuple[Parity, ...] = ()
    """How far their answers to the same prompts agree, where that was compared."""

    @property
    def competing(self) -> tuple[ComparisonRow, ...]:
        """The rows whose results count."""
        return tuple(row for row in self.rows if row.competes)

    @property
    def regressions(self) -> tuple[ComparisonRow, ...]:
        """The competing rows in which the candidate is worse."""
        return tuple(row for row in self.competing if row.result is SLOWER)

    @property
    def mattering(self) -> tuple[SettingDifference, ...]:
        """The unequal settings with which what the runs differ by is likely at most."""
        return tuple(one for one in self.unequal if one.matters)

    @property
    def levels(self) -> dict[Level, VerdictKind]:
        """The verdict at each level."""
        return {level: level_verdict(self.at(level)) for level in dict.fromkeys(one.level for one in self.rows)}

    @property
    def answered(self) -> bool:
        """Whether the first question has a verdict, or that of a gate."""
        if self.gate is not None:
            return self.gate is not OPEN
        return self.first is not None and self.first.result is not OPEN

    @property
    def starts_looked(self) -> int:
        """How many starts of each run the last look had; 0 before the first."""
        return self.first.looked if self.first is not None else 0

    @property
    def open_levels(self) -> tuple[Level, ...]:
        """The levels that more starts may decide: none once the first question is answered."""
        if self.answered:
            return ()
        return tuple(level for level, verdict in self.levels.items() if verdict is not NOT_COMPARED)

    def at(self, level: Level) -> list[ComparisonRow]:
        """Return the rows of a level."""
        return [one for one in self.rows if one.level == level]


def level_verdict(rows: Sequence[ComparisonRow]) -> VerdictKind:
    """Return the verdict of the rows of one level: of any metric that differs, else that of the throughput."""
    found = {one.result for one in rows} - {NOT_COMPARED}
    if different := found & DIFFERENT:
        return MIXED if len(different) > 1 else different.pop()
    of_throughput = {one.result for one in rows if one.metric is THROUGHPUT} & found
    return next(iter(of_throughput or found), NOT_COMPARED)
