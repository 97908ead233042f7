"""The gate: which metrics of a candidate are shown to be worse by no more than a limit (non-inferiority), and which are not.

Each judged metric has to be within the limit at each load level, so a candidate that is worse by the limit somewhere passes no
more often than one such interval leaves it out (an intersection-union test: Berger 1982, Technometrics 24).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from servebench.analysis.quality.agreement import Agreement
from servebench.analysis.verdict.model import (
    FAILED,
    METRICS,
    THROUGHPUT,
    Comparison,
    ComparisonRow,
    Metric,
    VerdictKind,
)
from servebench.analysis.verdict.questions import missing_row
from servebench.analysis.verdict.reasons import Reason, ReasonKind
from servebench.analysis.verdict.slices import enough, pooled_error
from servebench.contracts.estimate import Z_95
from servebench.contracts.level import Level
from servebench.util.errors import ConfigError

JUDGED = ("output_throughput_tok_s", "tpot_ms_p50", "e2e_ms_p50", FAILED.name)
"""What a gate judges that names no metric. TTFT is left out: it is one of two values in a few starts, and a p99 rests on few
requests; both still fail the gate where they are shown to be worse."""
KNOWN = 0.5
"""The largest standard error of the difference of two starts, as a share of the limit, with which a latency is judged that nobody
named. In a closed loop the throughput says the same; medians of a few dozen requests would only keep the gate open."""
GATED = {one.name: one for one in (*METRICS, FAILED)}
"""What may be named."""


@dataclass(frozen=True)
class GateQuestion:
    """Whether a candidate is worse by no more than `limit`, a share, in the named metrics; None: in the throughput, and in the
    others of JUDGED where they are known well enough."""

    limit: float
    metrics: tuple[str, ...] | None = None

    def asks(self, metric: Metric, level: Level, error: float) -> bool:
        """Return whether a metric that can be tested has to be within the limit, by the standard error of the difference of two
        starts. At a rate of arrivals latencies do: the throughput is that of the rate."""
        if self.metrics is not None:
            return metric.name in self.metrics
        always = metric in (THROUGHPUT, FAILED) or level.open_loop
        return metric.name in JUDGED and (always or error <= KNOWN * self.limit)


def check_metrics(key: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of metrics. Raises ConfigError with one line for an unknown one, which is named with its `key`."""
    found = tuple(dict.fromkeys(name.strip() for name in names))
    for name in found:
        if name not in GATED:
            raise ConfigError(f"{key}: {name!r} is not compared; use one or several of {', '.join(GATED)}")
    return found


@dataclass(frozen=True)
class PairGate:
    """What a pair of runs is by a question: the rows that are worse by more than the limit; those that may be, or that cannot be
    judged although they have to be (None: the comparison as a whole); those within it; and those that nobody asked for and that
    are not known to be within it."""

    losses: tuple[ComparisonRow, ...] = ()
    undecided: tuple[ComparisonRow | None, ...] = ()
    within: tuple[ComparisonRow, ...] = ()
    not_judged: tuple[ComparisonRow, ...] = ()

    @property
    def verdict(self) -> VerdictKind:
        """NOT_WORSE if it passes, SLOWER if it fails, OPEN where more starts may decide, else NOT_COMPARED."""
        if self.losses:
            return VerdictKind.SLOWER
        if any(row is None or row.more_starts_help for row in self.undecided):
            return VerdictKind.OPEN
        return VerdictKind.NOT_COMPARED if self.undecided else VerdictKind.NOT_WORSE


@dataclass(frozen=True)
class Gate:
    """What a pipeline looks at: it passes where nothing is worse by more than the limit, and nothing is undecided."""

    question: GateQuestion
    pairs: tuple[tuple[Comparison, PairGate], ...]

    @property
    def regressions(self) -> list[tuple[str, ComparisonRow]]:
        """(candidate, row) of the metrics that are worse by more than the limit."""
        return [(one.candidate, row) for one, own in self.pairs for row in own.losses]

    @property
    def quality_losses(self) -> list[tuple[str, Agreement]]:
        """(candidate, agreement) of the benchmarks that are worse by more than the limit."""
        return [(one.candidate, a) for one, _ in self.pairs for a in one.agreements if a.lost > self.question.limit]

    @property
    def undecided(self) -> list[tuple[Comparison, ComparisonRow | None]]:
        """What is undecided of each comparison."""
        return [(one, row) for one, own in self.pairs for row in own.undecided]

    @property
    def failed(self) -> bool:
        """Whether something is worse by more than the limit."""
        return bool(self.regressions or self.quality_losses)


def evaluate_gate(found: Iterable[Comparison], question: GateQuestion) -> Gate:
    """Return which comparisons fail the limit and which cannot be decided."""
    return Gate(question, tuple((one, judge_pair(one, question)) for one in found))


def judge_pair(comparison: Comparison, question: GateQuestion) -> PairGate:
    """Return what the rows of a comparison are by a question."""
    if comparison.result == "unequal_settings" or not any(map(_tested, comparison.rows)):
        return PairGate(undecided=(None,))
    losses, undecided, within, not_judged = [], [], [], []
    # what is generated has a throughput; of embeddings and rankings the latencies have to be known, however well they are
    generated = {row.level for row in comparison.rows if row.metric is THROUGHPUT}
    for row in (*comparison.rows, *_absent(comparison, question)):
        named = question.metrics is not None and row.metric.name in question.metrics
        if row.level_missing:
            undecided.append(row)
        elif question.metrics is not None and not named:
            continue
        elif row.competes and row.result is VerdictKind.SLOWER and abs(row.effect or 0) > question.limit:
            losses.append(row)
        elif _tested(row) and row.worst_case <= question.limit:
            within.append(row)
        elif (
            named
            or (row.metric is THROUGHPUT and not row.has(ReasonKind.LEVEL_MISSING))
            or (_tested(row) and question.asks(row.metric, row.level, _error(row) if row.level in generated else 0.0))
        ):
            undecided.append(row)
        else:
            not_judged.append(row)
    return PairGate(tuple(losses), tuple(undecided), tuple(within), tuple(not_judged))


def _error(row: ComparisonRow) -> float:
    """The standard error of the difference of two starts, as the points or the slices of those that were looked at have it."""
    if row.starts is None:
        return math.inf
    starts = row.starts.first(row.looked) if row.looked else row.starts
    known = [one for one in starts.slice_differences if one is not None]
    if enough(known):
        return pooled_error(known)
    if known and row.low is not None and row.high is not None:
        # a start says hardly anything of its own error; the interval is that of the mean of all
        return (math.log1p(row.high) - math.log1p(row.low)) / (2 * Z_95) * math.sqrt(len(known))
    return math.hypot(*starts.error)


def _tested(row: ComparisonRow) -> bool:
    return row.competes and row.p_corrected is not None and not row.has(ReasonKind.STARTS_OF_TTFT)


def _absent(comparison: Comparison, question: GateQuestion) -> Iterator[ComparisonRow]:
    """Rows for named metrics that neither side has at a level; without failed requests there is no share of them to judge."""
    for level in dict.fromkeys(row.level for row in comparison.rows if not row.level_missing):
        for name in question.metrics or ():
            if name != FAILED.name and not any(row.metric.name == name for row in comparison.at(level)):
                yield missing_row(level, GATED[name], Reason(ReasonKind.METRIC_MISSING, side="both"))
