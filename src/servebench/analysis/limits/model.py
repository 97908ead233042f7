"""What is known about a load level, what limits the engine there, and what to try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True, kw_only=True)
class LevelFacts:
    """What a run says about one load level, as means over its points; null where it does not say.

    Times are means in milliseconds. `ttft_ms` and `e2e_ms` count from the schedule. `parts` are those of `time_parts`.
    `running` and `waiting` are mean numbers of requests in the engine; `at_most` is how many ran at once at most, and
    `at_limit` the share of all waiting that happened while so many ran. `running_limit` is the configured most, else the engine's
    own; `token_budget` the configured one. `memory_share` and `compute_share` are those of the GPUs' peak, `idle` is that of
    the time without a request.
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


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A setting to try: `override` is the argument of the next command, null where servebench has no setting for it."""

    action: str
    cost: str
    override: str | None = None


@dataclass(frozen=True, kw_only=True)
class LimitFinding:
    """What limits the engine at a level, in one sentence, with its evidence, and what to try.

    `improves` is the column of a point that a proposal should change, null for no limit; it should rise if `higher`.
    """

    level: Level
    code: Limit
    statement: str
    evidence: tuple[Fact, ...] = ()
    proposals: tuple[Proposal, ...] = ()

    @property
    def improves(self) -> str | None:
        """The column of a point that a proposal should change."""
        return IMPROVES.get(self.code)

    @property
    def higher(self) -> bool:
        """Whether that column should rise."""
        return self.improves == THROUGHPUT

    @property
    def found(self) -> bool:
        """Whether there is a single limit."""
        return self.code is not Limit.NONE

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        from dataclasses import asdict

        return {**asdict(self), "level": str(self.level), "code": str(self.code), "improves": self.improves}
