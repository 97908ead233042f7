"""When a point is precise enough: looks at what there is so far, and what the rest would take.

A look computes the same intervals as the finished point. They come from probabilities given the data (`serial`), and these do
not depend on when one looks or why one stops: the rule uses nothing but the data (Berger and Wolpert 1988, "The Likelihood
Principle", chapter 4). How often the intervals at the stop hold the truth is counted in docs/calibration.md (until). Looks are
planned: each when there are LOOK_GROWTH times as many requests as at the one before, so that they stay few.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from servebench.analysis.serial import FLAT, ROUNDS_MIN, SeriesSpan
from servebench.analysis.statistics import headline_intervals, least_values, span_of
from servebench.contracts.precision import WINDOW_S_MIN, half_width
from servebench.measure.points import PointSample
from servebench.util.arrays import Floats

LOOK_GROWTH = 1.4
"""By how much the requests grow from one look to the next: a point is at most this much longer than it has to be."""
FORECAST_MARGIN, EARLY_MARGIN = 2.0, 8.0
"""A target is out of reach when the forecast is beyond the budget by more than this. Up to EARLY_ROUNDS
intervals fall faster than with the root of the time, since a longer window has more waves, and the second one counts."""
EARLY_ROUNDS = 24
NO_INTERVAL_MARGIN = 1.25
"""The same for the time until there is an interval at all, which is known better."""


@dataclass(frozen=True, slots=True)
class MetricLook:
    """What a look says about one metric: half the width of its interval and its target, as shares (None without an interval),
    and about how many times as long a point would reach the target."""

    name: str
    width: float | None
    target: float
    longer: float

    @property
    def precise(self) -> bool:
        """Whether the target is reached."""
        return self.width is not None and self.width <= self.target


def look(sample: PointSample, targets: Mapping[str, float], prior: Floats = FLAT) -> list[MetricLook]:
    """Return what the sample says about each metric.

    The width of an interval falls with the root of the time; a metric without an interval takes at least as many values as
    its percentile, and as many rounds as any interval.
    """
    intervals, span = headline_intervals(sample, prior=prior), span_of(sample)
    rounds = ROUNDS_MIN / span.rounds if span.rounds > 0 else math.inf
    found = []
    for name, target in targets.items():
        interval = intervals.get(name)
        width = None if interval is None else half_width(*interval)
        least = max(1.0, rounds, least_values(name) / max(sample.e2e_ms.size, 1))
        found.append(MetricLook(name, width, target, least if width is None else (width / target) ** 2))
    return found


def is_precise(metrics: Sequence[MetricLook], span: SeriesSpan) -> bool:
    """Return whether every target is reached, in a window that is long enough for any number."""
    return span.seconds >= WINDOW_S_MIN and all(metric.precise for metric in metrics)


def is_out_of_reach(metrics: Sequence[MetricLook], span: SeriesSpan, budget_s: float) -> bool:
    """Return whether a target will clearly not be reached within the budget."""
    margin = FORECAST_MARGIN if span.rounds >= EARLY_ROUNDS else EARLY_MARGIN
    return any(
        metric.longer * span.seconds > (NO_INTERVAL_MARGIN if metric.width is None else margin) * budget_s
        for metric in metrics
    )
