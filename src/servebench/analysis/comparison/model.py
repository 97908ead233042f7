"""What is compared, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.fairness import SettingDifference
from servebench.analysis.statistics import Floats
from servebench.analysis.verdict import Method, Reason, ReasonKind
from servebench.contracts.level import Level
from servebench.contracts.point_row import POINT_COLUMNS, PointRow

VALUES_MIN = 12
"""The fewest requests, or slices of time, of a start: its slow waves need four values each (`rates.SLOW_WAVES`)."""
P99_REQUESTS_MIN = 368
"""Requests from which on a p99 has a two-sided 95% interval at all: with fewer, the largest of them is below the true p99 too
often (order statistics: Hahn and Meeker 1991, "Statistical Intervals", chapter 5)."""

Result = Literal["faster", "slower", "no difference", "not enough data", "unequal_settings"]


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


def _metric(name: str, source: str, percent: float | None = None, *, requests_min: int = VALUES_MIN) -> Metric:
    found = POINT_COLUMNS[name]
    higher = found.better == "higher"
    return Metric(name, found.title, source, percent, higher, found.unit, requests_min)


METRICS = (
    _metric("output_throughput_tok_s", "throughput_tok_s"),
    _metric("ttft_ms_p50", "ttft_ms", 50),
    _metric("ttft_ms_p99", "ttft_ms", 99, requests_min=P99_REQUESTS_MIN),
    _metric("tpot_ms_p50", "tpot_ms", 50),
    _metric("e2e_ms_p50", "e2e_ms", 50),
)
FAILED = Metric("failed_share", "failed requests", "failed", None, unit="")


@dataclass(frozen=True, kw_only=True)
class ComparedPoint:
    """One point of a run: arrays over the requests in its window, in the order sent. `start_id` is the start of the engine
    that served it; points without one are taken to share a start.

    Latencies are infinite for failed requests and NaN where undefined. `throughput_tok_s` has one entry per slice of time.
    `row` are the point's columns. `sizes` are the planned prompt tokens; with the ids they identify the same request in another
    run.
    """

    level: Level
    repeat: int
    verdict: str
    start_id: str | None = None
    doubts: tuple[str, ...] = ()
    row: PointRow = field(default_factory=PointRow)
    request_ids: tuple[str, ...] = ()
    sizes: Floats = field(default_factory=lambda: np.empty(0))
    failed: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    ttft_ms: Floats = field(default_factory=lambda: np.empty(0))
    tpot_ms: Floats = field(default_factory=lambda: np.empty(0))
    e2e_ms: Floats = field(default_factory=lambda: np.empty(0))
    throughput_tok_s: Floats | None = None


@dataclass(frozen=True, kw_only=True)
class Side:
    """A run as one side of a comparison.

    `spreads` say by how much starts of its set-up differ, by (level, metric), as known from this and earlier runs.
    `start_seconds` is how long one start was measured. `name` is its label, `run_id` identifies it.
    """

    name: str
    samples: tuple[ComparedPoint, ...]
    run_id: str = ""
    spreads: Mapping[tuple[Level, str], StartSpread] = field(default_factory=dict)
    start_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class StartSpread:
    """By how much the starts of one set-up differ: the standard deviation of one start's logarithm, from `count` starts."""

    sd: float
    count: int


@dataclass(frozen=True, kw_only=True)
class StartValues:
    """A metric at a level by start of the engine: logarithms (for `failed_share`: shares), in the order of the starts.

    If `paired`, entries at the same place come from starts that sent the same requests. `errors` are about how far the few
    requests of each start move its value on either side, as if they were independent (nothing: not at all). `known` is by how
    much starts are known to differ from earlier ones, as (standard deviation, degrees of freedom).
    """

    baseline: Floats
    candidate: Floats
    paired: bool
    errors: Floats = field(default_factory=lambda: np.empty(0))
    known: tuple[float, int] = (0.0, 0)

    @property
    def error(self) -> float:
        """The root mean square of `errors`: levels with a small one say more."""
        return float(np.sqrt(np.mean(self.errors**2))) if self.errors.size else 0.0


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One metric at one level. `effect`, `low` and `high` are relative changes: 0.1 is ten percent more than the baseline.

    For `failed_share`, `baseline`, `candidate` and `effect` are shares of requests and their difference. `starts` are the
    values of each start; with one start on a side the interval is that of these two starts, not of the engines. A row that
    does not compete is provisional: its points have warnings whose effect on this metric has no known bound (`doubts`). Effects
    with a bound have widened the interval.
    """

    level: Level
    metric: Metric
    baseline: float | None
    candidate: float | None
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_corrected: float | None = None
    result: Result = "not enough data"
    bound: float | None = None
    method: Method | None = None
    starts: StartValues | None = None
    reasons: tuple[Reason, ...] = ()
    """Why it has no verdict, or what its verdict rests on."""
    competes: bool = True
    doubts: tuple[str, ...] = ()
    widened: tuple[float, ...] = ()
    """By which share warnings of a known size widen the interval at each end: those of the first start of each side, of the
    first two, and so on."""
    level_missing: bool = False
    """Whether the whole level cannot be compared: the candidate lacks it, or a point of it is void."""

    @property
    def paired(self) -> bool:
        """Whether starts that sent the same requests are compared with each other."""
        return self.starts is not None and self.starts.paired

    @property
    def may_be_chance(self) -> bool:
        """Whether the row's own interval leaves out 0, and the p-value corrected for all questions does not."""
        tested = self.result == "not enough data" and self.p_corrected is not None
        return tested and self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    @property
    def worst_case(self) -> float:
        """By how much, as a share, the candidate may be worse at the end of the interval; negative when it is better."""
        if self.low is None or self.high is None:
            return float("inf")
        return -self.low if self.metric.higher_is_better else self.high

    def turned(self) -> ComparisonRow:
        """Return the row with baseline and candidate exchanged; not for `failed_share`."""

        def other(share: float | None) -> float | None:
            return None if share is None or share <= -1 else 1 / (1 + share) - 1

        results: dict[str, Result] = {"faster": "slower", "slower": "faster"}
        return replace(
            self,
            baseline=self.candidate,
            candidate=self.baseline,
            effect=other(self.effect),
            low=other(self.high),
            high=other(self.low),
            result=results.get(self.result, self.result),
        )

    def has(self, kind: ReasonKind) -> bool:
        """Return whether this is one of its reasons."""
        return any(one.kind is kind for one in self.reasons)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs compared. `bound` goes with the result *no difference*; `ids` are the run ids of the labels `baseline` and
    `candidate`.

    `starts` and `start_seconds` are how many starts each run has and how long one was measured; without them the number of
    starts was not fixed before."""

    baseline: str
    candidate: str
    ids: tuple[str, str] = ("", "")
    rows: tuple[ComparisonRow, ...]
    unequal: tuple[SettingDifference, ...]
    margin: float
    result: Result | Literal["mixed"]
    bound: float | None = None
    starts: tuple[int, int] | None = None
    start_seconds: tuple[float | None, float | None] = (None, None)
    not_started: tuple[str, ...] = ()
    """The labels of those of the two runs that never started."""

    @property
    def competing(self) -> tuple[ComparisonRow, ...]:
        """The rows whose results count."""
        return tuple(row for row in self.rows if row.competes)

    @property
    def regressions(self) -> tuple[ComparisonRow, ...]:
        """The competing rows in which the candidate is worse."""
        return tuple(row for row in self.competing if row.result == "slower")
