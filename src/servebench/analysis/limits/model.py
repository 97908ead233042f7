"""What is known about a load level, what limits the engine there, and what to try."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from servebench.contracts.level import Level
from servebench.contracts.limits import Limit

THROUGHPUT, TTFT = "output_throughput_tok_s", "ttft_ms_mean"
IMPROVES = {
    Limit.CLIENT: "ttft_from_schedule_ms_p50",
    **dict.fromkeys((Limit.NETWORK, Limit.FRONT_END, Limit.BEFORE_ENGINE), TTFT),
    **dict.fromkeys((Limit.RUNNING, Limit.TOKEN_BUDGET, Limit.QUEUE), TTFT),
    **dict.fromkeys((Limit.KV_CACHE, Limit.COMPUTE, Limit.LOAD), THROUGHPUT),
    Limit.MEMORY_BANDWIDTH: "tpot_ms_mean",
}
"""Which column of a point gets better when a limit is removed."""
REQUESTS_MIN = 30
"""Of the level, for a mean to rest on: with fewer a point is doubtful (`too_few_requests`)."""


@dataclass(frozen=True, kw_only=True)
class LevelFacts:
    """What a run says about one load level, as means over its points; null where it does not say.

    Times are means in milliseconds. `ttft_ms` and `e2e_ms` count from the schedule. `parts` are those of `time_parts`.
    `running` and `waiting` are mean numbers of requests in the engine; `at_most` is how many ran at once at most, and
    `at_limit` the share of all waiting that happened while that many ran. `running_limit` is the configured most, else the
    engine's own; `token_budget` the configured one. `memory_share` and `compute_share` are those of the GPUs' peak, `idle` is
    that of the time without a request.
    """

    level: Level
    engine: str
    requests: int
    ttft_ms: float
    e2e_ms: float
    parts: Mapping[str, float] = field(default_factory=dict)
    client_ms: float | None = None
    client_cpu: float | None = None
    queue_ms: float | None = None
    running: float | None = None
    waiting: float | None = None
    at_most: float | None = None
    at_limit: float | None = None
    same_machine: bool = False
    running_limit: float | None = None
    token_budget: float | None = None
    request_rate: float | None = None
    itl_ms: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    kv_usage: float | None = None
    preempted: float | None = None
    connect_ms: float | None = None
    front_end_ms: float | None = None
    front_end_cores: float | None = None
    other_cores: float | None = None
    memory_share: float | None = None
    compute_share: float | None = None
    idle: float | None = None
    open_loop: bool = False
    kept_up: float | None = None
    in_flight: float | None = None

    @property
    def decode(self) -> float:
        """The share of E2E that is decoding."""
        return 1.0 - share_of(self.ttft_ms, self.e2e_ms)

    @property
    def front_end_cpu_ms(self) -> float:
        """The CPU time of the front end for a request; 0 where that is not known."""
        return (self.front_end_cores or 0.0) * 1e3 / self.request_rate if self.request_rate else 0.0


def share_of(part: float | None, whole: float) -> float:
    """Return a part as a share of the whole; 0 where either is unknown."""
    return part / whole if part is not None and whole > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A value on which a finding rests, and the threshold that it passed; null for context. Without a unit it is a `share`, or a
    plain number."""

    name: str
    value: float
    unit: str = ""
    at_least: float | None = None
    below: float | None = None
    share: bool = True

    @property
    def holds(self) -> bool:
        """Whether the value passes its threshold."""
        return (self.at_least is None or self.value >= self.at_least) and (
            self.below is None or self.value < self.below
        )


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A setting to try: `way` and `to` (empty: by how much is not known) say what to do with `key` and the engine's `flag`, and
    with the setting `also`. `override` is the argument of the next command, null where servebench has no setting for it. A
    setting `of_server` is changed where the server is started."""

    way: Literal["raise", "lower", "set"]
    key: str = ""
    flag: str = ""
    also: str = ""
    to: str = ""
    of_server: bool = False
    cost: str
    override: str | None = None


class LimitReason(Enum):
    """Why a limit was named, with the limit. `report.wording.limits` has the sentence of each."""

    SENT_LATE = "sent_late", Limit.CLIENT
    CLIENT_BUSY = "client_busy", Limit.CLIENT
    PREEMPTED = "preempted", Limit.KV_CACHE
    INSIDE_BY_OWN_TIME = "inside_by_own_time", Limit.FRONT_END
    OUTSIDE_BY_OWN_TIME = "outside_by_own_time", Limit.NETWORK
    CONNECTING = "connecting", Limit.NETWORK
    SIDE_UNKNOWN = "side_unknown", Limit.BEFORE_ENGINE
    FRONT_END_BUSY = "front_end_busy", Limit.FRONT_END
    FRONT_END_WORK = "front_end_work", Limit.FRONT_END
    FRONT_END_IDLE = "front_end_idle", Limit.NETWORK
    BEFORE_SCHEDULER = "before_scheduler", Limit.BEFORE_ENGINE
    CACHE_FULL = "cache_full", Limit.KV_CACHE
    AT_RUNNING_LIMIT = "at_running_limit", Limit.RUNNING
    FEW_TOKENS_A_STEP = "few_tokens_a_step", Limit.TOKEN_BUDGET
    WAITING = "waiting", Limit.QUEUE
    PREFILL_IN_STEPS = "prefill_in_steps", Limit.TOKEN_BUDGET
    IDLE = "idle", Limit.LOAD
    KEEPS_UP = "keeps_up", Limit.LOAD
    ARITHMETIC = "arithmetic", Limit.COMPUTE
    BANDWIDTH = "bandwidth", Limit.MEMORY_BANDWIDTH
    NONE = "none", Limit.NONE


@dataclass(frozen=True, kw_only=True)
class LimitFinding:
    """What limits the engine at the level of the `facts`, why, with its evidence, and what to try. `part_ms` is the part of TTFT
    that the reason names."""

    facts: LevelFacts
    reason: LimitReason
    part_ms: float = 0.0
    evidence: tuple[Fact, ...] = ()
    proposals: tuple[Proposal, ...] = ()

    @property
    def level(self) -> Level:
        """The load level."""
        return self.facts.level

    @property
    def code(self) -> Limit:
        """What limits the engine."""
        return self.reason.value[1]

    @property
    def improves(self) -> str | None:
        """The column of a point that a proposal should change; None for no limit."""
        return IMPROVES.get(self.code)

    @property
    def few(self) -> bool:
        """Whether it rests on few requests."""
        return self.found and self.facts.requests < REQUESTS_MIN

    @property
    def found(self) -> bool:
        """Whether there is a single limit."""
        return self.code is not Limit.NONE


@dataclass(frozen=True, kw_only=True)
class LimitSummary:
    """What limits some runs, with the label of each: `first` the limit at the heaviest load of each run that has one, `more` its
    other limits, each at its heaviest load, `without` who has none, and `unread` who was not looked at. `alone`: of one run."""

    first: tuple[tuple[str, LimitFinding], ...] = ()
    more: tuple[tuple[str, LimitFinding], ...] = ()
    without: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    alone: bool = False
