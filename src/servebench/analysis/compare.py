"""Which of two runs is faster, by how much, and how sure that is.

For each load level that both runs have and each metric of METRICS:

- the effect is the change of the metric from baseline to candidate, as a share (a ratio less one);
- a failed request counts as worse than any latency: it is infinite in percentiles, and brings no tokens to throughput;
- requests of one point are not independent (they share engine steps, and the engine's speed wanders), so what is
  resampled and permuted are stretches of consecutive requests, or of time for a throughput (batch means: Schmeiser 1982;
  block bootstrap: Künsch 1989);
- where both runs sent the same requests (ids, sizes), each request is compared with its twin: the effect is the median
  ratio, tested by flipping the signs of whole stretches (Good 2005, chapter 3); else the ratio of the two statistics is
  tested by permuting stretches between the runs;
- with three repeats or more on both sides, repeats are what is compared: Welch's t-test on the logarithms (Welch 1947);
- two throughputs are compared by Welch's t-test on their logarithms, each with the error of `statistics.rate_spread`, for
  neither requests nor slices of time are independent: streams in step begin and end together;
- a run is one start of an engine, and two starts differ by themselves: an allowance (START_SD) is added to every interval
  in quadrature, for no number of requests can tell of it;
- p-values of all rows of all comparisons made together are corrected by Holm's method (Holm 1979).

A row is *faster* or *slower* when the corrected p-value is under 5 %, the interval excludes none, and the effect is at
least the margin; *no difference
larger than x %* when the 95 % interval lies within x, and x is at most twice the margin; else *not enough data*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.fairness import SettingDifference, keys_told, way_out
from servebench.analysis.statistics import RateError, rate_spread

Floats = NDArray[np.float64]

SIGNIFICANCE = 0.05
CONFIDENCE = 0.95
MARGIN = 0.05
"""The smallest difference that matters, unless the user says another: about what two starts of one engine differ by."""
START_SD = 0.01
"""By how much the speed of one engine differs from start to start, as a share (standard deviation), where nobody knows
better."""
FAILED_MARGIN = 0.01
"""The difference between shares of failed requests that matters."""
STRETCHES = 20
STRETCHES_MIN = 10
REPEATS_MIN = 3
RESAMPLES = 2000
P99_REQUESTS_MIN = 100
PAIRED_SHARE_MIN = 0.9
_NORMAL_95 = 1.959964
_BATCH = 2_000_000

Result = Literal["faster", "slower", "no difference", "not enough data", "unequal_settings"]


@dataclass(frozen=True)
class Metric:
    """What is compared. `source` is the array of a Sample, `percent` None for a mean."""

    name: str
    title: str
    source: str
    percent: float | None
    higher_is_better: bool = False
    unit: str = "ms"
    requests_min: int = STRETCHES_MIN


METRICS = (
    Metric(
        "output_throughput_tok_s", "output throughput", "throughput_tok_s", None, higher_is_better=True, unit="tok/s"
    ),
    Metric("ttft_ms_p50", "TTFT p50", "ttft_ms", 50),
    Metric("ttft_ms_p99", "TTFT p99", "ttft_ms", 99, requests_min=P99_REQUESTS_MIN),
    Metric("tpot_ms_p50", "TPOT p50", "tpot_ms", 50),
    Metric("e2e_ms_p50", "E2E p50", "e2e_ms", 50),
)
FAILED = Metric("failed_share", "failed requests", "failed", None, unit="")


@dataclass(frozen=True, kw_only=True)
class ComparedPoint:
    """One point of one run, as it is compared: arrays over requests in the order sent, those in the window.

    Latencies are infinite for failed requests and NaN where undefined. `throughput_tok_s` has one entry a slice of time.
    `sizes` are the planned prompt tokens, by which twins are known beside their ids.
    """

    level: str
    repeat: int
    verdict: str
    doubts: tuple[str, ...] = ()
    request_ids: tuple[str, ...] = ()
    sizes: Floats = field(default_factory=lambda: np.empty(0))
    failed: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    ttft_ms: Floats = field(default_factory=lambda: np.empty(0))
    tpot_ms: Floats = field(default_factory=lambda: np.empty(0))
    e2e_ms: Floats = field(default_factory=lambda: np.empty(0))
    throughput_tok_s: Floats | None = None


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One metric at one level. `effect`, `low` and `high` are shares: 0.1 is ten percent more than the baseline.

    For `failed_share`, `baseline`, `candidate` and `effect` are shares of requests and their difference.
    `paired`: the effect is the median over requests of each against its twin, and may differ from the ratio of the two medians.
    `competes` is false for points that are not valid: their verdict is told and counts for nothing.
    """

    level: str
    metric: Metric
    baseline: float | None
    candidate: float | None
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_corrected: float | None = None
    result: Result = "not enough data"
    bound: float | None = None
    method: str = ""
    paired: bool = False
    why: str = ""
    competes: bool = True


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs compared. `bound` goes with the verdict *no difference larger than*."""

    baseline: str
    candidate: str
    rows: tuple[ComparisonRow, ...]
    unequal: tuple[SettingDifference, ...]
    margin: float
    result: Result | Literal["mixed"]
    summary: str
    bound: float | None = None

    @property
    def regressions(self) -> tuple[ComparisonRow, ...]:
        """The rows that compete in which the candidate is worse."""
        return tuple(row for row in self.rows if row.competes and row.result == "slower")


@dataclass(frozen=True, kw_only=True)
class Side:
    """A run as one side of a comparison."""

    name: str
    samples: tuple[ComparedPoint, ...]


def compare(
    pairs: Iterable[tuple[Side, Side, Sequence[SettingDifference]]],
    *,
    margin: float = MARGIN,
    with_doubtful: bool = False,
    start_sd: float = START_SD,
    seed: int = 0,
) -> list[Comparison]:
    """Compare each candidate with its baseline: (baseline, candidate, what their manifests have unequal). Pure.

    `margin` and `start_sd` are shares. P-values are corrected over all rows of all pairs. `with_doubtful` lets doubtful
    points compete. The same input and seed give the same result.
    """
    raw = [
        (baseline, candidate, tuple(unequal), _rows(baseline, candidate, with_doubtful, seed))
        for baseline, candidate, unequal in pairs
    ]
    every = [row for *_, rows in raw for row in rows]
    corrected = iter(holm([row.p for row in every]))
    found = []
    for baseline, candidate, unequal, rows in raw:
        judged = tuple(_judge(_allowing(replace(row, p_corrected=next(corrected)), start_sd), margin) for row in rows)
        found.append(_conclude(baseline, candidate, judged, unequal, margin))
    return found


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction; what has no p-value is no test and keeps None."""
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    found: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        found[index] = largest
    return found


def _rows(baseline: Side, candidate: Side, with_doubtful: bool, seed: int) -> list[ComparisonRow]:
    levels = list(dict.fromkeys(sample.level for side in (baseline, candidate) for sample in side.samples))
    rows = []
    for level in levels:
        ours = [sample for sample in baseline.samples if sample.level == level]
        theirs = [sample for sample in candidate.samples if sample.level == level]
        rows += _level_rows(level, ours, theirs, with_doubtful, seed)
    return rows


def _level_rows(
    level: str, ours: Sequence[ComparedPoint], theirs: Sequence[ComparedPoint], with_doubtful: bool, seed: int
) -> list[ComparisonRow]:
    if not ours or not theirs:
        side = "baseline" if not ours else "candidate"
        return [_missing(level, METRICS[0], f"the {side} has no such level")]
    void = [sample for sample in (*ours, *theirs) if sample.verdict == "void"]
    if void:
        codes = ", ".join(dict.fromkeys(code for sample in void for code in sample.doubts)) or "void"
        return [_missing(level, METRICS[0], f"void point: {codes}")]
    doubtful = list(dict.fromkeys(code for s in (*ours, *theirs) if s.verdict != "valid" for code in s.doubts))
    why = f"doubtful: {', '.join(doubtful)}" if doubtful else ""
    competes = with_doubtful or not doubtful
    found = [_measure(level, metric, ours, theirs, seed) for metric in METRICS]
    found.append(_failures(level, ours, theirs))
    return [
        replace(row, competes=competes and row.competes, why="; ".join(filter(None, (row.why, why))))
        for row in found
        if row is not None
    ]


def _missing(level: str, metric: Metric, why: str) -> ComparisonRow:
    return ComparisonRow(level=level, metric=metric, baseline=None, candidate=None, why=why, competes=False)


def _values(sample: ComparedPoint, metric: Metric) -> Floats:
    values = getattr(sample, metric.source)
    if values is None:
        return np.empty(0)
    kept: Floats = values[~np.isnan(values)]
    return kept


def _measure(
    level: str, metric: Metric, ours: Sequence[ComparedPoint], theirs: Sequence[ComparedPoint], seed: int
) -> ComparisonRow | None:
    a, b = [_values(s, metric) for s in ours], [_values(s, metric) for s in theirs]
    a, b = [one for one in a if one.size], [one for one in b if one.size]
    if not a and not b:
        return None
    if not a or not b:
        return _missing(level, metric, "one side has no such number")
    whole = [float(statistic(np.concatenate(side), metric.percent)) for side in (a, b)]
    row = ComparisonRow(level=level, metric=metric, baseline=whole[0], candidate=whole[1])
    fewest = min(sum(one.size for one in side) for side in (a, b))
    if fewest < metric.requests_min:
        what = "requests" if metric.percent is not None else "slices of time"
        return replace(row, why=f"{fewest} {what}, {metric.requests_min} are needed")
    if not np.isfinite(whole).any():
        return _too_many_failed(row)
    return _tested(row, ours, theirs, (a, b), seed)


def _tested(
    row: ComparisonRow,
    ours: Sequence[ComparedPoint],
    theirs: Sequence[ComparedPoint],
    values: tuple[list[Floats], list[Floats]],
    seed: int,
) -> ComparisonRow:
    """The row with its effect, interval and p-value, by the method that the data allow."""
    if min(map(len, values)) >= REPEATS_MIN:
        return _over_repeats(row, *values)
    rng = np.random.default_rng(seed)
    if row.metric.percent == 50 and _twins(ours, theirs):
        return _paired(row, ours, theirs, rng)
    if row.metric.source == "throughput_tok_s":
        return _rates(row, *values)
    return _unpaired(row, *values, rng)


def _too_many_failed(row: ComparisonRow) -> ComparisonRow:
    """So many failed on both sides that the percentile itself is one of them."""
    return replace(row, why="so many requests failed on both sides that this percentile is a failed one")


def statistic(values: Floats, percent: float | None) -> Floats:
    """The mean, or a percentile (type 7), of the last axis. Infinite values are allowed: they are the largest."""
    if percent is None:
        return np.asarray(values.mean(axis=-1))
    place = (values.shape[-1] - 1) * percent / 100
    low = int(np.floor(place))
    high = min(low + 1, values.shape[-1] - 1)
    parted = np.partition(values, (low, high), axis=-1)
    below, above = parted[..., low], parted[..., high]
    share = place - low
    if share == 0:
        return np.asarray(below)
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(below), below, below + share * (above - below))


def _stretches(parts: Sequence[Floats], size: int) -> Floats:
    """Parts (repeats) cut into stretches of this many consecutive values; what is left over at an end is not used."""
    kept = [one[: len(one) // size * size].reshape(-1, size, *one.shape[1:]) for one in parts if len(one) >= size]
    return np.concatenate(kept)


def _log_ratio(over: Floats, under: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.log(over) - np.log(under)
    return found


def _unpaired(row: ComparisonRow, a: Sequence[Floats], b: Sequence[Floats], rng: np.random.Generator) -> ComparisonRow:
    fewest = min(sum(len(one) for one in a), sum(len(one) for one in b))
    size = max(1, fewest // STRETCHES)
    ours, theirs = _stretches(a, size), _stretches(b, size)
    percent = row.metric.percent

    def ratio(first: NDArray[np.int64], second: NDArray[np.int64], pool_a: Floats, pool_b: Floats) -> Floats:
        return _log_ratio(_gathered(pool_b, second, percent), _gathered(pool_a, first, percent))

    drawn_a = rng.integers(0, len(ours), size=(RESAMPLES, len(ours)))
    drawn_b = rng.integers(0, len(theirs), size=(RESAMPLES, len(theirs)))
    everything = np.arange(len(ours))[None], np.arange(len(theirs))[None]
    seen = float(ratio(*everything, ours, theirs)[0])
    observed = float(_log_ratio(np.asarray(row.candidate), np.asarray(row.baseline)))
    # stretches leave out the last few requests: the interval is moved to the effect
    moved = observed - seen if np.isfinite([observed, seen]).all() else 0.0
    low, high = _interval(ratio(drawn_a, drawn_b, ours, theirs) + moved)
    pool = np.concatenate([ours, theirs])
    order = np.argsort(rng.random((RESAMPLES, len(pool))), axis=1)
    permuted = ratio(order[:, : len(ours)], order[:, len(ours) :], pool, pool)
    return replace(
        row,
        effect=float(np.expm1(observed)),
        low=low,
        high=high,
        p=_p_value(permuted, observed if np.isinf(observed) else seen),
        method=f"permutation of {len(ours)} and {len(theirs)} stretches",
    )


def pooled_spread(slices: Sequence[Floats]) -> RateError | None:
    """How sure the mean throughput of some repeats is; None when one brought nothing or has too few slices."""
    spreads = [rate_spread(one) for one in slices]
    rates = [float(one.mean()) for one in slices]
    if not spreads:
        return None
    total = 0.0
    for spread, rate in zip(spreads, rates, strict=True):
        if spread is None:
            return None
        total += (spread.share * rate) ** 2
    return RateError(total**0.5 / sum(rates), sum(spread.freedom for spread in spreads if spread is not None))


def _rates(row: ComparisonRow, a: Sequence[Floats], b: Sequence[Floats]) -> ComparisonRow:
    """Two throughputs, each with its own error (Welch 1947; a logarithm's error is the share: the delta method)."""
    from scipy.special import stdtr, stdtrit

    ours, theirs = pooled_spread(a), pooled_spread(b)
    if ours is None or theirs is None:
        return replace(row, why="one side brought no tokens, or its window is too short")
    observed = float(_log_ratio(np.asarray(row.candidate), np.asarray(row.baseline)))
    squares = ours.share**2, theirs.share**2
    error = sum(squares) ** 0.5
    # two engines that never varied at all have no error to compare with
    freedom = error**4 / (squares[0] ** 2 / ours.freedom + squares[1] ** 2 / theirs.freedom) if error else 1.0
    half = error * float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
    p = float(2 * stdtr(freedom, -abs(observed) / error)) if error else float(observed == 0)
    return replace(
        row,
        effect=float(np.expm1(observed)),
        low=float(np.expm1(observed - half)),
        high=float(np.expm1(observed + half)),
        p=p,
        method="Welch's t-test on the throughput's slow waves",
    )


def _gathered(pool: Floats, drawn: NDArray[np.int64], percent: float | None) -> Floats:
    """The statistic of each resample, given as stretches of the pool; in batches, so that memory stays bounded."""
    if percent is None:
        found: Floats = pool.mean(axis=1)[drawn].mean(axis=1)
        return found
    width = drawn.shape[1] * pool.shape[1]
    step = max(1, _BATCH // width)
    parts = [
        statistic(pool[drawn[start : start + step]].reshape(-1, width), percent) for start in range(0, len(drawn), step)
    ]
    return np.concatenate(parts)


def resampled(values: Floats, size: int, percent: float | None, rng: np.random.Generator) -> Floats:
    """The statistic of RESAMPLES resamples of stretches of `size` consecutive values."""
    pool = _stretches([values], size)
    return _gathered(pool, rng.integers(0, len(pool), size=(RESAMPLES, len(pool))), percent)


def _interval(logs: Floats) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    logs = np.nan_to_num(logs, nan=0.0, posinf=np.inf, neginf=-np.inf)
    low, high = np.quantile(logs, [tail, 1 - tail], method="inverted_cdf")
    return float(np.expm1(low)), float(np.expm1(high))


def _p_value(permuted: Floats, observed: float) -> float:
    """Two-sided; the observed order counts as one of the permutations (Phipson and Smyth 2010)."""
    # where the percentile is a failed request on both sides there is no difference
    as_far = np.abs(np.nan_to_num(permuted, nan=0.0, posinf=np.inf, neginf=-np.inf)) >= abs(observed) - 1e-12
    return float((1 + as_far.sum()) / (1 + permuted.size))


def _twins(ours: Sequence[ComparedPoint], theirs: Sequence[ComparedPoint]) -> bool:
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


def _paired(
    row: ComparisonRow, ours: Sequence[ComparedPoint], theirs: Sequence[ComparedPoint], rng: np.random.Generator
) -> ComparisonRow:
    parts = [_differences(a, b, row.metric) for a, b in zip(ours, theirs, strict=True)]
    parts = [part for part in parts if part.size]
    count = sum(part.size for part in parts)
    if count < row.metric.requests_min:
        return replace(row, why=f"{count} pairs of requests, {row.metric.requests_min} are needed")
    stretches = _stretches(parts, max(1, count // STRETCHES))
    drawn = rng.integers(0, len(stretches), size=(RESAMPLES, len(stretches)))
    observed = float(statistic(np.concatenate(parts), 50))
    low, high = _interval(_gathered(stretches, drawn, 50))
    signs = rng.choice([-1.0, 1.0], size=(RESAMPLES, len(stretches), 1))
    step = max(1, _BATCH // stretches.size)
    flipped = np.concatenate(
        [
            statistic((signs[start : start + step] * stretches).reshape(-1, stretches.size), 50)
            for start in range(0, RESAMPLES, step)
        ]
    )
    return replace(
        row,
        effect=float(np.expm1(observed)),
        low=low,
        high=high,
        p=_p_value(flipped, observed),
        method=f"{count} pairs of the same request, signs of {len(stretches)} stretches flipped",
        paired=True,
    )


def _differences(a: ComparedPoint, b: ComparedPoint, metric: Metric) -> Floats:
    """Log ratios of twins, in the baseline's order. Where one failed and the other not, infinite; both failed, 0."""
    theirs = dict(zip(b.request_ids, getattr(b, metric.source), strict=True))
    pairs = np.array(
        [
            (own, theirs[name])
            for name, own in zip(a.request_ids, getattr(a, metric.source), strict=True)
            if name in theirs
        ],
        dtype=np.float64,
    ).reshape(-1, 2)
    pairs = pairs[~np.isnan(pairs).any(axis=1)]
    found = _log_ratio(pairs[:, 1], pairs[:, 0])
    return np.nan_to_num(found, nan=0.0, posinf=np.inf, neginf=-np.inf)


def _over_repeats(row: ComparisonRow, a: Sequence[Floats], b: Sequence[Floats]) -> ComparisonRow:
    from scipy import stats

    logs = [np.log([float(statistic(one, row.metric.percent)) for one in side]) for side in (a, b)]
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


def _failures(level: str, ours: Sequence[ComparedPoint], theirs: Sequence[ComparedPoint]) -> ComparisonRow | None:
    """Shares of failed requests by Fisher's exact test; None when none failed."""
    from scipy import stats

    bad = [int(sum(s.failed.sum() for s in side)) for side in (ours, theirs)]
    every = [sum(s.failed.size for s in side) for side in (ours, theirs)]
    if not any(bad) or not all(every):
        return None
    shares = [part / whole for part, whole in zip(bad, every, strict=True)]
    wald = [share * (1 - share) / whole for share, whole in zip(shares, every, strict=True)]
    half = float(stats.norm.ppf((1 + CONFIDENCE) / 2) * np.sqrt(sum(wald)))
    effect = shares[1] - shares[0]
    table = [[bad[0], every[0] - bad[0]], [bad[1], every[1] - bad[1]]]
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


def _allowing(row: ComparisonRow, start_sd: float) -> ComparisonRow:
    """The row with its interval widened by what two starts of one engine differ by."""
    if row.effect is None or row.low is None or row.high is None or row.metric is FAILED or not np.isfinite(row.effect):
        return row
    allowance = _NORMAL_95 * np.sqrt(2) * start_sd
    middle, low, high = (float(np.log1p(max(one, -1 + 1e-12))) for one in (row.effect, row.low, row.high))
    return replace(
        row,
        low=float(np.expm1(middle - np.hypot(middle - low, allowance))),
        high=float(np.expm1(middle + np.hypot(high - middle, allowance))),
    )


def _judge(row: ComparisonRow, margin: float) -> ComparisonRow:
    if row.effect is None or row.low is None or row.high is None:
        return row
    bound = max(abs(row.low), abs(row.high))
    significant = row.p_corrected is not None and row.p_corrected < SIGNIFICANCE and not row.low <= 0 <= row.high
    margin = margin if row.metric is not FAILED else FAILED_MARGIN
    if significant and (row.metric is FAILED or abs(row.effect) >= margin):
        better = (row.effect > 0) == row.metric.higher_is_better
        return replace(row, result="faster" if better else "slower", bound=bound)
    if bound <= 2 * margin:
        return replace(row, result="no difference", bound=bound)
    needed = f"the interval reaches {bound:.0%}" if np.isfinite(bound) else "the interval has no end"
    return replace(row, bound=bound, why=row.why or f"{needed}: more requests or repeats")


def _conclude(
    baseline: Side,
    candidate: Side,
    rows: tuple[ComparisonRow, ...],
    unequal: tuple[SettingDifference, ...],
    margin: float,
) -> Comparison:
    facts: dict[str, Any] = {
        "baseline": baseline.name,
        "candidate": candidate.name,
        "unequal": unequal,
        "margin": margin,
    }
    mattering = [one for one in unequal if one.matters]
    if mattering:
        withheld = tuple(replace(row, result="unequal_settings", competes=False) for row in rows)
        summary = f"no verdict: {keys_told(mattering)} differ, and that matters; {way_out(mattering)}"
        return Comparison(rows=withheld, result="unequal_settings", summary=summary, **facts)
    fit = [row for row in rows if row.competes]
    found = {kind: [row for row in fit if row.result == kind] for kind in ("faster", "slower", "no difference")}
    faster, slower, same = found["faster"], found["slower"], found["no difference"]
    if faster or slower:
        result: Result | Literal["mixed"] = "mixed" if faster and slower else "faster" if faster else "slower"
        worst = max((*slower, *faster), key=lambda row: abs(row.effect or 0))
        what = f"{candidate.name} is {'faster in some and slower in others' if result == 'mixed' else result}"
        return Comparison(rows=rows, result=result, summary=f"{what}; most: {told(worst)}", **facts)
    if same:
        bound = max(row.bound or 0 for row in same)
        short = len(fit) - len(same)
        rest = f" ({short} of {len(fit)} rows have too little data)" if short else ""
        return Comparison(
            rows=rows,
            result="no difference",
            summary=f"no difference larger than {bound:.1%}{rest}",
            bound=bound,
            **facts,
        )
    uncounted = [row for row in rows if not row.competes and row.result in ("faster", "slower")]
    if uncounted:
        worst = max(uncounted, key=lambda row: abs(row.effect or 0))
        codes = ", ".join(dict.fromkeys(c for row in uncounted for c in row.why.partition("doubtful: ")[2].split(", ")))
        return Comparison(
            rows=rows,
            result="not enough data",
            summary=f"no verdict: every level that differs is doubtful ({codes}); doubtful points would say: "
            f"{told(worst)} ({worst.result}); --with-doubtful lets them compete",
            **facts,
        )
    whys = _reasons(rows)
    why = f": {'; '.join(whys[:3])}" if whys else ""
    return Comparison(rows=rows, result="not enough data", summary=f"not enough data{why}", **facts)


def _reasons(rows: Sequence[ComparisonRow]) -> list[str]:
    """Why rows have no verdict, each kind once: of intervals that reach too far, the widest."""
    wide = [row.bound for row in rows if row.result == "not enough data" and row.bound is not None]
    parts = list(dict.fromkeys(part for row in rows for part in row.why.split("; ") if part))
    kept = [part for part in parts if not part.startswith("the interval ")]
    if wide:
        reach = f"reach up to {max(wide):.0%}" if np.isfinite(max(wide)) else "have no end"
        kept.insert(0, f"the intervals {reach}: more requests or repeats")
    return kept


def told(row: ComparisonRow) -> str:
    """A row in words: what changed, by how much, where."""
    if row.effect is None or row.low is None or row.high is None:
        return f"{row.metric.title} at {row.level}"
    unit = " points" if row.metric is FAILED else ""
    return (
        f"{row.metric.title} {100 * row.effect:+.1f} %{unit} [{100 * row.low:+.1f}, {100 * row.high:+.1f}] "
        f"at {row.level}"
    )
