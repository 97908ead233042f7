"""The methods that compare one metric at one level: repeats, pairs, throughputs, permutation, failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.comparison.model import FAILED, ComparedPoint, ComparisonRow, Metric
from servebench.analysis.comparison.resampling import (
    BLOCKS,
    RESAMPLES,
    blocks_of,
    flipped_medians,
    interval_of,
    log_ratio,
    p_value,
    statistic,
    statistics_of,
)
from servebench.analysis.rates import pooled_rate_error
from servebench.analysis.statistics import CONFIDENCE, Floats

REPEATS_MIN = 3
PAIRED_SHARE_MIN = 0.9

Points = Sequence[ComparedPoint]


def compare_metric(level: str, metric: Metric, ours: Points, theirs: Points, seed: int) -> ComparisonRow | None:
    """Return the row of a metric at a level, not yet judged; None where neither side has the metric."""
    a, b = [_known_values(point, metric) for point in ours], [_known_values(point, metric) for point in theirs]
    a, b = [values for values in a if values.size], [values for values in b if values.size]
    if not a and not b:
        return None
    if not a or not b:
        side = "baseline" if not a else "candidate"
        return missing_row(level, metric, f"the {side} has no such number")
    whole = [float(statistic(np.concatenate(side), metric.percent)) for side in (a, b)]
    row = ComparisonRow(level=level, metric=metric, baseline=whole[0], candidate=whole[1])
    fewest = min(sum(values.size for values in side) for side in (a, b))
    if fewest < metric.requests_min:
        unit = "requests" if metric.percent is not None else "slices of time"
        return replace(row, why=f"{fewest} {unit}, {metric.requests_min} are needed")
    if not np.isfinite(whole).any():
        return _too_many_failed(row)
    return _tested(row, ours, theirs, (a, b), seed)


def _tested(
    row: ComparisonRow, ours: Points, theirs: Points, values: tuple[list[Floats], list[Floats]], seed: int
) -> ComparisonRow:
    """The row with its effect, interval and p-value, by the method that the data allow."""
    a, b = values
    if min(len(a), len(b)) >= REPEATS_MIN:
        return _over_repeats(row, a, b)
    rng = np.random.default_rng(seed)
    if row.metric.percent == 50 and _same_requests(ours, theirs):
        return _paired(row, ours, theirs, rng)
    if row.metric.source == "throughput_tok_s":
        return _throughputs(row, a, b)
    return _permuted(row, a, b, rng)


def missing_row(level: str, metric: Metric, why: str) -> ComparisonRow:
    """Return a row that cannot be compared."""
    return ComparisonRow(level=level, metric=metric, baseline=None, candidate=None, why=why, competes=False)


def _known_values(point: ComparedPoint, metric: Metric) -> Floats:
    values = getattr(point, metric.source)
    if values is None:
        return np.empty(0)
    kept: Floats = values[~np.isnan(values)]
    return kept


def _too_many_failed(row: ComparisonRow) -> ComparisonRow:
    return replace(row, why="so many requests failed on both sides that this percentile is a failed one")


def _permuted(row: ComparisonRow, a: Sequence[Floats], b: Sequence[Floats], rng: np.random.Generator) -> ComparisonRow:
    """The ratio of the two statistics, by permuting blocks of requests between the runs."""
    fewest = min(sum(len(part) for part in side) for side in (a, b))
    size = max(1, fewest // BLOCKS)
    ours, theirs = blocks_of(a, size), blocks_of(b, size)
    percent = row.metric.percent

    def ratio(first: NDArray[np.int64], second: NDArray[np.int64], pool_a: Floats, pool_b: Floats) -> Floats:
        return log_ratio(statistics_of(pool_b, second, percent), statistics_of(pool_a, first, percent))

    drawn_a = rng.integers(0, len(ours), size=(RESAMPLES, len(ours)))
    drawn_b = rng.integers(0, len(theirs), size=(RESAMPLES, len(theirs)))
    everything = np.arange(len(ours))[None], np.arange(len(theirs))[None]
    seen = float(ratio(*everything, ours, theirs)[0])
    observed = float(log_ratio(np.asarray(row.candidate), np.asarray(row.baseline)))
    # blocks leave out the last few requests: the interval is moved to the effect
    moved = observed - seen if np.isfinite([observed, seen]).all() else 0.0
    low, high = interval_of(ratio(drawn_a, drawn_b, ours, theirs) + moved)
    pool = np.concatenate([ours, theirs])
    order = np.argsort(rng.random((RESAMPLES, len(pool))), axis=1)
    permuted = ratio(order[:, : len(ours)], order[:, len(ours) :], pool, pool)
    return replace(
        row,
        effect=float(np.expm1(observed)),
        low=low,
        high=high,
        p=p_value(permuted, observed if np.isinf(observed) else seen),
        method=f"permutation of {len(ours)} and {len(theirs)} blocks",
    )


def _throughputs(row: ComparisonRow, a: Sequence[Floats], b: Sequence[Floats]) -> ComparisonRow:
    """Two throughputs, each with its own error (Welch 1947; a logarithm's error is the share: the delta method)."""
    from scipy.special import stdtr, stdtrit

    ours, theirs = pooled_rate_error(a), pooled_rate_error(b)
    if ours is None or theirs is None:
        return replace(row, why="one side produced no tokens, or its window is too short")
    observed = float(log_ratio(np.asarray(row.candidate), np.asarray(row.baseline)))
    squares = ours.share**2, theirs.share**2
    error = sum(squares) ** 0.5
    # two engines that never varied at all have no error to compare with
    freedom = error**4 / (squares[0] ** 2 / ours.freedom + squares[1] ** 2 / theirs.freedom) if error else 1.0
    half = error * float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
    return replace(
        row,
        effect=float(np.expm1(observed)),
        low=float(np.expm1(observed - half)),
        high=float(np.expm1(observed + half)),
        p=float(2 * stdtr(freedom, -abs(observed) / error)) if error else float(observed == 0),
        method="Welch's t-test on the throughput's slow waves",
    )


def _same_requests(ours: Points, theirs: Points) -> bool:
    """Whether both sides sent the same requests: nearly all ids are shared, with the same planned sizes."""
    if len(ours) != len(theirs):
        return False
    for a, b in zip(ours, theirs, strict=True):
        sizes = dict(zip(b.request_ids, b.sizes, strict=True))
        shared = [(size, sizes[name]) for name, size in zip(a.request_ids, a.sizes, strict=True) if name in sizes]
        most = max(len(a.request_ids), len(b.request_ids))
        if len(shared) < PAIRED_SHARE_MIN * most or any(x != y for x, y in shared):
            return False
    return True


def _paired(row: ComparisonRow, ours: Points, theirs: Points, rng: np.random.Generator) -> ComparisonRow:
    """The median ratio of each request and its counterpart, by flipping the signs of blocks."""
    parts = [_pair_log_ratios(a, b, row.metric) for a, b in zip(ours, theirs, strict=True)]
    parts = [part for part in parts if part.size]
    count = sum(part.size for part in parts)
    if count < row.metric.requests_min:
        return replace(row, why=f"{count} pairs of requests, {row.metric.requests_min} are needed")
    blocks = blocks_of(parts, max(1, count // BLOCKS))
    drawn = rng.integers(0, len(blocks), size=(RESAMPLES, len(blocks)))
    observed = float(statistic(np.concatenate(parts), 50))
    low, high = interval_of(statistics_of(blocks, drawn, 50))
    return replace(
        row,
        effect=float(np.expm1(observed)),
        low=low,
        high=high,
        p=p_value(flipped_medians(blocks, rng), observed),
        method=f"{count} pairs of the same request, signs of {len(blocks)} blocks flipped",
        paired=True,
    )


def _pair_log_ratios(a: ComparedPoint, b: ComparedPoint, metric: Metric) -> Floats:
    """Log ratios of pairs in the baseline's order; infinite where only one request failed, 0 where both did."""
    theirs = dict(zip(b.request_ids, getattr(b, metric.source), strict=True))
    pairs = np.array(
        [
            (value, theirs[name])
            for name, value in zip(a.request_ids, getattr(a, metric.source), strict=True)
            if name in theirs
        ],
        dtype=np.float64,
    ).reshape(-1, 2)
    pairs = pairs[~np.isnan(pairs).any(axis=1)]
    return np.nan_to_num(log_ratio(pairs[:, 1], pairs[:, 0]), nan=0.0, posinf=np.inf, neginf=-np.inf)


def _over_repeats(row: ComparisonRow, a: Sequence[Floats], b: Sequence[Floats]) -> ComparisonRow:
    """The repeats of both sides, by Welch's t-test on logarithms."""
    from scipy import stats

    logs = [np.log([float(statistic(values, row.metric.percent)) for values in side]) for side in (a, b)]
    if not all(np.isfinite(side).all() for side in logs):
        return _too_many_failed(row)
    test = stats.ttest_ind(logs[1], logs[0], equal_var=False)
    between = test.confidence_interval(CONFIDENCE)
    return replace(
        row,
        baseline=float(np.exp(logs[0].mean())),
        candidate=float(np.exp(logs[1].mean())),
        effect=float(np.expm1(logs[1].mean() - logs[0].mean())),
        low=float(np.expm1(between.low)),
        high=float(np.expm1(between.high)),
        p=float(test.pvalue),
        method=f"Welch's t-test over {len(a)} and {len(b)} repeats",
    )


def compare_failures(level: str, ours: Points, theirs: Points) -> ComparisonRow | None:
    """Compare the shares of failed requests by Fisher's exact test; None where none failed."""
    from scipy import stats

    bad = [int(sum(point.failed.sum() for point in side)) for side in (ours, theirs)]
    sizes = [sum(point.failed.size for point in side) for side in (ours, theirs)]
    if not any(bad) or not all(sizes):
        return None
    shares = [part / whole for part, whole in zip(bad, sizes, strict=True)]
    wald = [share * (1 - share) / whole for share, whole in zip(shares, sizes, strict=True)]
    half = float(stats.norm.ppf((1 + CONFIDENCE) / 2) * np.sqrt(sum(wald)))
    effect = shares[1] - shares[0]
    table = [[bad[0], sizes[0] - bad[0]], [bad[1], sizes[1] - bad[1]]]
    return ComparisonRow(
        level=level,
        metric=FAILED,
        baseline=shares[0],
        candidate=shares[1],
        effect=effect,
        low=effect - half,
        high=effect + half,
        p=float(stats.fisher_exact(table).pvalue),
        method="Fisher's exact test",
    )
