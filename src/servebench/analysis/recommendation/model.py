"""Who takes part in a recommendation, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from servebench.analysis.comparison.model import ComparedPoint
from servebench.analysis.recommendation.draws import resampled_metric
from servebench.analysis.recommendation.rules import UseCase
from servebench.analysis.slo import SloLimits
from servebench.analysis.statistics import Floats
from servebench.contracts.point_row import PointRow

Outcome = Literal["winner", "no clear winner", "only one", "none qualifies", "not measured"]


@dataclass(frozen=True, kw_only=True)
class RankedLevel:
    """A load level of an entrant: its row of points.csv, and the points of all its repeats."""

    row: PointRow
    label: str
    load: float
    verdict: str
    doubts: tuple[str, ...]
    samples: tuple[ComparedPoint, ...]


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """A run that takes part. `own_limits` is the SLO that it was run with; `manifest` serves only the fairness check."""

    name: str
    engine: str
    model: str
    gpu: str
    workload: str
    levels: tuple[RankedLevel, ...]
    cold_start_s: float | None = None
    own_limits: SloLimits | None = None
    price_usd_per_hour: float | None = None
    gpu_count: int = 0
    manifest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Score:
    """What an entrant reached. `at` is the load level, `slo_at` the highest load that met the SLO."""

    entrant: Entrant
    value: float
    at: str = ""
    level: RankedLevel | None = None
    slo_at: str | None = None
    doubtful: bool = False
    metric: str = "cold_start"

    @cached_property
    def draws(self) -> Floats | None:
        """The score of each resample; None when it was measured once or there is too little data."""
        if self.level is None:
            return None
        return resampled_metric(
            self.metric,
            self.level.row,
            self.level.samples,
            limits=self.entrant.own_limits or SloLimits(),
            # seeded by name, so that two entrants are drawn independently and each the same every time
            seed=self.entrant.name + self.level.label,
            price_usd_per_hour=self.entrant.price_usd_per_hour,
            gpu_count=self.entrant.gpu_count,
        )

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval; None when it was measured once."""
        if self.draws is None:
            return None
        low, high = np.quantile(self.draws, [0.025, 0.975]).tolist()
        return low, high


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The answer for a use case among the entrants of one setup (model, GPU, workload).

    `lead` is the winner's (or, without one, the leader's) lead over the runner-up as a share of the runner-up, with its
    interval. `missing` says why entrants have no score, `changes` what would change the answer, `quality` which entrants
    of the ranking are significantly less accurate.
    """

    use_case: UseCase
    group: str
    outcome: Outcome
    ranking: tuple[Score, ...] = ()
    lead: float | None = None
    lead_low: float | None = None
    lead_high: float | None = None
    why: str = ""
    missing: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    quality: tuple[str, ...] = ()

    @property
    def winner(self) -> Score | None:
        """The winner, if there is one."""
        return self.ranking[0] if self.outcome == "winner" else None
