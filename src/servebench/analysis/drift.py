"""Whether a point changed for good while it was measured, or its engine only wandered.

Every engine is faster and slower for seconds on end, so a series that ends higher than it began proves nothing. Two explanations
of its slow waves (the coefficients of a few cosines, as in `serial`) are weighed against each other:

- it wanders: an Ornstein-Uhlenbeck process of up to WANDER_SD (a share of the value) with a relaxation time of WANDER_S, or
  nothing at all, with independent noise on top;
- it wanders and changes for good in one of SHAPES: steadily, early and then level, level and then late, or at once. The size of
  the change is normal around 0 with CHANGE_SD.

Each is averaged over its parameters; their ratio is the Bayes factor (Kass and Raftery 1995, J. Am. Stat. Assoc. 90). How often
that is a false alarm, and which changes are found, is measured in docs/calibration.md. What a wandering engine can do by
itself cannot be found: a change of 10% in a minute is within what 5% over 10 s gives.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from servebench.analysis.serial import VALUES_PER_WAVE, WAVES_MIN, slow_waves
from servebench.analysis.statistics import linearised, output_rates, span_of
from servebench.measure.points import PointSample
from servebench.util.arrays import Floats

WANDER_S = (2.0, 5.0, 10.0, 20.0, 40.0)
WANDER_SD = (0.01, 0.02, 0.035, 0.05)
"""How far an engine's speed may wander by itself, as a standard deviation."""
STEADY_WEIGHT = 0.15
WAVES_MAX = 12
"""A change for good is in the slowest cosines."""
CHANGE_SD = 0.10
NOISES = np.geomspace(1e-3, 3.0, 16)
"""Variances of the independent noise that are considered, relative to the mean square of the coefficients."""
_POINTS = 256
_AT = (np.arange(_POINTS) + 0.5) / _POINTS

CHANGED_P_MAX = 0.05
"""At this probability of mere wandering the false alarms are at most 2% of points (docs/calibration.md)."""
CHANGE_MIN = 0.05
"""A smaller change is within the margin of comparisons."""
WARMUP_SHARE_MAX = 0.5
"""An engine that is still changing in the middle of its window has not just been warming up."""

Course = Literal["steadily", "early", "late", "at once"]
SHAPES: tuple[tuple[Course, float, float], ...] = (
    ("steadily", 0.0, 1.0),
    *(("early", 0.0, end) for end in (0.2, 0.33, 0.5)),
    *(("late", begin, 1.0) for begin in (0.5, 0.67)),
    *(("at once", when, when) for when in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)),
)
"""The courses that a change may take, and between which shares of the window it does."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The likeliest change for good of a series: from the value `before` to `after`, in its unit, between the shares `begin` and
    `end` of the window. `p` is the probability that it only wandered, if both were as likely beforehand."""

    course: Course
    begin: float
    end: float
    before: float
    after: float
    p: float

    @property
    def change(self) -> float:
        """The change as a share of the value before."""
        return self.after / self.before - 1

    @property
    def certain(self) -> bool:
        """Whether it is a change for good of a size that matters."""
        return self.p <= CHANGED_P_MAX and abs(self.change) >= CHANGE_MIN


def point_drifts(sample: PointSample, *, open_loop: bool) -> dict[str, Drift]:
    """Return the changes of a point's throughput, ITL and TTFT by the names of their columns; without series that are too short.

    In an open loop throughput and TTFT follow the arrivals and the queue, so only ITL shows the engine.
    """
    series: dict[str, Floats] = {"itl": linearised(sample.itl_ms, sample.itl_counts)}
    if not open_loop:
        series["ttft"] = sample.ttft_ms
        if sample.arrival_s.size >= VALUES_PER_WAVE * WAVES_MIN and (rates := output_rates(sample)) is not None:
            series["throughput"] = rates
    span = span_of(sample)
    found = {name: find_drift(values, span.seconds, span.rounds) for name, values in series.items()}
    return {name: drift for name, drift in found.items() if drift is not None}


def warmup_share(drifts: Mapping[str, Drift]) -> float:
    """Return after which share of the window the engine was steady, where it became faster for good before and then changed no
    more; 0.0 where it was steady from the beginning, changed late, or became slower only: no engine warms up to be slower."""
    early = [one for one in drifts.items() if one[1].certain and one[1].course in ("early", "at once")]
    late = [one for one in drifts.values() if one.certain and one.course in ("late", "steadily")]
    share = max((one.end for name, one in early if (one.change > 0) == (name == "throughput")), default=0.0)
    return share if share <= WARMUP_SHARE_MAX and not late else 0.0


def trend_columns(drifts: Mapping[str, Drift]) -> dict[str, float]:
    """Return the columns `_trend` and `_trend_p` of a point."""
    changes = {f"{name}_trend": one.change for name, one in drifts.items()}
    return changes | {f"{name}_trend_p": one.p for name, one in drifts.items()}


def find_drift(values: Floats, seconds: float, rounds: float) -> Drift | None:
    """Return the likeliest change of values in order over `seconds`, in which the requests in flight are replaced `rounds` times.

    None for too few values, or a mean or end that is not positive.
    """
    waves = int(min(WAVES_MAX, max(WAVES_MIN, rounds)))
    if values.size < VALUES_PER_WAVE * waves or seconds <= 0 or values.mean() <= 0:
        return None
    cosines = slow_waves(values, waves) / values.mean()
    size = float(np.mean(cosines**2))
    if size < np.finfo(float).tiny:
        return None
    factors = _log_bayes_factors(cosines, float(f"{seconds:.2g}"), size)
    course, begin, end = SHAPES[int(factors.argmax())]
    shape = _shape(begin, end, (np.arange(values.size) + 0.5) / values.size)
    slope, before = np.polyfit(shape, values, 1)
    odds = float(np.mean(np.exp(np.minimum(factors, 700.0))))
    if before <= 0 or before + slope <= 0:
        return None
    return Drift(course, begin, end, float(before), float(before + slope), 1 / (1 + odds))


def _shape(begin: float, end: float, at: Floats) -> Floats:
    """Return how much of the change has taken place at these shares of the window."""
    return np.clip((at - begin) / (end - begin), 0.0, 1.0) if end > begin else (at > begin).astype(np.float64)


@lru_cache(maxsize=64)
def _models(waves: int, seconds: float) -> tuple[Floats, list[tuple[Floats, Floats]]]:
    """Return the cosines of each shape; and by relaxation time the variances of the cosines of a wander of 1 with the
    directions in which they are independent."""
    basis = np.sqrt(2) * np.cos(np.pi * np.outer(np.arange(1, waves + 1), _AT)) / _POINTS
    apart = np.abs(_AT[:, None] - _AT[None, :])
    wanders = [np.linalg.eigh(basis @ np.exp(-seconds / wander_s * apart) @ basis.T) for wander_s in WANDER_S]
    shapes = np.array([basis @ _shape(begin, end, _AT) for _, begin, end in SHAPES])
    return shapes, [(found.eigenvalues, found.eigenvectors) for found in wanders]


def _log_bayes_factors(cosines: Floats, seconds: float, size: float) -> Floats:
    """Return for each shape the logarithm of the Bayes factor of a change against none."""
    shapes, wanders = _models(cosines.size, seconds)
    each = (1 - STEADY_WEIGHT) / (len(WANDER_S) * len(WANDER_SD))
    parts = [(wanders[0], 0.0, STEADY_WEIGHT), *((wander, sd, each) for wander in wanders for sd in WANDER_SD)]
    without, with_change = [], []
    for (variances, directions), sd, prior in parts:
        variance = NOISES[:, None] * size + sd**2 * variances
        own, changed = cosines @ directions, shapes @ directions
        likelihood = np.log(prior) - 0.5 * (np.log(variance) + own**2 / variance).sum(axis=1)
        fit = (changed[:, None, :] * own / variance).sum(axis=2)
        information = (changed[:, None, :] ** 2 / variance).sum(axis=2)
        without.append(likelihood)
        # the size of the change is integrated out
        gain = 0.5 * fit**2 / (information + CHANGE_SD**-2) - 0.5 * np.log1p(CHANGE_SD**2 * information)
        with_change.append(likelihood + gain)
    changed = np.logaddexp.reduce(np.concatenate(with_change, axis=1), axis=1)
    found: Floats = changed - np.logaddexp.reduce(np.concatenate(without))
    return found
