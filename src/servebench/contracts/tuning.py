"""What `servebench tune` searches: the question, and the candidates."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen

from servebench.contracts.point_row import POINT_COLUMNS
from servebench.contracts.precision import seconds_of, share_of
from servebench.contracts.settings import PositiveFloat, PositiveInt

Origin = Literal["stock", "rule", "recipe", "limit", "sampled", "taken back"]
"""Where a candidate comes from: the engine's stock settings, the space's rule of thumb, a file of the user, the finding of what
limits the engine, a random draw, or a candidate with one of its settings taken back."""

Share = Literal["margin", "error", "quality_margin"]
"""The settings of a question that are shares."""
STOCK = "stock"
TRIALS_MIN = 6
"""Starts that compare one candidate with stock: one of each in the race, and two of each in the finals."""
MAX_LOAD = "max_load"
"""The objective that no column holds: the highest load that meets the SLO."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A quantity to improve: the column of a point that holds it, and none for MAX_LOAD."""

    name: str
    column: str

    @property
    def unit(self) -> str:
        """The unit of its values."""
        return POINT_COLUMNS[self.column].unit if self.column else "users or req/s"

    @property
    def higher(self) -> bool:
        """Whether more is better."""
        return not self.column or POINT_COLUMNS[self.column].better == "higher"


_OBJECTIVES = {
    "output_throughput": "output_throughput_tok_s",
    "request_throughput": "request_throughput_req_s",
    "goodput": "goodput_req_s",
    MAX_LOAD: "",
    "cost_usd_per_mtok": "cost_usd_per_mtok",
    # failed requests are infinitely slow in these
    **{f"{name}_{percent}": f"{name}_ms_{percent}_all" for name in ("ttft", "e2e") for percent in ("p50", "p99")},
    "tpot_mean": "tpot_ms_mean",
    "itl_mean": "itl_ms_mean",
}
OBJECTIVES: Mapping[str, Objective] = {name: Objective(name=name, column=one) for name, one in _OBJECTIVES.items()}
"""The objectives by name."""


@dataclass(frozen=True, kw_only=True)
class TuneQuestion:
    """The `tune.` words of a command.

    `levels` are the load levels at which the objective counts (null: the busiest of `load`). `budget` is engine time, `trials`
    instead a number of engine starts. Settings that differ by less than `margin` count as equal; `error` is the share of wrong
    exclusions that the race accepts. `only` limits the search to some parameters; `space` is a file in place of the engine's
    own, `candidates` a file with settings to try besides; at most `count` candidates are tried. `out` is where the engine
    file of the best one goes.
    """

    objective: str = "output_throughput"
    levels: Annotated[tuple[PositiveFloat, ...], MinLen(1)] | None = None
    budget: str | float = "60m"
    trials: Annotated[int, Ge(TRIALS_MIN)] | None = None
    margin: str | float = "3%"
    error: str | float = "5%"
    seed: int = 0
    count: Annotated[int, Ge(2)] = 24
    finalists: PositiveInt = 3
    final_starts: Annotated[int, Ge(2)] = 3
    only: tuple[str, ...] = ()
    space: str | None = None
    candidates: str | None = None
    quality_margin: str | float = "5%"
    out: str | None = None

    @property
    def budget_s(self) -> float:
        """The engine time in seconds. Raises ValueError with one line."""
        return seconds_of("tune.budget", self.budget)

    def share(self, name: Share) -> float:
        """Return one of these settings as a share. Raises ValueError with one line."""
        return share_of(f"tune.{name}", getattr(self, name))

    @property
    def target(self) -> Objective:
        """The objective."""
        return OBJECTIVES[self.objective]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Settings to try: what they change from the stock settings of their engine. `note` says more about the origin, `run` is the
    name of its run in a study."""

    name: str
    engine: str
    origin: Origin
    settings: Mapping[str, Any] = field(default_factory=dict)
    answers: bool = False
    note: str = ""
    run: str = ""


@dataclass(frozen=True, kw_only=True)
class RefusedCandidate:
    """A candidate that is not started, and why."""

    candidate: Candidate
    why: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a step gave. `value` is the objective as a logarithm, higher for better; None where nothing was measured.

    `failure` says why the engine did not start or died. `good` of `tested` requests met the SLO, both as effective numbers of
    independent requests; `failed` of `sent` had no answer. `start_id` tells starts of the engine apart. `same_answers` is that of
    a quality step. `void`: the point is void, and measuring it again did not help. A point in slices has the `slice_group` that
    it shares with those of others, and in `slices` the objective of each, as `value` has it; NaN where one has none.
    `error` is the standard error of `value` by the point's own interval; None without one. `point_cost` is what the load alone
    cost, and `sliced_cost` what it would have in slices; 0 where that is not known.
    """

    value: float | None = None
    error: float | None = None
    cost: float = 0.0
    failure: str | None = None
    good: float = 0.0
    tested: float = 0.0
    failed: int = 0
    sent: int = 0
    start_id: str = ""
    same_answers: bool | None = None
    void: bool = False
    note: str = ""
    slice_group: str | None = None
    slices: tuple[float, ...] = ()
    point_cost: float = 0.0
    sliced_cost: float = 0.0
