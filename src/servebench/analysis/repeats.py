"""What the repeats of a level say together: their mean with an interval, one that lies apart, and drift from first to last.

- The interval of a level is Student's over its repeats, on logarithms, from REPEATS_MIN repeats on: the repeats are what is
  independent, and how their numbers differ holds what no single window can tell.
- A repeat that lies apart is found by Grubbs' test (1969, Technometrics 11), on logarithms.
- Drift over the repeats is found by the seasonal Kendall test (Hirsch, Slack and Smith 1982, Water Resour. Res. 18), each
  level a season, with the exact distribution of the statistic. That the levels come in another order does not disturb it.

P-values are corrected for the number of tests of their kind by Holm's method. What is under SMALLEST is not told: it
changes no conclusion, however sure it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.compare import CONFIDENCE, REPEATS_MIN, SIGNIFICANCE, holm
from servebench.contracts.point_row import PointRow

Floats = NDArray[np.float64]

SMALLEST = 0.02
"""A repeat that is less apart from the others than that, or a smaller drift, is no news."""
METRICS = (
    ("output_throughput_tok_s", "output throughput", "tok/s"),
    ("ttft_ms_p50", "TTFT p50", "ms"),
    ("tpot_ms_p50", "TPOT p50", "ms"),
)


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """One metric at one level over its repeats. `low` and `high` are None under REPEATS_MIN repeats; `spread` is the
    standard deviation of one repeat, as a share."""

    level: str
    metric: str
    title: str
    unit: str
    count: int
    mean: float
    low: float | None
    high: float | None
    spread: float


@dataclass(frozen=True, kw_only=True)
class OverRepeats:
    """All levels that have repeats, and what was found wrong with these, a sentence each."""

    rows: tuple[Repeated, ...] = ()
    notes: tuple[str, ...] = ()


def over_repeats(points: Sequence[PointRow]) -> OverRepeats:
    """Return what the repeats of a run say together; void points are left out."""
    levels: dict[str, list[PointRow]] = {}
    for row in points:
        if row.verdict != "void":
            levels.setdefault(row.level_label, []).append(row)
    series: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for level, rows in levels.items():
        ordered = sorted(rows, key=lambda row: (row.window_start_ns or 0, row.repeat))
        for name, *_ in METRICS:
            known = [(row.repeat, float(row[name])) for row in ordered if _positive(row.get(name))]
            if len(known) > 1:
                series[level, name] = known
    rows_of = [
        _row(level, (name, title, unit), [value for _, value in series[level, name]])
        for level in levels
        for name, title, unit in METRICS
        if (level, name) in series
    ]
    return OverRepeats(rows=tuple(rows_of), notes=(*_drifts(series), *_outliers(series)))


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and np.isfinite(value) and value > 0


def _row(level: str, metric: tuple[str, str, str], values: Sequence[float]) -> Repeated:
    from scipy.special import stdtrit

    name, title, unit = metric
    logs = np.log(values)
    middle, error, low, high = float(logs.mean()), float(logs.std(ddof=1)), None, None
    if len(values) >= REPEATS_MIN:
        half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * error / len(values) ** 0.5
        low, high = float(np.exp(middle - half)), float(np.exp(middle + half))
    return Repeated(
        level=level,
        metric=name,
        title=title,
        unit=unit,
        count=len(values),
        mean=float(np.exp(middle)),
        low=low,
        high=high,
        spread=float(np.expm1(error)),
    )


def grubbs(values: Floats) -> tuple[int, float]:
    """The value furthest from the mean, and the two-sided p-value that it belongs to the others (Grubbs 1969)."""
    from scipy.special import stdtr

    n, sd = values.size, float(values.std(ddof=1))
    if n < REPEATS_MIN or sd == 0:
        return 0, 1.0
    far = np.abs(values - values.mean()) / sd
    index = int(far.argmax())
    rest = (n - 1) ** 2 - n * float(far[index]) ** 2
    t = (n * (n - 2) * float(far[index]) ** 2 / rest) ** 0.5 if rest > 1e-12 else np.inf
    return index, float(min(1.0, 2 * n * stdtr(n - 2, -t)))


def _outliers(series: Mapping[tuple[str, str], Sequence[tuple[int, float]]]) -> list[str]:
    found = [(level, name, known, *grubbs(np.log([v for _, v in known]))) for (level, name), known in series.items()]
    notes = []
    for (level, name, known, index, _), p in zip(found, holm([p for *_, p in found]), strict=True):
        repeat, value = known[index]
        others = float(np.median([v for at, (_, v) in enumerate(known) if at != index]))
        apart = value / others - 1
        if p is not None and p < SIGNIFICANCE and abs(apart) >= SMALLEST:
            title = next(title for own, title, _ in METRICS if own == name)
            notes.append(
                f"repeat {repeat} at {level} lies apart: its {title} is {100 * apart:+.1f} % from the others' median "
                f"(Grubbs' test, p = {p:.2g}); look what else the machine did then, or measure the level again"
            )
    return notes


def kendall_null(n: int) -> Floats:
    """The probabilities of 0, 1, 2 ... falling pairs among n values in random order (Mann and Kendall, exact)."""
    counts = np.ones(1)
    for size in range(2, n + 1):
        counts = np.convolve(counts, np.ones(size))
    return counts / factorial(n)


def seasonal_kendall(seasons: Sequence[Floats]) -> float:
    """The two-sided p-value of as strong a common order in time of several series, by chance. Ties count for neither."""
    null, falling, rising, pairs = np.ones(1), 0, 0, 0
    for values in seasons:
        null = np.convolve(null, kendall_null(values.size))
        steps = [float(b - a) for a, b in combinations(values, 2)]
        falling, rising = falling + sum(s < 0 for s in steps), rising + sum(s > 0 for s in steps)
        pairs += len(steps)
    # at most this many pairs against the stronger order; a tie is half against it
    against = int(np.floor(min(falling, rising) + (pairs - falling - rising) / 2))
    return float(min(1.0, 2 * null[: against + 1].sum()))


def _drifts(series: Mapping[tuple[str, str], Sequence[tuple[int, float]]]) -> list[str]:
    found = []
    for name, title, _ in METRICS:
        seasons = [np.log([v for _, v in known]) for (_, own), known in series.items() if own == name]
        if not seasons:
            continue
        # Sen's slope over all levels, from each level's first repeat to its last
        slopes = [
            float(values[j] - values[i]) / (j - i) * (values.size - 1)
            for values in seasons
            for i, j in combinations(range(values.size), 2)
        ]
        found.append((title, float(np.expm1(np.median(slopes))), seasonal_kendall(seasons)))
    notes = []
    for (title, change, _), p in zip(found, holm([p for *_, p in found]), strict=True):
        if p is not None and p < SIGNIFICANCE and abs(change) >= SMALLEST:
            notes.append(
                f"{title} {'rose' if change > 0 else 'fell'} by {100 * abs(change):.1f} % from the first repeat to the last "
                f"(seasonal Kendall test over levels, p = {p:.2g}): the machine or the engine changed as it worked; "
                "compare engines with load.order=interleaved, and look at clocks and heat"
            )
    return notes
