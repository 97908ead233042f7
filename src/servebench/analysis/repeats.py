"""What the repeats of a level show together: their mean with an interval, outliers, and drift from first to last.

- The mean of a level and its interval are those that every screen shows (`estimate`).
- An outlier is found by Grubbs' test (1969, Technometrics 11), on logarithms.
- Drift over the repeats is found by the seasonal Kendall test (Hirsch, Slack and Smith 1982, Water Resour. Res. 18), each
  level a season, with the exact distribution of the statistic. The order of the levels does not affect it. Where repeats are
  starts of the engine, whose levels share its speed, the mean over levels is the only season.

P-values are corrected for the number of tests of their kind by Holm's method. Effects below SMALLEST are not reported: they
change no conclusion, however significant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial, inf

import numpy as np

from servebench.analysis.estimate import estimate_level, levels_of
from servebench.analysis.verdict.compare import SIGNIFICANCE
from servebench.analysis.verdict.families import holm
from servebench.contracts.estimate import LevelEstimate
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.util.arrays import Floats

REPEATS_MIN = 3
"""The fewest repeats of which one can be an outlier."""
SMALLEST = 0.02
METRICS = ("output_throughput_tok_s", "ttft_ms_p50", "tpot_ms_p50")
FROM_SCHEDULE = {"ttft_ms_p50": "ttft_from_schedule_ms_p50"}
"""The column of a metric in an open loop, where users wait from the schedule on."""
Series = Mapping[tuple[Level, str], Sequence[tuple[int, float]]]
"""(repeat, value) by (level, metric)."""


@dataclass(frozen=True, kw_only=True)
class RepeatedMetric:
    """One metric at one level over its repeats; `spread` is the standard deviation of one repeat, as a share."""

    estimate: LevelEstimate
    spread: float


@dataclass(frozen=True, kw_only=True)
class RepeatNote:
    """A column that drifts over the repeats by the share `change`, from first to last; or an outlier: the `repeat` of a level,
    with its distance from the median of the others. `p` is corrected for the number of `tests`."""

    column: str
    change: float
    p: float
    tests: int
    level: Level | None = None
    repeat: int | None = None


@dataclass(frozen=True, kw_only=True)
class RepeatSummary:
    """The METRICS of each level that has repeats, and `notes` about outliers and drift."""

    levels: Mapping[Level, Mapping[str, RepeatedMetric]]
    notes: tuple[RepeatNote, ...]


def summarize_repeats(points: Sequence[PointRow]) -> RepeatSummary:
    """Return what the repeats of a run show; void points are left out. Pure."""
    found: dict[Level, dict[str, RepeatedMetric]] = {}
    series: dict[tuple[Level, str], list[tuple[int, float]]] = {}
    for level, rows in levels_of(row for row in points if row.verdict != "void").items():
        ordered = sorted(rows, key=lambda row: (row.window_start_ns or 0, row.repeat))
        for name in METRICS:
            column = FROM_SCHEDULE.get(name, name) if level.rate is not None else name
            known = [row for row in ordered if 0 < (row.get(column) or 0.0) < inf]
            estimate = estimate_level(known, column)
            if estimate is None or len(known) < 2:
                continue
            spread = float(np.expm1(np.log([row[column] for row in known]).std(ddof=1)))
            found.setdefault(level, {})[name] = RepeatedMetric(estimate=estimate, spread=spread)
            series[level, name] = [(row.repeat, float(row[column])) for row in known]
    several_starts = len({row.start_id for row in points}) > 1
    return RepeatSummary(levels=found, notes=(*_drifts(series, several_starts=several_starts), *_outliers(series)))


def grubbs(values: Floats) -> tuple[int, float]:
    """Return the index of the value furthest from the mean, and Grubbs' two-sided p-value for it (Grubbs 1969)."""
    from scipy.special import stdtr

    n, sd = values.size, float(values.std(ddof=1))
    if n < REPEATS_MIN or sd == 0:
        return 0, 1.0
    far = np.abs(values - values.mean()) / sd
    index = int(far.argmax())
    rest = (n - 1) ** 2 - n * float(far[index]) ** 2
    t = (n * (n - 2) * float(far[index]) ** 2 / rest) ** 0.5 if rest > 1e-12 else np.inf
    return index, float(min(1.0, 2 * n * stdtr(n - 2, -t)))


def _outliers(series: Series) -> list[RepeatNote]:
    found = [(level, name, known, *grubbs(np.log([v for _, v in known]))) for (level, name), known in series.items()]
    notes = []
    for (level, name, known, index, _), p in zip(found, holm([p for *_, p in found]), strict=True):
        repeat, value = known[index]
        apart = value / float(np.median([v for at, (_, v) in enumerate(known) if at != index])) - 1
        if p is not None and p < SIGNIFICANCE and abs(apart) >= SMALLEST:
            notes.append(RepeatNote(column=name, change=apart, p=p, tests=len(found), level=level, repeat=repeat))
    return notes


def kendall_null(n: int) -> Floats:
    """Return the probabilities of 0, 1, 2 ... falling pairs among n values in random order (Mann and Kendall, exact)."""
    counts = np.ones(1)
    for size in range(2, n + 1):
        counts = np.convolve(counts, np.ones(size))
    return counts / factorial(n)


def seasonal_kendall(seasons: Sequence[Floats]) -> float:
    """Return the two-sided p-value of a common trend of several series. Ties count for neither direction."""
    null, falling, rising, pairs = np.ones(1), 0, 0, 0
    for values in seasons:
        null = np.convolve(null, kendall_null(values.size))
        steps = [float(b - a) for a, b in combinations(values, 2)]
        falling, rising = falling + sum(s < 0 for s in steps), rising + sum(s > 0 for s in steps)
        pairs += len(steps)
    # at most this many pairs against the stronger direction; a tie counts as half a pair against it
    against = int(np.floor(min(falling, rising) + (pairs - falling - rising) / 2))
    return float(min(1.0, 2 * null[: against + 1].sum()))


def _drifts(series: Series, *, several_starts: bool) -> list[RepeatNote]:
    """Return what rose or fell over the repeats. The levels of one start share its speed: they count once."""
    found = []
    for name in METRICS:
        seasons = [np.log([v for _, v in known]) for (_, own), known in series.items() if own == name]
        if not seasons:
            continue
        if several_starts and len({values.size for values in seasons}) == 1:
            seasons = [np.mean(seasons, axis=0)]
        # Sen's slope over all levels, from each level's first repeat to its last
        slopes = [
            float(values[j] - values[i]) / (j - i) * (values.size - 1)
            for values in seasons
            for i, j in combinations(range(values.size), 2)
        ]
        found.append((name, float(np.expm1(np.median(slopes))), seasonal_kendall(seasons)))
    return [
        RepeatNote(column=name, change=drift, p=p, tests=len(found))
        for (name, drift, _), p in zip(found, holm([p for *_, p in found]), strict=True)
        if p is not None and p < SIGNIFICANCE and abs(drift) >= SMALLEST
    ]
