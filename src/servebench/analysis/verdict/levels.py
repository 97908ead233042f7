"""A metric at a load level of a run as rankings take it, its interval, and the difference of two levels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from servebench.analysis.estimate import (
    COSTS,
    RATE_BEHIND,
    THROUGHPUT,
    estimate_level,
    interval_over_starts,
    reaches_of,
)
from servebench.analysis.start_model import Starts
from servebench.analysis.verdict.model import ComparedPoint, Difference
from servebench.analysis.verdict.slices import enough_starts, freedom_of, slice_differences, values_and_errors
from servebench.analysis.verdict.starts import PAIRS_MIN, STARTS_MIN, evidence_of, group_by_start, same_requests
from servebench.analysis.warnings.weighing import Weight, weigh
from servebench.analysis.within_run import VALUES_MIN, log_interval, statistic
from servebench.contracts.estimate import Z_95, Interval, LevelEstimate
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.util.arrays import Floats

SOURCES: Mapping[str, tuple[str, float | None]] = {
    "output_throughput_tok_s": ("throughput_tok_s", None),
    **{
        f"{name}_ms_p{percent}": (f"{name}_ms", float(percent))
        for name in ("ttft", "tpot", "e2e")
        for percent in (50, 90, 95, 99)
    },
}
"""The array of a ComparedPoint behind each metric, and its percentile: failed requests count as infinitely slow."""
VERDICTS = ("valid", "doubtful", "void")
"""From best to worst."""


@dataclass(frozen=True)
class RankedLevel:
    """A load level of a run: its rows of points.csv, of all repeats and starts; `read` returns their points."""

    rows: tuple[PointRow, ...]
    read: Callable[[], tuple[ComparedPoint, ...]]

    @cached_property
    def samples(self) -> tuple[ComparedPoint, ...]:
        """The points of the rows, read on first use. Raises StoreError."""
        return self.read()

    @property
    def level(self) -> Level:
        """The load."""
        return self.rows[0].level

    @property
    def verdict(self) -> str:
        """The worst verdict of its points; an unknown one counts as the worst."""
        return max((row.verdict if row.verdict in VERDICTS else "void" for row in self.rows), key=VERDICTS.index)

    @property
    def doubts(self) -> tuple[str, ...]:
        """The warnings of its points, each once."""
        return tuple(dict.fromkeys(code for row in self.rows for code in row.doubts))

    def weight(self, metric: str) -> Weight:
        """Return what its warnings can do to a metric."""
        return weigh(self.rows, metric)


def metric_value(metric: str, level: RankedLevel) -> float | None:
    """Return a metric at a level: the geometric mean over starts; None where it is unknown or not finite."""
    if (known := _estimate(metric, level)) is not None:
        return known.value
    logs = start_logs(metric, level)
    return float(np.exp(logs.mean())) if logs is not None else None


def _estimate(metric: str, level: RankedLevel) -> LevelEstimate | None:
    """Return the estimate that all screens have; None for latencies that rank otherwise: where requests failed, which count as
    infinitely slow, and in an open loop, where users wait from the schedule on."""
    counted = metric in SOURCES and metric != THROUGHPUT
    if counted and any(point.row.rate is not None or point.failed.any() for point in level.samples):
        return None
    return estimate_level(level.rows, metric)


def start_logs(metric: str, level: RankedLevel) -> Floats | None:
    """Return the logarithm of a metric in each start at a level: the mean over its repeats.

    None where a start has no value, or one that is not positive and finite.
    """
    if (known := _estimate(metric, level)) is not None:
        return np.array(known.starts)

    def of(point: ComparedPoint) -> float | None:
        # from its requests where they are stored
        values = _values(metric, point)
        return statistic(values, SOURCES[metric][1]) if values.size else point.row.get(metric)

    starts = [list(map(of, points)) for points in group_by_start(level.samples)]
    if not starts or any(value is None or not np.isfinite(value) or value <= 0 for own in starts for value in own):
        return None
    return np.array([float(np.mean(np.log(np.array(own, dtype=np.float64)))) for own in starts])


def _values(metric: str, point: ComparedPoint) -> Floats:
    return point.known(SOURCES[metric][0]) if metric in SOURCES else np.empty(0)


def metric_interval(metric: str, level: RankedLevel) -> Interval | None:
    """Return the 95% interval of a metric at a level: over its starts, or of its only start; None without enough data."""
    if (known := _estimate(metric, level)) is not None:
        return known.interval
    logs = start_logs(metric, level)
    if logs is None:
        return None
    starts = _starts(metric, level) if logs.size >= STARTS_MIN else None
    ends = _within_start(metric, level) if starts is None else interval_over_starts(starts, metric)
    return None if ends is None else (float(np.exp(ends[0])), float(np.exp(ends[1])))


def _within_start(metric: str, level: RankedLevel) -> Interval | None:
    """Return the interval of a logarithm by the requests of a single start."""
    rate = RATE_BEHIND.get(metric, metric)
    parts = [values for point in level.samples if (values := _values(rate, point)).size]
    if not parts or min(part.size for part in parts) < VALUES_MIN:
        return None
    ends = log_interval(parts, SOURCES[rate][1], reaches_of(level.rows, rate))
    logs = start_logs(metric, level)
    if ends is None or logs is None or rate == metric:
        return ends
    centre = float(np.mean([np.log(statistic(part, SOURCES[rate][1])) for part in parts]))
    # a cost falls as its rate rises
    falls = metric in COSTS
    low, high = (centre - ends[1], centre - ends[0]) if falls else (ends[0] - centre, ends[1] - centre)
    return float(logs.mean()) + low, float(logs.mean()) + high


def lead_difference(
    metric: str, first: RankedLevel | None, rival: RankedLevel | None, confidence: float
) -> Difference | None:
    """Return by how much one level differs from another, of the same load or not; None without an interval."""
    if first is None or rival is None:
        return None
    a, b = _starts(metric, rival), _starts(metric, first)
    if a is None or b is None:
        return None
    groups = [group_by_start(level.samples) for level in (rival, first)]
    found, count = evidence_of(a, b, metric), len(a.values)
    ours, theirs = ([[point.row for point in start] for start in group] for group in groups)
    failed = any(point.failed.any() for level in (rival, first) for point in level.samples)
    known = () if failed else slice_differences(ours, theirs, metric)
    if enough_starts([known]) and count == len(b.values) == len(known):
        others, error = b.values[:, 0] - a.values[:, 0], float(np.hypot(a.errors[0], b.errors[0]))
        values, errors = values_and_errors(known, others, error)
        freedom = freedom_of(known)
        starts = Starts(a.levels, values[:, None], errors[:, None], differences=True, freedom=freedom)
        return found.by_slices(starts).difference(confidence)
    of_requests = metric in SOURCES and SOURCES[metric][1] is not None
    pairs = of_requests and PAIRS_MIN <= count == len(b.values) and same_requests(groups[0], groups[1])
    return (found.in_pairs if pairs else found).difference(confidence)


def _starts(metric: str, level: RankedLevel) -> Starts | None:
    """The starts of a level with the error of one of them; None for a single start without an interval."""
    logs, errors = start_logs(metric, level), []
    for points in group_by_start(level.samples):
        ends = _within_start(metric, RankedLevel(tuple(point.row for point in points), partial(tuple, points)))
        errors += [(ends[1] - ends[0]) / (2 * Z_95)] if ends is not None and np.isfinite(ends).all() else []
    if logs is None or (logs.size < STARTS_MIN and not errors):
        return None
    return Starts.of_one_level(logs, float(np.sqrt(np.mean(np.square(errors)))) if errors else 0.0)
