"""Why a use has no best run, or not a firm one, and what would change that. Nothing here is a sentence: the words are those of
`report.wording.recommendation`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from servebench.analysis.disturbance import Taker
from servebench.analysis.fairness import SettingDifference
from servebench.contracts.level import Level


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
