"""Who takes part in a recommendation, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from servebench.analysis.slo import SloLimits
from servebench.analysis.verdict.levels import RankedLevel
from servebench.analysis.verdict.model import ComparisonRow

if TYPE_CHECKING:
    from servebench.analysis.recommendation.rules import UseCase

Outcome = Literal[
    "winner",
    "provisional",
    "no clear difference",
    "different settings",
    "one start each",
    "only one",
    "none qualifies",
    "not measured",
]


BEST: dict[str, str] = {"clear": "best", "provisional": "best, provisional", "one start each": "fastest seen"}
"""What the first of a ranking is called, by how far it is to be trusted."""
ONE_START = (
    "more than chance, but of one start each: a difference of these starts, not yet a verdict on the engines; study.starts=5 "
    "measures five of each"
)
DOUBTFUL = "the point of {name} is doubtful, although its warnings ({codes}) do not account for the lead"


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """A run that takes part: `name` is its label, `run_id` identifies it, `own_limits` is the SLO that it was run with,
    `unmeasured` are its load levels without a point that counts (void, or planned and missing) with their load, and `manifest`
    serves only the fairness check."""

    name: str
    engine: str
    model: str
    gpu: str
    workload: str
    levels: tuple[RankedLevel, ...]
    run_id: str = ""
    unmeasured: tuple[tuple[str, float], ...] = ()
    cold_start_s: float | None = None
    own_limits: SloLimits | None = None
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
    at: str = ""
    level: RankedLevel | None = None
    slo_at: str | None = None
    doubtful: bool = False
    metric: str = "cold_start"
    interval: tuple[float, float] | None = None
    worst: RankedLevel | None = None
    best: RankedLevel | None = None
    undecided: str = ""
    """The levels at which it is undecided whether the SLO is met."""


DecidedRow = Callable[[Score, Score], ComparisonRow | None]
"""Returns what a comparison over several starts has found of the first against the second, as the candidate; None where it
gives no verdict on them."""


@dataclass(frozen=True)
class NotRanked:
    """A run without a score, by its label, and why."""

    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The answer for a use case among the entrants of one setup (model, GPU, workload).

    `lead` is the winner's (or, without one, the leader's) lead over the `rival`, the next best, as a share of that one's value,
    with its interval. `missing` says why entrants have no score, `changes` what would change the answer, `quality` which entrants
    of the ranking are significantly less accurate. A `provisional` outcome is a win that warnings may change; `one_start`
    says that the lead rests on one start of an engine.
    """

    use_case: UseCase
    group: str
    outcome: Outcome
    ranking: tuple[Score, ...] = ()
    lead: float | None = None
    lead_low: float | None = None
    lead_high: float | None = None
    rival: str = ""
    why: str = ""
    missing: tuple[NotRanked, ...] = ()
    changes: tuple[str, ...] = ()
    quality: tuple[str, ...] = ()
    one_start: bool = False

    @property
    def trust(self) -> str:
        """How far to trust the first of the ranking: its outcome, where a win is `clear` or, on a doubtful point or on one
        start of an engine, `provisional`."""
        if self.outcome != "winner":
            return self.outcome
        return "provisional" if self.trust_why else "clear"

    @property
    def trust_why(self) -> str:
        """Why there is no win, or why it is not clear; empty where it is."""
        if self.outcome != "winner":
            return self.why
        first = self.ranking[0]
        codes = ", ".join(first.level.doubts) if first.level is not None else ""
        doubt = DOUBTFUL.format(name=first.entrant.name, codes=codes) if first.doubtful else ""
        return "; ".join(filter(None, (doubt, ONE_START if self.one_start else "")))

    @property
    def best(self) -> str:
        """What to call the first of the ranking, in the words of the levels: `best` where its lead is clear, `ahead` where it
        is more than the interval leaves open and yet not a win; empty where it is neither."""
        if self.trust in BEST:
            return BEST[self.trust]
        low, high = self.lead_low, self.lead_high
        return "ahead" if low is not None and high is not None and low * high > 0 else ""

    @property
    def words(self) -> str:
        """The outcome in words that do not contradict the interval of the lead: who is ahead by more than it leaves open, and yet
        has not won, leaves no clear *winner*."""
        return "no clear winner" if self.outcome == "no clear difference" and self.best else self.outcome

    @property
    def winner(self) -> Score | None:
        """The winner, if there is one."""
        return self.ranking[0] if self.outcome == "winner" else None
