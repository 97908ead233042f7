"""Who takes part in a recommendation, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from servebench.analysis.recommendation.reasons import UseReason, UseReasonKind
from servebench.analysis.verdict.levels import RankedLevel
from servebench.analysis.verdict.model import ComparisonRow
from servebench.contracts.estimate import Interval
from servebench.contracts.level import Level
from servebench.contracts.settings import SloSettings

if TYPE_CHECKING:
    from servebench.analysis.quality.agreement import Agreement
    from servebench.analysis.recommendation.rules import UseCase

Outcome = Literal[
    "best",
    "provisional",
    "no clear difference",
    "one start each",
    "only one",
    "none qualifies",
    "not measured",
]
"""What a use has: a best run, one that warnings may change, or none, and why."""
Sureness = Literal["sure", "likely", "open"]
"""How sure it is which run to take for a use."""


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """A run that takes part: `name` is its label, `run_id` identifies it, `own_limits` is the SLO that it was run with,
    `unmeasured` are its load levels without a point that counts (void, or planned and missing), and `manifest`
    serves only the fairness check."""

    name: str
    engine: str
    model: str
    gpu: str
    workload: str
    levels: tuple[RankedLevel, ...]
    run_id: str = ""
    unmeasured: tuple[Level, ...] = ()
    cold_start_s: float | None = None
    own_limits: SloSettings | None = None
    price_usd_per_hour: float | None = None
    gpu_count: int = 0
    manifest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Score:
    """What an entrant reached. `at` is the load level, `slo_at` the highest load that met the SLO, `interval` the 95% interval
    of the value (None when it was measured once).

    `worst` and `best` are the levels that count if undecided levels miss or meet the SLO: None where then none counts.
    """

    entrant: Entrant
    value: float
    at: Level | None = None
    level: RankedLevel | None = None
    slo_at: Level | None = None
    doubtful: bool = False
    metric: str = "cold_start"
    interval: Interval | None = None
    worst: RankedLevel | None = None
    best: RankedLevel | None = None
    undecided: UseReason | None = None
    """The first level at which it is undecided whether the SLO is met, and why."""


DecidedRow = Callable[[Score, Score], ComparisonRow | None]
"""Returns what a comparison over several starts has found of the first against the second, as the candidate; None where it
gives no verdict on them."""


@dataclass(frozen=True)
class LessAccurate:
    """A run that is significantly less accurate than another, by their labels; `agreement` has the other first."""

    name: str
    other: str
    agreement: Agreement


@dataclass(frozen=True)
class NotRanked:
    """A run without a score, by its label, and why."""

    name: str
    why: UseReason


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The answer for a use case among the entrants of one setup (model, GPU, workload).

    `lead` is that of the first of the ranking over the `rival`, the next best, as a share of that one's value, with its
    `interval`. `why` says why the first is not the best, or why provisionally, `missing` why entrants have no score, `changes`
    what would change the answer, `quality` which entrants of the ranking are significantly less accurate. `one_start` says that
    the lead rests on one start of an engine.
    """

    use_case: UseCase
    group: str
    outcome: Outcome
    ranking: tuple[Score, ...] = ()
    lead: float | None = None
    interval: Interval | None = None
    rival: str = ""
    why: UseReason | None = None
    missing: tuple[NotRanked, ...] = ()
    changes: tuple[UseReason, ...] = ()
    quality: tuple[LessAccurate, ...] = ()
    one_start: bool = False
    unequal: UseReason | None = None
    """The settings in which the first differs from others, which make the answer likely at most."""

    @property
    def trust(self) -> str:
        """How far to trust the first of the ranking: its outcome, where the best is `clear` or, on a doubtful point or on one
        start of an engine, `provisional`."""
        if self.outcome != "best":
            return self.outcome
        return "provisional" if self.reservations else "clear"

    @property
    def reservations(self) -> tuple[UseReason, ...]:
        """Why there is no best, or why it is not clear; empty where it is."""
        if self.outcome != "best":
            return tuple(dict.fromkeys(filter(None, (self.why, self.unequal))))
        first, found = self.ranking[0], []
        if first.doubtful:
            codes = first.level.doubts if first.level is not None else ()
            found.append(UseReason(kind=UseReasonKind.DOUBTFUL_POINT, run=first.entrant.name, codes=codes))
        return (*found, *([UseReason(kind=UseReasonKind.ONE_START_EACH)] if self.one_start else []))

    @property
    def equal(self) -> bool:
        """Whether there are two runs, known to differ by no more than a bound. Of more, the reason concerns only two."""
        at_most = self.why is not None and self.why.kind is UseReasonKind.AT_MOST
        return self.outcome == "no clear difference" and at_most and len(self.ranking) == 2

    @property
    def sureness(self) -> Sureness:
        """`sure` where the best is clear or the only two are equal, `likely` where the first leads by more than intervals leave
        open and something else holds the verdict back, else `open`: also of single cold starts, of which a file cache makes the
        later ones faster."""
        if self.trust == "clear" or self.equal:
            return "sure" if self.unequal is None else "likely"
        return "likely" if self.outcome in ("best", "provisional") else "open"

    @property
    def ahead(self) -> bool:
        """Whether the interval of the lead leaves out 0."""
        return self.interval is not None and self.interval[0] * self.interval[1] > 0

    @property
    def best(self) -> Score | None:
        """The best, if there is one."""
        return self.ranking[0] if self.outcome == "best" else None
