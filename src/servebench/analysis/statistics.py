"""Confidence intervals of a point's numbers.

Everything measured at one time shares the engine's steps, so a value is like those before it. All intervals therefore come
from series in order of time (`serial.mean_interval`): latencies in the order sent, tokens in slices of the window. Gaps
between tokens are pooled over requests, so their mean is a ratio of two sums over requests, linearised (Cochran 1977,
"Sampling Techniques", part 6.4).

A percentile is the mean of its influence series: a value above it counts for it and one below against it, as much as the
density of the values there makes of one more on either side (Bahadur 1966, Ann. Math. Stat. 37; for values that depend on each
other Sen 1968, Ann. Math. Stat. 39). So one series has both its own noise and the engine's speed, which moves all percentiles.
Its interval reaches at least to the exact limits for independent values (order statistics: Hahn and Meeker 1991,
"Statistical Intervals", chapter 5); where the values are too few for an end there is no interval: a p95 takes 72, a p99 736.

A high percentile of the long run is that of the engine's slow spells, of which a window has few. So its upper end is raised by
what the wander that the window has not seen adds to the spread of the values; and since few values lie above it, all of them say
how probable each wander is.

Where the mean length of the answers in the long run is known, the interval of the mean E2E leaves out what their lengths
explain: what an excess of long ones did can be estimated and taken away (control variates: Lavenberg and Welch 1981, Manage.
Sci. 27). The shown values are those of the window. In an open loop a short window lacks the rare long queues: the intervals of
TTFT and E2E reach at least up to what `queueing` expects of the long run.

A look at a point that goes on (`load.until`) computes the same intervals as the finished point. They come from probabilities
given the data (`serial`), and these do not depend on when one looks or why one stops: the rule uses nothing but the data (Berger
and Wolpert 1988, "The Likelihood Principle", chapter 4). How often the intervals at the stop hold the truth is counted in
docs/calibration.md (until). Looks are planned: each when there are LOOK_GROWTH times as many requests as at the one before, so
that they stay few.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from servebench.analysis.quantiles import Mixture, beta_quantile
from servebench.analysis.queueing import is_random, long_run, reads_long_prompts
from servebench.analysis.serial import (
    FLAT,
    ROUNDS_MIN,
    VALUES_PER_WAVE,
    WANDER_S,
    WAVES_MAX,
    WAVES_MIN,
    SeriesSpan,
    mean_interval,
    wander_likelihood,
)
from servebench.contracts.estimate import CONFIDENCE, Interval
from servebench.contracts.point_row import PointRow
from servebench.contracts.precision import WINDOW_S_MIN, half_width
from servebench.measure.points import AnswerLengths, Arrivals, PointSample
from servebench.util.arrays import Floats, Ints
from servebench.util.units import MS_PER_S

DENSITY_SD = 2.0
"""The density at a percentile is that between two others, each so many standard errors of independent values away."""
LATE_TOGETHER = 2
"""By how much more values a p99 takes than if they were independent."""
QUEUED = (
    *("ttft_ms_mean", "ttft_ms_p50", "ttft_ms_p95", "ttft_ms_p99", "ttfo_ms_mean"),
    *("e2e_ms_mean", "e2e_ms_p50", "e2e_ms_p95"),
)
"""Columns that rare queues make long (`queueing`)."""
SLOWED = ("tpot_ms_mean", "tpot_ms_p50", "itl_ms_mean", "itl_ms_p99", "e2e_ms_mean", "e2e_ms_p50", "e2e_ms_p95")
"""Columns that others' long prompts make long."""
HEADLINES = {"ttft_ms": (50, 95, 99), "ttfo_ms": (), "itl_ms": (99,), "tpot_ms": (50,), "e2e_ms": (50, 95)}
"""The latencies whose means have intervals, with the percentiles that have one, too."""
CHECKED_SD = 5.0
"""Lengths whose mean is so many standard errors away were not drawn from the distribution that is known."""
RATE_SLICES = 1024
"""Into how many slices a window is cut for the interval of a rate: far finer than the waves that are looked at."""
HIGH_PERCENT = 90.0
"""From here on all values say more about the engine's wander than those beyond the percentile."""
RISE_VALUES = 1024
"""How many values are enough to tell how a percentile rises; more are thinned."""
RISE_SDS = (0.00125, 0.32, 9)
"""The deviations at which it is computed: first, last, and how many; it is nearly a line between them."""
RISE_PRECISION = 1e-4
LOOK_GROWTH = 1.4
"""By how much the requests grow from one look to the next: a point is at most this much longer than it has to be."""
FORECAST_MARGIN, EARLY_MARGIN = 2.0, 8.0
"""A target is out of reach when the forecast is beyond the budget by more than this. Up to EARLY_ROUNDS
intervals fall faster than with the root of the time, since a longer window has more waves, and the second one counts."""
EARLY_ROUNDS = 24
NO_INTERVAL_MARGIN = 1.25
"""The same for the time until there is an interval at all, which is known better."""


def headline_intervals(sample: PointSample, *, prior: Floats = FLAT) -> dict[str, Interval | None]:
    """Return the intervals of a point's headline numbers by column; None where the point says too little for one.

    Each is meant to hold what the engine would show in the long run, without the difference between starts. `prior` is how
    probable each wander of the engine was before (`serial`).
    """
    span, rates = span_of(sample), output_rates(sample)
    rate = None if rates is None else mean_interval(rates, span, prior)
    found = {"output_throughput_tok_s": None if rate is None else (max(0.0, rate[0]), rate[1])}
    for name, percents in HEADLINES.items():
        values, counts = getattr(sample, name), sample.itl_counts if name == "itl_ms" else None
        found[f"{name}_mean"] = mean_interval(values if counts is None else linearised(values, counts), span, prior)
        for percent in percents:
            found[f"{name}_p{percent}"] = pooled_percentile_interval(values, counts, percent, span, prior)
    if sample.lengths is not None and rates is not None and are_usual(sample.lengths):
        freed, shown = (
            mean_interval(controlled(sample.e2e_ms, sample.lengths), span, prior),
            float(sample.e2e_ms.mean()),
        )
        found["e2e_ms_mean"] = freed and (max(0.0, min(freed[0], shown)), max(freed[1], shown))
    if sample.arrivals is None or not is_random(sample.arrivals):
        return found
    found |= _with_queues(found, sample, sample.arrivals)
    return found | dict.fromkeys(SLOWED if reads_long_prompts(sample.arrivals) else ())


def _with_queues(
    intervals: Mapping[str, Interval | None], sample: PointSample, arrivals: Arrivals
) -> dict[str, Interval | None]:
    """Return the intervals of what rare queues make long, raised to what these have in the long run; None where the window
    leaves open that requests wait without an end."""
    queue = long_run(arrivals)
    if queue is None:
        return dict.fromkeys(QUEUED)
    longer = queue.mean - float(arrivals.ttft_ms.mean())
    ends = {
        "ttft_ms_mean": queue.mean,
        **{f"ttft_ms_p{percent}": queue.percentile(percent) for percent in (50, 95, 99)},
        "ttfo_ms_mean": longer + float(sample.ttfo_ms.mean()) if sample.ttfo_ms.size else queue.mean,
        "e2e_ms_mean": longer + float(arrivals.e2e_ms.mean()),
    }
    answers = queue.with_rest(arrivals.e2e_ms - arrivals.ttft_ms)
    ends |= {f"e2e_ms_p{percent}": float(np.percentile(answers, percent)) for percent in (50, 95)}
    return {
        name: None if (known := intervals[name]) is None else (max(0.0, known[0]), max(known[1], end))
        for name, end in ends.items()
    }


def point_wander(sample: PointSample) -> Floats | None:
    """Return how well each time and size of wander explains the output of a point (`serial.wander_likelihood`); None for unknown
    tokens, or too few values or rounds."""
    rates = output_rates(sample)
    return None if rates is None else wander_likelihood(rates, span_of(sample))


def span_of(sample: PointSample) -> SeriesSpan:
    """Return how long the window is, in seconds and in rounds of answers."""
    answer_s = float(sample.e2e_ms.mean()) / MS_PER_S if sample.e2e_ms.size else 0.0
    return SeriesSpan(seconds=sample.window_s, rounds=sample.window_s / answer_s if answer_s > 0 else 0.0)


def values_needed(percent: float) -> int:
    """Return the fewest values for both ends of a percentile's interval: 72 for a p95, 736 for a p99.

    A p99 takes twice as many as if they were independent (368): its few late requests are late together. From 500 requests
    of an engine that wanders, intervals held the true p99 in 75 to 89%, from 2,000 in all (docs/calibration.md).
    """
    share = max(percent, 100 - percent) / 100
    independent = math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log(share))
    return independent * (LATE_TOGETHER if share >= 0.99 else 1)


def least_values(column: str) -> int:
    """Return the fewest values that may have an interval of a column: of a percentile those of `values_needed`."""
    percent = column.rpartition("_p")[2]
    return values_needed(float(percent)) if percent.isdigit() else 1


HIGH_PERCENTILE = re.compile(r"(\w+_ms)_p(9\d)(?:_all)?")


def is_weak_percentile(row: PointRow, column: str) -> bool:
    """Return whether a column is a percentile from p90 on of which the point has a value, and too few requests for an interval.

    Gaps between tokens are many and few requests have them, so there only the interval itself says that they suffice."""
    found = HIGH_PERCENTILE.fullmatch(column)
    if found is None or row.get(column) is None:
        return False
    name, needed = found[1], values_needed(float(found[2]))
    count = row.get(f"{name}_n")
    if name == "itl_ms":
        return count is not None and (count < needed or row.get(f"{column}_low") is None)
    # result files of other tools may only say how many requests there were
    known = int(count if count is not None else row.requests_ok or 0)
    return known + (int(row.requests_failed or 0) if column.endswith("_all") else 0) < needed


def missing_interval(row: PointRow, column: str) -> str | None:
    """Return why a headline number of a point has no interval; None where it has one, or no value."""
    if row.get(column) is None or row.get(f"{column}_low") is not None:
        return None
    counted = "ttft_ms_n" if column.startswith(("output", "ttfo")) else f"{column.rpartition('_')[0]}_n"
    values, needed = int(row.get(counted, 0)), max(VALUES_PER_WAVE * WAVES_MIN, least_values(column))
    answer_ms, window_s = row.e2e_ms_mean, row.window_s
    if values < needed:
        return f"it takes {needed} values, and the window has {values}"
    if answer_ms and window_s is not None and window_s * MS_PER_S < ROUNDS_MIN * answer_ms:
        times = f"{window_s * MS_PER_S / answer_ms:.2g} times ".removeprefix("1 times ")
        return f"the window is {times}as long as an answer; an interval takes {ROUNDS_MIN:g} times"
    if row.rate is not None and column in QUEUED:
        return "the rate is so near the capacity that the window may lack the longest queues"
    if row.rate is not None and column in SLOWED:
        return "prompts take half of the engine's time at this rate, and slow the answers by more than a window shows"
    return "token counts are unknown" if column.startswith("output") else "too few requests have it"


def output_rates(sample: PointSample) -> Floats | None:
    """Return output tokens per second in slices of the window; None for unknown tokens or fewer than two events."""
    if sample.arrival_tokens is None or sample.arrival_s.size < 2 or sample.window_s <= 0:
        return None
    where = np.clip((sample.arrival_s / sample.window_s * RATE_SLICES).astype(np.int64), 0, RATE_SLICES - 1)
    amounts = np.bincount(where, weights=sample.arrival_tokens, minlength=RATE_SLICES).astype(np.float64)
    found: Floats = amounts * (RATE_SLICES / sample.window_s)
    return found


def linearised(values: Floats, counts: Ints) -> Floats:
    """Return one value for each request that has any, whose mean is that of all values: its own mean, weighted by its count."""
    counts = counts[counts > 0]
    if not counts.size:
        return np.empty(0)
    sums = np.add.reduceat(values, np.cumsum(counts) - counts)
    ratio = float(sums.sum() / counts.sum())
    found: Floats = ratio + (sums - ratio * counts) / counts.mean()
    return found


def pooled_percentile_interval(
    values: Floats, counts: Ints | None, percent: float, span: SeriesSpan, prior: Floats = FLAT
) -> Interval | None:
    """Return the interval of a percentile of values pooled over requests: `counts` of them for each, request after request.

    Null counts are one for each. None for too few requests, and where one end would lie beyond the smallest or largest value.
    """
    if values.size < values_needed(percent):
        return None
    share = percent / 100
    estimate = float(np.quantile(values, share))
    below = (values <= estimate).astype(np.float64)
    lies_below = below if counts is None else linearised(below, counts)
    reach = DENSITY_SD * math.sqrt(share * (1 - share) / values.size)
    left, right = max(0.0, share - reach), min(1.0, share + reach)
    least, most = np.quantile(values, [left, right]).tolist()
    influence = estimate + (share - lies_below) * (most - least) / (right - left)
    rise = partial(_rise, values, share, span.seconds if prior is FLAT else math.inf)
    if percent >= HIGH_PERCENT:
        speed = wander_likelihood(values if counts is None else linearised(values, counts), span, WAVES_MAX)
        prior = prior if speed is None else prior * speed / (prior * speed).sum()
    found = mean_interval(influence, span, prior, rise=rise)
    if found is None:
        return None
    # the shares whose percentiles bound that of `share` for independent values (Clopper and Pearson 1934)
    count, rank, tail = values.size, share * values.size, (1 - CONFIDENCE) / 2
    limits = beta_quantile(rank, count - rank + 1, tail), beta_quantile(rank + 1, count - rank, 1 - tail)
    low, high = np.quantile(values, limits).tolist()
    return min(max(0.0, found[0]), low), max(found[1], high)


def _rise(values: Floats, share: float, slowest_s: float, sds: Floats) -> Floats:
    """Return by how much the quantile at `share` rises, relative to it, where the values also vary together by each of `sds`, as
    those of many windows do; `sds` has a row for each of WANDER_S.

    Not by wander slower than `slowest_s`: what FLAT guesses beyond the window is in the interval, and a rise would double it."""
    at = (np.arange(RISE_VALUES) + 0.5) / RISE_VALUES
    few = np.quantile(values, at) if values.size > RISE_VALUES else values
    plain = float(np.quantile(few, share))
    if plain <= 0:
        return np.zeros_like(sds)
    weights, grid = np.full(few.size, 1 / few.size), np.geomspace(*RISE_SDS)
    spread = (Mixture(weights, few, sd * np.maximum(few, plain * RISE_PRECISION)) for sd in grid)
    risen = [one.quantile(share, start=plain, precision=RISE_PRECISION, scale=plain) for one in spread]
    known = np.where(np.array(WANDER_S)[:, None, None] <= slowest_s, sds, 0.0)
    found: Floats = np.interp(known, [0.0, *grid], [0.0, *(one / plain - 1 for one in risen)])
    return found


def are_usual(lengths: AnswerLengths) -> bool:
    """Return whether there are enough lengths, and they may be drawn from the known distribution."""
    count = lengths.tokens.size
    away = abs(float((1 - lengths.tokens / lengths.mean).mean())) if count else 0.0
    return count > 2 and away <= CHECKED_SD * float(lengths.tokens.std()) / lengths.mean / count**0.5


def controlled(values: Floats, lengths: AnswerLengths) -> Floats:
    """Return a series, one value for each answer, as if their mean length were that of the long run, by least squares."""
    # by how much each is shorter than in the long run, as a share
    surplus = 1 - lengths.tokens / lengths.mean
    centred, variance = surplus - surplus.mean(), float(surplus.var())
    slope = float((centred * values).mean()) / variance if variance > 0 else 0.0
    rest = values - values.mean() - slope * centred
    # by as much as least squares fit to the noise
    found: Floats = values.mean() - slope * surplus.mean() + rest * ((values.size - 1) / (values.size - 2)) ** 0.5
    return found


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
