"""The questions between two runs: a row for each level and metric, with its difference, not yet corrected and judged."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from servebench.analysis.estimate import mean_of, reaches_of
from servebench.analysis.verdict.model import (
    FAILED,
    METRICS,
    THROUGHPUT,
    ComparedPoint,
    Comparison,
    ComparisonRow,
    Metric,
    Side,
    StartValues,
)
from servebench.analysis.verdict.reasons import Reason, ReasonKind
from servebench.analysis.verdict.slices import SliceDifferences, slice_differences
from servebench.analysis.verdict.starts import EARLIER_MIN, STARTS_MIN, failed_difference, group_by_start, same_requests
from servebench.analysis.warnings.bounds import disturbed_share, rate_requests
from servebench.analysis.warnings.catalog import MACHINE_BUSY, NOT_STATIONARY, TOO_FEW_REQUESTS
from servebench.analysis.warnings.disturbed import shared_with, taker_of
from servebench.analysis.warnings.weighing import weigh
from servebench.analysis.within_run import log_interval, statistic
from servebench.contracts.estimate import Z_95
from servebench.contracts.level import Level
from servebench.util.arrays import Floats

Points = Sequence[ComparedPoint]
MeasuredStart = tuple[Points, Sequence[Floats]]
"""The points of a start, and the known values of each that has some."""
ONE_START = Reason(ReasonKind.ONE_START)
SPREAD_STARTS = 3
"""So many starts show by their spread how well the throughput of each is known, however few requests that rests on."""
ALIKE_SHARE = 0.2
"""Engines that take turns have the same machine if the disturbed shares of their windows differ by no more."""


def questions(baseline: Side, candidate: Side, with_doubtful: bool) -> list[ComparisonRow]:
    """Return the rows of all levels: the metrics that a side has, and failed requests. `with_doubtful` has rows compete whose
    warnings have no known size."""
    levels = dict.fromkeys(point.row.level for side in (baseline, candidate) for point in side.samples)
    return [row for level in levels for row in _of_level(level, baseline, candidate, with_doubtful)]


def _of_level(level: Level, baseline: Side, candidate: Side, with_doubtful: bool) -> list[ComparisonRow]:
    sides = [points_at(side, level) for side in (baseline, candidate)]
    for name, own in zip(("baseline", "candidate"), sides, strict=True):
        if not own:
            row = missing_row(level, THROUGHPUT, Reason(ReasonKind.LEVEL_MISSING, side=name))
            return [replace(row, level_missing=name == "candidate")]
    if void := [point for own in sides for point in own if point.row.verdict == "void"]:
        row = missing_row(level, THROUGHPUT, void_reason(ReasonKind.VOID_POINT, void))
        return [replace(row, level_missing=True)]
    ours, theirs = map(group_by_start, sides)
    paired = len(ours) == len(theirs) and same_requests(ours, theirs)
    rows = [_question(level, metric, (baseline, ours), (candidate, theirs), paired) for metric in METRICS]
    found = [row for row in (*rows, _compare_failures(level, ours, theirs)) if row is not None]
    return [_weighed(row, sides, with_doubtful) for row in found]


def points_at(side: Side, level: Level) -> list[ComparedPoint]:
    """Return the points of a side at a level."""
    return [point for point in side.samples if point.row.level == level]


def between(a: Side, b: Side, margin: float, rows: Iterable[ComparisonRow] = ()) -> Comparison:
    """Return a comparison of two sides without a verdict."""
    taker = shared_with(point.row for side in (a, b) for point in side.samples)
    return Comparison(
        baseline=a.name, candidate=b.name, ids=(a.run_id, b.run_id), margin=margin, rows=tuple(rows), shared_with=taker
    )


def void_reason(kind: ReasonKind, points: Sequence[ComparedPoint], needed: int = 0) -> Reason:
    """Return a reason for void points: their warnings, and who took their machine."""
    codes = tuple(dict.fromkeys(code for point in points for code in point.row.doubts))
    return Reason(kind, codes=codes, needed=needed, taker=taker_of(point.row for point in points))


def _weighed(row: ComparisonRow, sides: Sequence[Points], with_doubtful: bool) -> ComparisonRow:
    """The row with what the warnings of its points mean for it: a wider interval, or a result that is only provisional."""
    known = _known(sides) if row.starts is not None and all(row.starts.slice_differences or [None]) else set()
    # by how much the warnings of the first start of each side widen an interval, of the first two, and so on
    starts = [group_by_start(points) for points in sides]
    if row.metric is THROUGHPUT and all(map(_shows_spread, starts)):
        known.add(TOO_FEW_REQUESTS.code)
    bounds = [
        [weigh((one.row for start in side[:count] for one in start), row.metric.name, known).bound for side in starts]
        for count in range(1, max(map(len, starts)) + 1)
    ]
    widened = tuple((1 + ours) * (1 + theirs) - 1 for ours, theirs in bounds)
    weights = [weigh((point.row for point in points), row.metric.name, known) for points in sides]
    doubts = tuple(dict.fromkeys(code for weight in weights for code in weight.unbounded))
    bounded = tuple(dict.fromkeys(code for weight in weights for code in weight.bounded))
    share = (1 + weights[0].bound) * (1 + weights[1].bound) - 1
    row = row.because(
        *row.reasons,
        *([Reason(ReasonKind.WIDENED, share=share, codes=bounded)] if bounded else []),
        *([Reason(ReasonKind.PROVISIONAL, codes=doubts)] if doubts else []),
    )
    competes = row.competes and (with_doubtful or not doubts)
    return replace(row, competes=competes, doubts=doubts, widened=widened)


def _known(sides: Sequence[Points]) -> set[str]:
    """Return the warnings whose effect on engines that take turns shows in their ratio, slice by slice: what makes one of them
    unsteady, and what takes the machine from both alike."""
    shares = [fmean([disturbed_share(point.row) for point in side]) for side in sides]
    return {NOT_STATIONARY.code, *([MACHINE_BUSY.code] if abs(shares[0] - shares[1]) <= ALIKE_SHARE else [])}


def missing_row(level: Level, metric: Metric, reason: Reason) -> ComparisonRow:
    """Return a row that cannot be compared."""
    return ComparisonRow(level=level, metric=metric, baseline=None, candidate=None, competes=False, reasons=(reason,))


def _question(
    level: Level,
    metric: Metric,
    baseline: tuple[Side, Sequence[Points]],
    candidate: tuple[Side, Sequence[Points]],
    paired: bool,
) -> ComparisonRow | None:
    """The row of a metric, with the values of its starts; None where neither side has it."""
    sides = [
        [(own, parts) for own in starts if (parts := [one for p in own if (one := p.known(metric.source)).size])]
        for _, starts in (baseline, candidate)
    ]
    if not all(sides):
        lacking = [name for name, own in zip(("baseline", "candidate"), sides, strict=True) if not own]
        return _without_requests(level, metric, (baseline[1], candidate[1]), lacking)
    fewest = min(_typical(sum(part.size for part in parts) for _, parts in side) for side in sides)
    kind = ReasonKind.FEW_SLICES if metric.percent is None else ReasonKind.FEW_REQUESTS
    # a throughput has many slices of time even where two requests last for all of them
    counts = [[sum(rate_requests(one.row, one.failed.size) for one in points) for points, _ in side] for side in sides]
    requests = min(sum(own) if _shows_spread(own) else _typical(own) for own in counts)
    if metric.percent is None and 0 < requests < metric.requests_min:
        kind, fewest = ReasonKind.FEW_REQUESTS, requests
        lacking_starts = SPREAD_STARTS - min(map(len, counts))
        if lacking_starts > 0 and SPREAD_STARTS * requests >= metric.requests_min:
            reason = Reason(ReasonKind.FEW_REQUESTS_YET, count=requests, needed=lacking_starts)
            return replace(missing_row(level, metric, reason), competes=True)
    if fewest < metric.requests_min:
        reason = Reason(kind, count=fewest, needed=metric.requests_min)
        return replace(missing_row(level, metric, reason), competes=True)
    ours, theirs = sides
    starts = StartValues(
        baseline=_start_logs(ours, metric),
        candidate=_start_logs(theirs, metric),
        error=(_error(ours, metric), _error(theirs, metric)),
        names=(_names(ours), _names(theirs)),
        places=(_places(ours), _places(theirs)),
        paired=paired and len(ours) == len(baseline[1]) and len(theirs) == len(candidate[1]),
        slice_differences=_in_slices(ours, theirs, metric),
    )
    middle = [float(np.exp(side.mean())) for side in (starts.baseline, starts.candidate)]
    row = ComparisonRow(level=level, metric=metric, baseline=middle[0], candidate=middle[1], starts=starts)
    if not starts.finite:
        return replace(row, starts=None).because(Reason(ReasonKind.REQUESTS_FAILED))
    earlier = sum(
        len(side.earlier[metric.name].values) for side, _ in (baseline, candidate) if metric.name in side.earlier
    )
    return row if starts.fewest >= STARTS_MIN or earlier >= EARLIER_MIN else row.because(ONE_START)


def _shows_spread(starts: Sequence[object]) -> bool:
    return len(starts) >= SPREAD_STARTS


def _typical(counts: Iterable[int]) -> int:
    """Return the largest count that not more than half of the starts stay below. The fewest of many starts would leave a question
    open however many there are; what one start knows less is part of the spread between them."""
    listed = sorted(counts)
    return listed[len(listed) // 2]


def _without_requests(
    level: Level, metric: Metric, sides: tuple[Sequence[Points], Sequence[Points]], lacking: Sequence[str]
) -> ComparisonRow | None:
    """The row of a metric without requests on a side: points of other tools have numbers only."""
    stored = [mean_of([point.row for points in starts for point in points], metric.name) for starts in sides]
    if len(lacking) > 1 and stored == [None, None]:
        return None
    kind = ReasonKind.METRIC_MISSING if None in stored else ReasonKind.REQUESTS_MISSING
    row = missing_row(level, metric, Reason(kind, side=lacking[0] if len(lacking) == 1 else "both"))
    return replace(row, baseline=stored[0], candidate=stored[1])


def _names(starts: Sequence[MeasuredStart]) -> tuple[str, ...]:
    return tuple(str(points[0].row.start_id) for points, _ in starts)


def _places(starts: Sequence[MeasuredStart]) -> tuple[int, ...]:
    """The numbers of the starts, by those of their repeats."""
    repeats = max(len(points) for points, _ in starts)
    return tuple(points[0].row.repeat // repeats for points, _ in starts)


def _in_slices(ours: Sequence[MeasuredStart], theirs: Sequence[MeasuredStart], metric: Metric) -> SliceDifferences:
    """The differences by slices, however few: other levels may have more. Nothing where requests failed: slices lack them."""
    if any(point.failed.any() for points, _ in (*ours, *theirs) for point in points):
        return ()
    a, b = ([[point.row for point in points] for points, _ in side] for side in (ours, theirs))
    return slice_differences(a, b, metric.name)


def _error(starts: Sequence[MeasuredStart], metric: Metric) -> float:
    """The standard error of one start's logarithm, by the intervals of its points (root mean square over starts); as of
    independent requests where they are too few for an interval."""
    errors = []
    for points, parts in starts:
        shown = reaches_of([point.row for point in points], metric.name)
        ends = log_interval(parts, metric.percent, shown)
        known = ends is not None and np.isfinite(ends).all()
        errors.append((ends[1] - ends[0]) / (2 * Z_95) if ends and known else _request_error(parts, metric.percent))
    return float(np.sqrt(np.mean(np.square(errors))))


def _start_logs(starts: Sequence[MeasuredStart], metric: Metric) -> Floats:
    """Return the logarithm of the metric in each start: the mean over its repeats."""
    with np.errstate(divide="ignore"):
        return np.array([np.mean([np.log(statistic(part, metric.percent)) for part in parts]) for _, parts in starts])


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


def _compare_failures(level: Level, ours: Sequence[Points], theirs: Sequence[Points]) -> ComparisonRow | None:
    """Compare the shares of failed requests over starts; None where none failed.

    Failures come in bursts, so requests of one start do not test anything; with as many in each start, the binomial error
    is the least that is believed.
    """
    sides = [[np.concatenate([point.failed for point in points]) for points in starts] for starts in (ours, theirs)]
    if not any(one.any() for side in sides for one in side) or not all(one.size for side in sides for one in side):
        return None
    shares = [np.array([one.mean() for one in side]) for side in sides]
    pooled = [(float(one.mean()), one.size) for one in (np.concatenate(side) for side in sides)]
    error = sum(share * (1 - share) / size for share, size in pooled) ** 0.5
    starts = StartValues(baseline=shares[0], candidate=shares[1])
    row = ComparisonRow(
        level=level,
        metric=FAILED,
        baseline=float(shares[0].mean()),
        candidate=float(shares[1].mean()),
        starts=starts,
        difference=failed_difference(starts, error),
    )
    return row if starts.fewest >= STARTS_MIN else row.because(ONE_START)
