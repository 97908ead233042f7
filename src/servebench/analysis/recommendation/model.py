"""Who takes part in a recommendation, and what comes out. Reasons are values: `report.wording.recommendation` has their words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from servebench.analysis.disturbance import Taker
from servebench.analysis.fairness import SettingDifference
from servebench.analysis.verdict.levels import RankedLevel
from servebench.contracts.estimate import Interval
from servebench.contracts.level import Level
from servebench.contracts.stored import RunData, mapping

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


class UseReasonKind(StrEnum):
    """A reason; in brackets, which fields of a UseReason have a value."""

    # why the first of a ranking is not the best
    UNMEASURED = "unmeasured"  # a rival may reach more at heavier loads, of which no point counts (`rival`, `levels`)
    SLO_UNDECIDED = "slo_undecided"  # whether the first meets the SLO is undecided (`run`, `cause`)
    BY_SLO_POINT = "by_slo_point"  # the lead depends on which level is the SLO point (`rival`, `cause`)
    ONE_COLD_START = "one_cold_start"  # one cold start of each is stored (a small lead: `rival`, `share`)
    ONE_MEASUREMENT = "one_measurement"  # each was measured once, and the lead is small (`rival`, `share`)
    STARTS_MAY_DIFFER = "starts_may_differ"  # starts of one engine may differ by as much (`run`, `rival`, `share`)
    INCLUDES_ZERO = "includes_zero"
    """The interval of the lead includes 0 (`rival`, `interval`; `share` is its confidence, for several rivals)."""
    AT_MOST = "at_most"  # the two differ by at most `share` (`rival`, `metric`)
    NOT_DECIDED = "not_decided"
    """More starts are needed (`rival`, `metric`; `interval` where it leaves out 0 and that may be chance)."""
    BELOW_MARGIN = "below_margin"  # the lead is too small to matter (`rival`, `share`, `limit`)
    NONE_RANKED = "none_ranked"  # no run has a score
    ONLY_ONE = "only_one"  # no other run has a score (`run`)
    # what makes the best provisional
    UNEQUAL = "unequal"  # settings of the first and of rivals differ and matter (`settings`)
    UNKNOWN_SIZE = "unknown_size"
    """The first leads, and a point has warnings of unknown size (`run`; `rival`, if it is its point; `levels`, `codes`)."""
    MAY_ACCOUNT = "may_account"  # warnings may account for the lead (`rival`, `codes`)
    DOUBTFUL_POINT = "doubtful_point"  # warnings of the point do not account for the lead (`run`, `codes`)
    ONE_START_EACH = "one_start_each"  # the lead is more than chance, but of one start each
    # why a use was not measured
    NO_RUN = "no_run"  # no run has one of these workloads (`names`)
    NO_PRICE = "no_price"  # no run has a price of its GPU (`names`)
    NOTHING_TO_PAY = "nothing_to_pay"  # the runs have a price, and no GPU
    NO_SLO = "no_slo"  # no run has an SLO
    NO_THROUGHPUT = "no_throughput"  # no point of a run with a price has any throughput
    NO_GOOD_REQUEST = "no_good_request"  # no point of a run with a price has a request that met its SLO
    NO_POWER = "no_power"  # power could not be read
    # why a run has no score
    NO_COLD_START = "no_cold_start"  # no cold start was measured
    NO_VALID_POINT = "no_valid_point"  # all points are void (`codes`, `taker`)
    NOT_MET = "not_met"  # no point meets what the rule requires (`names`)
    LOAD_TOO_HIGH = "load_too_high"  # the lowest load is above the limit (`levels`, `limit`)
    NO_VALUE = "no_value"  # the metric has no value (`metric`)
    SLO_MISSED = "slo_missed"
    """Not even the lowest load meets the SLO (`levels`, `names`: the limits, `share` of requests that do)."""
    TOO_CLOSE = "too_close"
    """The share of requests that meet the SLO is too close to the wanted one (`levels`, `share`, `count`, `limit`)."""
    NO_REQUESTS = "no_requests"  # there are no single requests that could be tested against the SLO (`levels`)
    # what would change the answer
    NONE_WITH_LIMIT = "none_with_limit"  # none meets another limit (`metric`, `limit`)
    LEADS_WITH_LIMIT = "leads_with_limit"  # another leads with another limit (`run`, `metric`, `limit`)
    STILL_MET = "still_met"  # the limits were still met at the highest load (`run`, `levels`)
    LEADS_AT = "leads_at"  # another leads at these loads (`run`, `levels`)
    AS_CHEAP = "as_cheap"  # another is as cheap at a price per GPU hour (`run`, `limit`)
    IN_DOUBT = "in_doubt"  # points of a run are doubtful on which the answer rests (`run`, `levels`, `codes`)


@dataclass(frozen=True, kw_only=True)
class UseReason:
    """One reason. `kind` says which of the other fields have a value; `run` and `rival` are labels."""

    kind: UseReasonKind
    run: str = ""
    rival: str = ""
    metric: str = ""
    levels: tuple[Level, ...] = ()
    codes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    share: float = 0.0
    limit: float = 0.0
    count: int = 0
    interval: tuple[float, float] | None = None
    settings: tuple[SettingDifference, ...] = ()
    cause: UseReason | None = None
    taker: Taker | None = None


@dataclass(frozen=True)
class Entrant:
    """A run that takes part, by its label; `unmeasured` are its load levels without a point that counts (void, or planned and
    missing)."""

    name: str
    run: RunData
    levels: tuple[RankedLevel, ...]
    unmeasured: tuple[Level, ...] = ()

    @property
    def gpus(self) -> tuple[float | None, int]:
        """The price of a GPU for an hour, in USD, and the number of GPUs."""
        gpu = mapping(self.run.config.get("gpu"))
        return gpu.get("price_usd_per_hour"), int(gpu.get("count") or 0)


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
        first = self.ranking[0]
        codes = first.level.doubts if first.level is not None else ()
        doubtful = UseReason(kind=UseReasonKind.DOUBTFUL_POINT, run=first.entrant.name, codes=codes)
        one_start = UseReason(kind=UseReasonKind.ONE_START_EACH)
        return (*([doubtful] if first.doubtful else []), *([one_start] if self.one_start else []))

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
