"""What an answer consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from servebench.analysis.disturbance import Taker
from servebench.analysis.slow_starts import OwnSlowStarts
from servebench.analysis.verdict.compare import SIGNIFICANCE
from servebench.analysis.verdict.model import FASTER, Comparison, ComparisonRow
from servebench.analysis.verdict.reasons import TOO_FEW, Reason
from servebench.analysis.warnings.catalog import type_of
from servebench.contracts.level import Level
from servebench.util.figures import plus_minus

if TYPE_CHECKING:
    from servebench.analysis.limits.model import LimitSummary


@dataclass(frozen=True, kw_only=True)
class AnswerCell:
    """A load level of a run: its throughput (of texts where nothing is generated) with its 95% interval, TTFT p50 and p99, mean
    ITL and E2E p50 in ms. A `best` cell leads all others of its level by more than the intervals leave open; a `few_for_p99` has
    too few requests for an interval of its p99."""

    value: float | None
    unit: str = "tok/s"
    low: float | None = None
    high: float | None = None
    ttft_ms: float | None = None
    ttft_ms_p99: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None
    few_for_p99: bool = False
    verdict: str = "valid"
    codes: tuple[str, ...] = ()
    best: bool = False
    wide: bool = False
    """Whether the interval is wider than it should be."""

    @property
    def text(self) -> str:
        """The throughput with half of its interval."""
        return plus_minus(self.value, self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class AnswerColumn:
    """A run in the table of its workload. `cells` are by level."""

    run_id: str
    label: str
    colour: int
    status: str
    error: str | None
    cells: Mapping[Level, AnswerCell]

    @property
    def codes(self) -> tuple[str, ...]:
        """The warnings of its points that are doubtful or void, each once."""
        return tuple(dict.fromkeys(code for cell in self.cells.values() for code in cell.codes))


@dataclass(frozen=True, kw_only=True)
class Rival:
    """A run that was measured at a level beside the best one.

    `distance` is that of its value from the value of the best, as a share. `row` compares the two, the best as the candidate.
    `clear`: the lead over it is more than chance. `bound` is what one start each of equal engines may differ by, as a share,
    `unequal` are the settings of the two that differ and matter.
    """

    label: str
    distance: float
    row: ComparisonRow | None = None
    clear: bool = False
    bound: float = 0.0
    unequal: tuple[str, ...] = ()

    @property
    def tested(self) -> bool:
        """Whether the lead over it was tested over starts, so that its interval says by how much starts differ, too."""
        return self.row is not None and self.row.p_corrected is not None

    @property
    def of_single_starts(self) -> bool:
        """Whether one of the two was measured on one start: how much starts differ is known by earlier ones at most."""
        return self.row is not None and self.row.method is not None and min(self.row.method.starts) == 1


@dataclass(frozen=True, kw_only=True)
class LevelLead:
    """The lead of the best run of a level over its `rivals`, the nearest first. `within`: no two runs differ by more."""

    level: Level
    best: str
    rivals: tuple[Rival, ...]
    within: float | None = None

    @property
    def rival(self) -> Rival:
        """The rival to name: the nearest, or where a lead is not clear, the nearest of those that it is not clear against."""
        return next((one for one in self.rivals if not one.clear), self.rivals[0])

    @property
    def few(self) -> Reason | None:
        """Why a ratio to the rival would mean nothing: too few requests, or too short a time."""
        reasons = () if self.rival.row is None else self.rival.row.reasons
        return next((one for one in reasons if one.kind in TOO_FEW), None)

    @property
    def size(self) -> float:
        """The lead over the rival, as a share."""
        row = self.rival.row
        return row.effect if row is not None and row.effect is not None else 1 / (1 + self.rival.distance) - 1

    @property
    def low(self) -> float | None:
        """The lower end of its interval."""
        return self.rival.row.low if self.rival.row is not None else None

    @property
    def high(self) -> float | None:
        """The upper end of its interval."""
        return self.rival.row.high if self.rival.row is not None else None

    @property
    def clear(self) -> bool:
        """Whether the lead is more than chance against any other run."""
        return all(one.clear for one in self.rivals)

    @property
    def certain(self) -> bool:
        """Whether the lead over the rival is more than chance, and may yet be too small to matter."""
        row = self.rival.row
        return row is not None and row.p_corrected is not None and row.p_corrected < SIGNIFICANCE

    @property
    def verdict(self) -> bool:
        """Whether it is one on the engines, by several starts, and not only a difference of these starts."""
        return all(one.row is not None and one.row.competes and one.row.result is FASTER for one in self.rivals)

    @property
    def tied(self) -> tuple[str, ...]:
        """The runs that the lead is not clear against."""
        return tuple(one.label for one in self.rivals if not one.clear)

    @property
    def behind(self) -> tuple[tuple[str, float], ...]:
        """The runs that are clearly behind, each with its distance from the best as a share."""
        return tuple((one.label, one.distance) for one in self.rivals if one.clear)

    @property
    def unequal(self) -> tuple[str, ...]:
        """Settings of the best and any other run that differ and matter."""
        return tuple(dict.fromkeys(key for one in self.rivals for key in one.unequal))

    @property
    def codes(self) -> tuple[str, ...]:
        """Warnings of unknown size, which make it provisional."""
        return tuple(dict.fromkeys(code for row in self._rows for code in row.doubts))

    @property
    def by_earlier(self) -> bool:
        """Whether an interval rests on how much earlier starts differed."""
        return any(row.method is not None and row.method.earlier > 0 for row in self._rows)

    @property
    def _rows(self) -> list[ComparisonRow]:
        return [one.row for one in self.rivals if one.row is not None]


@dataclass(frozen=True, kw_only=True)
class Overall:
    """The verdict on all runs of a workload by the mean throughput over all levels: the `best` leads the `rival`, the next, by a
    share with its interval; or, without a best, no two runs differ by more than `within`."""

    best: str | None = None
    rival: str | None = None
    size: float | None = None
    low: float | None = None
    high: float | None = None
    within: float | None = None


@dataclass(frozen=True, kw_only=True)
class OtherDifference:
    """A difference between two runs in another metric than throughput, by their labels."""

    baseline: str
    candidate: str
    row: ComparisonRow


@dataclass(frozen=True, kw_only=True)
class NotUsable:
    """Who took most of the machine in points that are void for that, and at which levels of which runs, by label."""

    by: Taker
    places: Mapping[str, tuple[Level, ...]]


@dataclass(frozen=True, kw_only=True)
class WorkloadAnswer:
    """One workload: its runs by load level, who leads at each, and what else differs where nobody does.

    `facts` are what all its runs share: lengths, the model, the GPU. Where only one of its runs was measured, there are no leads.
    `overall` is None where that question is open.
    """

    workload: str
    facts: tuple[str, ...]
    levels: tuple[Level, ...]
    columns: tuple[AnswerColumn, ...]
    leads: tuple[LevelLead, ...]
    others: tuple[OtherDifference, ...] = ()
    overall: Overall | None = None
    not_usable: NotUsable | None = None

    @property
    def unit(self) -> str:
        """The unit of its throughputs."""
        return next((cell.unit for column in self.columns for cell in column.cells.values()), "tok/s")


@dataclass(frozen=True, kw_only=True)
class FailedRun:
    """A run that has not finished, or has an `unreadable` file: its label, how it stands, and the error that the user saw."""

    label: str
    standing: str
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A warning with the points that it concerns, and how many these are. A `mark` does not make a point doubtful."""

    code: str
    meaning: str
    remedy: str
    places: tuple[str, ...]
    points: int = 0
    of: int = 0
    mark: bool = False

    @property
    def first(self) -> bool:
        """Whether it belongs on the first screen: it makes points doubtful, or says what their numbers leave out."""
        return not self.mark or type_of(self.code).leaves_out

    @property
    def brief(self) -> str:
        """The first clause of the meaning."""
        return self.meaning.partition(", ")[0]

    @property
    def where(self) -> str:
        """The points in words."""
        return "; ".join(self.places)


@dataclass(frozen=True, kw_only=True)
class Inequality:
    """A setting or fact in which runs differ: their labels by value. `where` is the workload and the load level, if it does not
    hold for all."""

    key: str
    title: str
    values: Mapping[str, tuple[str, ...]]
    matters: bool
    reason: str
    where: str = ""

    @property
    def name(self) -> str:
        """What differs, and where."""
        return f"{self.title} ({self.where})" if self.where else self.title

    @property
    def text(self) -> str:
        """What differs, and each value with the runs that have it."""
        parts = (f"{value} ({', '.join(names)})" for value, names in self.values.items())
        return f"{self.name}: {', '.join(parts)}"


class Purpose(StrEnum):
    """Why to run a command next."""

    FINISH = "finish"  # measure what is missing
    TRY_AGAIN = "try_again"  # try the failed runs again
    MEND = "mend"  # mend the argument that failed
    DECIDE = "decide"  # decide what is open, with `count` more starts of each
    BETTER = "better"  # measure `count` of `of` doubtful points longer
    MORE_STARTS = "more_starts"  # get a verdict from `count` times this study
    NARROWER = "narrower"  # get narrower intervals of a single run from longer points
    UNTIL_DECIDED = "until_decided"  # get a verdict by adding starts until there is one
    ACCEPT = "accept"  # judge runs with different settings as if these were equal
    CHOOSE = "choose"  # see which run to choose for each use
    CHARTS = "charts"  # see all charts


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """A command to run next, what for, and about how long it takes. `purposes` say which counts have a value."""

    command: str
    purposes: tuple[Purpose, ...]
    count: int = 0
    of: int = 0
    seconds: float | None = None
    requests: int | None = None
    """For `better`: the most requests of a point, where it is measured more than twice as long."""
    continues: bool = False
    """Whether it measures what is missing."""


class CaveatKind(StrEnum):
    """What holds for a whole answer; in brackets, which fields of a Caveat have a value."""

    IMITATED = "imitated"  # the engines are emulated or simulated (`how`)
    OUT_OF_LINE = "out_of_line"
    """Each user of a run got far less at a level than at a heavier one (`label`, `level`, `heavier`, `factor`)."""
    ONE_START_EACH = "one_start_each"  # the leads are differences of single starts
    NO_VERDICT_YET = "no_verdict_yet"  # no lead is a verdict, and more starts may make it one
    BY_EARLIER = "by_earlier"  # with few starts of each, leads rest on how much earlier starts differed
    SLOW_STARTS = "slow_starts"  # some starts of a run's engine are slow at all levels (`label`, `slow_starts`)
    ONE_LENGTH = "one_length"  # the answers of a closed loop all have `tokens` tokens
    WIDE = "wide"  # intervals are wider than `limits`, which `keys` make narrower


@dataclass(frozen=True, kw_only=True)
class Caveat:
    """What holds for a whole answer. `kind` says which of the other fields have a value."""

    kind: CaveatKind
    how: str = ""
    label: str = ""
    level: Level | None = None
    heavier: Level | None = None
    factor: float = 0.0
    slow_starts: OwnSlowStarts | None = None
    tokens: int = 0
    limits: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """All that one screen says of some runs. `comparisons` are those that it rests on. A study took `took_s` seconds, and
    `expected_s` were announced (None: unknown)."""

    workloads: tuple[WorkloadAnswer, ...]
    failures: tuple[FailedRun, ...] = ()
    inequalities: tuple[Inequality, ...] = ()
    remarks: tuple[Remark, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    limits: LimitSummary | None = None
    next_steps: tuple[NextStep, ...] = ()
    expected_s: float | None = None
    took_s: float | None = None
    comparisons: tuple[Comparison, ...] = field(default=(), repr=False)
