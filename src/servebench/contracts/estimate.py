"""The estimate of a metric at a load level, as screens, MLflow and conclusions have it."""

from dataclasses import dataclass
from statistics import NormalDist

from servebench.contracts.level import Level

CONFIDENCE = 0.95
"""How often an interval is meant to hold the truth."""
Z_95 = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelEstimate:
    """A column of points.csv at a load level of a run.

    `value` is in the column's unit; `interval` is its 95% interval in the same unit, None where the points have none.
    `starts` are the logarithms of each start's mean, in the order of their repeats.
    `points` is how many points they rest on.
    """

    column: str
    level: Level
    value: float
    interval: Interval | None
    starts: tuple[float, ...]
    points: int

    @property
    def low(self) -> float | None:
        """The lower end of the interval."""
        return self.interval[0] if self.interval else None

    @property
    def high(self) -> float | None:
        """The upper end of the interval."""
        return self.interval[1] if self.interval else None
