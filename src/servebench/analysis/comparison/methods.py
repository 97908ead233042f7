"""Compare one metric, or the failed requests, at one level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from servebench.analysis.comparison.model import (
    FAILED,
    ComparedPoint,
    ComparisonRow,
    Metric,
    Side,
    StartSpread,
    StartValues,
)
from servebench.analysis.comparison.starts import (
    STARTS_MIN,
    StartTest,
    as_relative,
    compare_starts,
    compare_with_known_spread,
    group_by_start,
    known_spreads,
    same_requests,
)
from servebench.analysis.comparison.within_run import (
    Shown,
    log_interval,
    log_ratio_interval,
    shown_intervals,
    statistic,
)
from servebench.analysis.estimate import mean_of
from servebench.analysis.statistics import Z_95, Floats
from servebench.analysis.verdict import Method, MethodKind, Reason, ReasonKind
from servebench.contracts.level import Level

WITHIN_RUN = Method(MethodKind.WITHIN_RUN)

Points = Sequence[ComparedPoint]


def compare_level(level: Level, baseline: Side, candidate: Side, metrics: Sequence[Metric]) -> list[ComparisonRow]:
    """Return the rows of a level that both sides have, not yet judged: the metrics that one has, and failed requests."""
    ours, theirs = (
        group_by_start([point for point in side.samples if point.level == level]) for side in (baseline, candidate)
    )
    paired = len(ours) == len(theirs) and same_requests(ours, theirs)
    rows = [_compare_metric(level, metric, (baseline, ours), (candidate, theirs), paired) for metric in metrics]
    return [row for row in (*rows, _compare_failures(level, ours, theirs, paired)) if row is not None]


def missing_row(level: Level, metric: Metric, reason: Reason) -> ComparisonRow:
    """Return a row that cannot be compared."""
    return ComparisonRow(level=level, metric=metric, baseline=None, candidate=None, reasons=(reason,), competes=False)


def _compare_metric(
    level: Level,
    metric: Metric,
    baseline: tuple[Side, Sequence[Points]],
    candidate: tuple[Side, Sequence[Points]],
    paired: bool,
) -> ComparisonRow | None:
    """Return the row of a metric; None where neither side has it."""
    values = [[_values(points, metric) for points in starts] for _, starts in (baseline, candidate)]
    known = [[parts for parts in side if parts] for side in values]
    if not all(known):
        # points of other tools have numbers without their requests
        stored = [
            mean_of([one.row for points in starts for one in points], metric.name)
            for _, starts in (baseline, candidate)
        ]
        if not any(known) and stored == [None, None]:
            return None
        lacking = [name for name, own in zip(("baseline", "candidate"), known, strict=True) if not own]
        kind = ReasonKind.METRIC_MISSING if None in stored else ReasonKind.REQUESTS_MISSING
        row = missing_row(level, metric, Reason(kind, side=lacking[0] if len(lacking) == 1 else "both"))
        return replace(row, baseline=stored[0], candidate=stored[1])
    fewest = min(sum(part.size for part in parts) for side in known for parts in side)
    if fewest < metric.requests_min:
        kind = ReasonKind.FEW_REQUESTS if metric.percent is not None else ReasonKind.FEW_SLICES
        return ComparisonRow(
            level=level,
            metric=metric,
            baseline=None,
            candidate=None,
            reasons=(Reason(kind, count=fewest, needed=metric.requests_min),),
        )
    complete = [len(side) for side in values] == [len(side) for side in known]
    starts = StartValues(
        baseline=_start_logs(known[0], metric),
        candidate=_start_logs(known[1], metric),
        paired=paired and complete,
        errors=np.array(
            [
                _request_error([part for parts in sides if parts is not None for part in parts], metric.percent)
                for sides in zip_longest(*known)
            ]
        ),
    )
    spreads = known_spreads(level, metric.name, baseline[0], candidate[0])
    row = _with_difference(level, metric, starts, spreads)
    if row.starts is None or row.method is not None:
        return row
    rows = [[point.row for points in starts for point in points] for _, starts in (baseline, candidate)]
    return _within_run(row, known, [shown_intervals(own, metric.name) for own in rows])


def _with_difference(
    level: Level,
    metric: Metric,
    starts: StartValues,
    spreads: tuple[StartSpread, StartSpread] | None,
) -> ComparisonRow:
    """Return the row with its difference over starts, or by the spread of earlier starts; of two single starts without."""
    middle = [float(np.exp(side.mean())) for side in (starts.baseline, starts.candidate)]
    row = ComparisonRow(level=level, metric=metric, baseline=middle[0], candidate=middle[1], starts=starts)
    if not (np.isfinite(starts.baseline).all() and np.isfinite(starts.candidate).all()):
        return replace(row, starts=None, reasons=(Reason(ReasonKind.REQUESTS_FAILED),))
    if min(starts.baseline.size, starts.candidate.size) >= STARTS_MIN:
        return _tested(row, compare_starts(starts))
    return row if spreads is None else _tested(row, compare_with_known_spread(starts, *spreads))


def _values(points: Points, metric: Metric) -> list[Floats]:
    """Return the known values of each point of a start, without points that have none."""
    arrays = [getattr(point, metric.source) for point in points]
    known = [values[~np.isnan(values)] for values in arrays if values is not None]
    return [values for values in known if values.size]


def _start_logs(starts: Sequence[Sequence[Floats]], metric: Metric) -> Floats:
    """Return the logarithm of the metric in each start: the mean over its repeats."""
    with np.errstate(divide="ignore"):
        return np.array([np.mean([np.log(statistic(part, metric.percent)) for part in parts]) for parts in starts])


def _request_error(parts: Sequence[Floats], percent: float | None) -> float:
    """The standard error of the logarithm of the metric in one start, as of independent values (root mean square over points)."""
    errors = []
    for values in parts:
        root = values.size**0.5
        if percent is None:
            errors.append(float(values.std() / max(abs(values.mean()), np.finfo(float).tiny) / root))
            continue
        share = percent / 100
        reach = (share * (1 - share)) ** 0.5 / root
        low, high = (statistic(values, 100 * min(max(share + side * reach, 0.0), 1.0)) for side in (-1, 1))
        errors.append(float(np.log(high / low) / 2) if 0 < low <= high < np.inf else 0.0)
    return float(np.sqrt(np.mean(np.square(errors))))


def _tested(row: ComparisonRow, test: StartTest) -> ComparisonRow:
    low, high = as_relative((test.low, test.high))
    return replace(row, effect=float(np.expm1(test.difference)), low=low, high=high, p=test.p, method=test.method)


def _within_run(
    row: ComparisonRow, values: Sequence[Sequence[Sequence[Floats]]], shown: Sequence[Sequence[Shown]]
) -> ComparisonRow:
    """Return the row with the difference of these starts, and the interval that their own requests give it; no p-value."""
    assert row.starts is not None
    sides = []
    for starts, logs, own in zip(values, (row.starts.baseline, row.starts.candidate), shown, strict=True):
        interval = log_interval([part for parts in starts for part in parts], row.metric.percent, own)
        if interval is None:
            return replace(row, reasons=(Reason(ReasonKind.ONE_START), Reason(ReasonKind.FEW_FOR_INTERVAL)))
        sides.append((float(logs.mean()), interval))
    low, high = as_relative(log_ratio_interval(sides[0], sides[1]))
    effect = float(np.expm1(sides[1][0] - sides[0][0]))
    return replace(row, effect=effect, low=low, high=high, method=WITHIN_RUN, reasons=(Reason(ReasonKind.ONE_START),))


def _compare_failures(
    level: Level, ours: Sequence[Points], theirs: Sequence[Points], paired: bool
) -> ComparisonRow | None:
    """Compare the shares of failed requests over starts; None where none failed.

    Failures come in bursts, so requests of one start do not test anything; with as many in each start, the binomial error
    is the least that is believed.
    """
    sides = [[_failed_of(points) for points in starts] for starts in (ours, theirs)]
    if not any(bad for side in sides for bad, _ in side) or not all(size for side in sides for _, size in side):
        return None
    shares = [np.array([bad / size for bad, size in side]) for side in sides]
    pooled = [(sum(bad for bad, _ in side), sum(size for _, size in side)) for side in sides]
    error = sum(bad / size * (1 - bad / size) / size for bad, size in pooled) ** 0.5
    starts = StartValues(baseline=shares[0], candidate=shares[1], paired=paired)
    middle = [float(one.mean()) for one in shares]
    row = ComparisonRow(level=level, metric=FAILED, baseline=middle[0], candidate=middle[1], starts=starts)
    if min(len(side) for side in sides) >= STARTS_MIN:
        test = compare_starts(starts, least_error=error)
        return replace(row, effect=test.difference, low=test.low, high=test.high, p=test.p, method=test.method)
    effect = middle[1] - middle[0]
    return replace(
        row,
        effect=effect,
        low=effect - Z_95 * error,
        high=effect + Z_95 * error,
        method=WITHIN_RUN,
        reasons=(Reason(ReasonKind.ONE_START),),
    )


def _failed_of(points: Points) -> tuple[int, int]:
    """Return how many requests of a start failed, of how many."""
    return sum(int(point.failed.sum()) for point in points), sum(point.failed.size for point in points)
