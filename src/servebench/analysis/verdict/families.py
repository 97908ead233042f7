"""Correction of p-values for how many questions a comparison asks.

A pair of runs has one first question, the mean throughput over all levels, which has FIRST_SHARE of the error. The other metrics
share the rest, and all of it once the first question is answered (the fallback procedure: Wiens 2003, Pharm. Stat. 2), by
Holm's rule (Holm 1979). A metric is asked for its mean over the levels, or for its clearest level. Levels are asked where their
metric differs, by Holm's rule within it. The pairs share the error by Holm's rule, too. So two equal engines are called
different anywhere in at most 5% of comparisons; where metrics differ, the error in naming levels is 5% for each metric.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from servebench.util.groups import grouped

FIRST_SHARE = 0.8
"""The share of the first question, and within a metric that of its mean over levels."""


@dataclass(frozen=True)
class AskedPair:
    """The p-values of a pair of runs: of its first question, of its rows, each with its metric, and of means over levels by
    metric. None is no test. The first question is the mean of the metric `of_first`."""

    first: float | None
    rows: Sequence[tuple[str, float | None]]
    means: Mapping[str, float | None]
    of_first: str = "output_throughput_tok_s"


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values with Holm's step-down correction; None is no test and stays None."""
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    found: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        found[index] = largest
    return found


def corrected(pairs: Sequence[AskedPair]) -> list[tuple[float | None, list[float | None]]]:
    """Return the corrected p-values of the first question and of the rows of all pairs that are asked together."""
    own = [_within(one) for one in pairs]
    least = [min((p for p in (first, *rows) if p is not None), default=None) for first, rows in own]
    return [
        (_at_least(first, p_pair), [_at_least(p, p_pair) for p in rows])
        for (first, rows), p_pair in zip(own, holm(least), strict=True)
    ]


def _at_least(p: float | None, least: float | None) -> float | None:
    return None if p is None else max(p, least or 0.0)


def _within(pair: AskedPair) -> tuple[float | None, list[float | None]]:
    """The p-values of a pair that is asked alone."""
    first = None if pair.first is None else min(1.0, pair.first / FIRST_SHARE)
    known = (index for index, (_, p) in enumerate(pair.rows) if p is not None)
    by_metric = grouped(known, lambda index: pair.rows[index][0])
    others = [name for name in by_metric if first is None or name != pair.of_first]
    wholes = holm([_whole(pair.means.get(name), [pair.rows[i][1] for i in by_metric[name]]) for name in others])
    metrics = {name: p for name, p in zip(others, wholes, strict=True) if p is not None}
    if first is not None:
        metrics = {name: min(1.0, p / (1 - FIRST_SHARE), max(first, p)) for name, p in metrics.items()}
        metrics[pair.of_first] = first
    found: list[float | None] = [None] * len(pair.rows)
    for name, indexes in by_metric.items():
        for index, p in zip(indexes, holm([pair.rows[i][1] for i in indexes]), strict=True):
            found[index] = _at_least(p, metrics[name])
    return first, found


def _whole(mean: float | None, levels: Sequence[float | None]) -> float:
    """The p-value of a metric: of its mean over levels or of its clearest level, whichever is clearer."""
    clearest = len(levels) * min(p for p in levels if p is not None)
    return min(1.0, clearest if mean is None else min(mean / FIRST_SHARE, clearest / (1 - FIRST_SHARE)))
