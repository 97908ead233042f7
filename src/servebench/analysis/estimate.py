"""The value of a column of points.csv at a load level of a run, with its interval.

The value is the geometric mean over starts of the engine, after that over the points of each start: points of one start share
its speed. Its 95% interval is

- that of the point's row where there is one point,
- that of the model of starts where there are several (`analysis/start_model.py`),
- of several points of one start as wide as their own intervals say (in quadrature), and from POINTS_MIN points on at least
  as wide as they differ: waves that are slower than a window show only in how much windows differ.

Everything that shows, sends or judges a level reads it here. Only several points of one start need SciPy, so that `servebench ls`
stays fast.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import exp, hypot, inf, log
from statistics import fmean, stdev

import numpy as np

from servebench.analysis.start_model import SLOW_SIDES, StartModel, Starts
from servebench.contracts.columns import SHARE
from servebench.contracts.estimate import CONFIDENCE, Z_95, Interval, LevelEstimate
from servebench.contracts.level import Level
from servebench.contracts.point_row import POINT_COLUMNS, PointRow
from servebench.util.groups import grouped

THROUGHPUT = "output_throughput_tok_s"
RATE_BEHIND: Mapping[str, str] = {
    "cost_usd_per_mtok": THROUGHPUT,
    "cost_usd_per_mgood": THROUGHPUT,
    "goodput_req_s": THROUGHPUT,
}
"""Columns without an interval of their own, by the rate with which they vary: they follow the engine's speed."""
COSTS = {"cost_usd_per_mtok": THROUGHPUT, "cost_usd_per_mgood": "goodput_req_s"}
"""The rate behind each cost per million, which falls as that rises."""
POINTS_MIN = 3
"""Two windows say almost nothing of how much windows differ."""
LEAST = 1e-3
"""An interval down to nothing is taken to end at this share of its value: it has to have a logarithm."""
Reach = tuple[float, float, float]
"""The logarithm of a point's value, and by how much it may be lower and higher."""


def estimate_level(rows: Sequence[PointRow], column: str) -> LevelEstimate | None:
    """Return the estimate of a column from the points of one level, void ones included if they are given.

    None without points, and where a point has no positive and finite value.
    """
    logs = _start_logs(rows, column)
    if not logs:
        return None
    middle = fmean(logs)
    return LevelEstimate(
        column=column,
        level=rows[0].level,
        value=float(rows[0][column]) if len(rows) == 1 else exp(middle),
        interval=_interval(rows, column, logs),
        starts=logs,
        points=len(rows),
    )


def _start_logs(rows: Sequence[PointRow], column: str) -> tuple[float, ...]:
    """The logarithm of each start's mean, in the order of the repeats; empty where a point has no positive and finite value."""
    if not all(0 < (row.get(column) or 0) < inf for row in rows):
        return ()
    starts = grouped(sorted(rows, key=lambda one: one.repeat), lambda one: one.start_id)
    return tuple(fmean(log(row[column]) for row in own) for own in starts.values())


def mean_of(rows: Sequence[PointRow], column: str) -> float | None:
    """Return the value of a column at a level: its estimate, or of counts and shares, and where some points have no positive
    value, the plain mean of what is known. None where nothing is, infinite where one of them is."""
    counted = (facts := POINT_COLUMNS.get(column)) is not None and (facts.kind == "int" or facts.unit == SHARE)
    if not counted and (found := estimate_level(rows, column)) is not None:
        return found.value
    values = [float(value) for row in rows if (value := row.get(column)) is not None]
    return fmean(values) if values else None


def levels_of(rows: Iterable[PointRow]) -> dict[Level, list[PointRow]]:
    """Return the points of each level, in the order of the load; void ones only where a level has no others."""
    found = sorted(grouped(rows, lambda row: row.level).items())
    return {level: [row for row in own if row.verdict != "void"] or own for level, own in found}


def best_level(rows: Iterable[PointRow]) -> LevelEstimate | None:
    """Return the throughput of the level where it is highest, among those of which more than half of the points are valid, else
    among all; void points count for nothing. None without a throughput."""
    levels = levels_of(row for row in rows if row.verdict != "void" and row.output_throughput_tok_s)
    valid = [own for own in levels.values() if 2 * sum(row.verdict == "valid" for row in own) > len(own)]
    means = [(fmean(logs), own) for own in valid or levels.values() if (logs := _start_logs(own, THROUGHPUT))]
    return estimate_level(max(means, key=lambda one: one[0])[1], THROUGHPUT) if means else None


def interval_over_starts(starts: Starts, column: str) -> Interval:
    """Return the 95% interval of the value of one engine from several starts at one level, as logarithms. It holds the mean of
    the starts."""
    known, tail = StartModel((starts,), (), SLOW_SIDES.get(column, 0)).value(np.ones(1)), (1 - CONFIDENCE) / 2
    middle = float(starts.values.mean())
    return min(middle, known.quantile(tail)), max(middle, known.quantile(1 - tail))


def student(freedom: float) -> float:
    """Return how many standard errors a 95% interval reaches with these degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def student_interval(logs: Sequence[float]) -> Interval:
    """Return the 95% interval of the mean of two logarithms or more that are independent, as logarithms."""
    middle, half = fmean(logs), student(len(logs) - 1) * stdev(logs) / len(logs) ** 0.5
    return middle - half, middle + half


def in_quadrature(reaches: Sequence[Reach]) -> Interval:
    """Return the 95% interval of the mean logarithm of points by their own intervals."""
    middles, *sides = zip(*reaches, strict=True)
    below, above = (hypot(*side) / len(reaches) for side in sides)
    return fmean(middles) - below, fmean(middles) + above


def _interval(rows: Sequence[PointRow], column: str, logs: Sequence[float]) -> Interval | None:
    if len(logs) > 1:
        error = error_of(rows, column) * (len(logs) / len(rows)) ** 0.5
        low, high = interval_over_starts(Starts.of_one_level(logs, error), column)
        return exp(low), exp(high)
    if len(rows) == 1:
        return row_interval(rows[0], column)
    known = reaches_of(rows, column)
    found = [student_interval([log(row[column]) for row in rows])] if len(rows) >= POINTS_MIN else []
    found += [in_quadrature(known)] if len(known) == len(rows) else []
    return (exp(min(low for low, _ in found)), exp(max(high for _, high in found))) if found else None


def error_of(rows: Sequence[PointRow], column: str) -> float:
    """Return the standard error of the logarithm of a column in one of some points, by the lengths of their intervals (root mean
    square); 0 without any."""
    errors = [(below + above) / (2 * Z_95) for _, below, above in reaches_of(rows, column)]
    return fmean(each**2 for each in errors) ** 0.5 if errors else 0.0


def row_interval(row: PointRow, column: str) -> Interval | None:
    """Return the interval of a column of one point: its own, or by that of the rate behind it; None without one."""
    rate = RATE_BEHIND.get(column, column)
    value, middle, low, high = (row.get(name) for name in (column, rate, f"{rate}_low", f"{rate}_high"))
    if value is None or not middle or low is None or high is None:
        return None
    if rate == column:
        return float(low), float(high)
    ends = (middle / high, middle / low if low else inf) if column in COSTS else (low / middle, high / middle)
    return value * ends[0], value * ends[1]


def reaches_of(rows: Iterable[PointRow], column: str) -> list[Reach]:
    """Return the reach of each point that has a finite interval around a positive value."""
    found = [(row.get(column), row_interval(row, column)) for row in rows]
    return [
        (log(value), log(value / max(ends[0], LEAST * value)), log(ends[1] / value))
        for value, ends in found
        if ends is not None and 0 < value <= ends[1] < inf
    ]
