"""Which starts of an engine are slow for as long as they live, at every load level.

A start may get fewer pages of memory, other cores or another path of the code, and is then far slower than its like until it
ends: 6 of 82 real starts of llama.cpp were 15 to 57% slower at all levels, while the others differed by 3%. Such starts are no
tail of a normal distribution, so they are found by what they cannot move: the median and the median absolute deviation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, log
from statistics import fmean, median

from servebench.analysis.estimate import THROUGHPUT
from servebench.analysis.setups import newest_alike
from servebench.contracts.level import Level
from servebench.contracts.stored import RunData
from servebench.util.groups import grouped

STARTS_MIN = 3
"""With fewer starts a median does not say which of them are usual."""
DEVIATIONS = 4.0
"""How many robust standard deviations below the median a start is slow. Of equal starts that differ by 3%, one study in a hundred
has one that is called slow."""
SLOWER_MIN, FEW, SLOWER_MIN_OF_FEW = 0.10, 5, 0.30
"""A start that is slower by less is not called slow, however alike the others are: fewer than FEW may be alike by chance."""
LEVEL_MIN = 0.05
"""What a slow start is slower by at each of its levels, at least."""
ALIKE = 0.002
"""The robust deviation is at least this (of logarithms): no engine's starts are known to be more alike."""


@dataclass(frozen=True, kw_only=True)
class OwnSlowStarts:
    """The slow starts of an engine beside those of one run: of `count` stored starts of the run's set-up, each of `slower` is
    slower than the others by this share; the run has `own` starts, and those of `own_slower` are slow."""

    count: int
    slower: tuple[float, ...]
    own: int
    own_slower: tuple[float, ...]


def own_slow_starts(run: RunData, earlier: Iterable[RunData]) -> OwnSlowStarts | None:
    """Return which starts of a run's set-up are slow, among its own and those of the newest `earlier` runs; None if none is."""
    own = _throughputs(run)
    if not own:
        return None
    others = {key: one for other in newest_alike(run, earlier) for key, one in _throughputs(other).items()}
    count, slower = find_slow_starts({**own, **others})
    if not slower:
        return None
    ours = tuple(share for key, share in slower.items() if key in own)
    return OwnSlowStarts(count=count, slower=tuple(slower.values()), own=len(own), own_slower=ours)


def _throughputs(run: RunData) -> dict[str, dict[Level, float]]:
    """Return the throughput of each start of a run by level, the mean of its points that are not void."""
    rows = (row for row in run.point_rows if row.verdict != "void" and row.output_throughput_tok_s and row.start_id)
    starts = grouped(rows, lambda row: f"{run.run_id} {row.start_id}").items()
    levels = {key: grouped(own, lambda row: row.level).items() for key, own in starts}
    return {key: {at: fmean(row[THROUGHPUT] for row in rows) for at, rows in own} for key, own in levels.items()}


def find_slow_starts(starts: Mapping[str, Mapping[Level, float]]) -> tuple[int, dict[str, float]]:
    """Return how many starts of one engine with one set of settings could be judged, and the slow ones with the share by which
    each is slower than the others, the slowest first; none where there are fewer than STARTS_MIN.

    `starts` has the throughput of each start by level; a level counts where FEW starts have it, or all if they are fewer. The
    effect of a start is its mean distance from the medians of its levels, on logarithms and weighed by how alike the starts are
    at each level. A start is slow where that is more than DEVIATIONS robust standard deviations and SLOWER_MIN (of few starts
    SLOWER_MIN_OF_FEW) below the median, and each of its levels is more than LEVEL_MIN below.
    """
    logs = {key: {at: log(value) for at, value in own.items() if value > 0} for key, own in starts.items()}
    levels: dict[Level, tuple[float, float]] = {}
    for at in {at for own in logs.values() for at in own}:
        found = [own[at] for own in logs.values() if at in own]
        if len(found) >= max(STARTS_MIN, min(FEW, len(logs))):
            levels[at] = median(found), _robust_deviation(found)
    apart = {key: {at: value - levels[at][0] for at, value in own.items() if at in levels} for key, own in logs.items()}
    effects = {key: _weighed(own, levels) for key, own in apart.items() if own}
    if len(effects) < STARTS_MIN:
        return len(effects), {}
    middle, deviation = median(effects.values()), _robust_deviation(effects.values())
    least = SLOWER_MIN if len(effects) >= FEW else SLOWER_MIN_OF_FEW
    limit = middle - max(DEVIATIONS * deviation, -log(1 - least))
    slow = [
        key
        for key in sorted(effects, key=effects.__getitem__)
        if effects[key] < limit and all(value < log(1 - LEVEL_MIN) for value in apart[key].values())
    ]
    usual = median(value for key, value in effects.items() if key not in slow)
    return len(effects), {key: 1 - exp(effects[key] - usual) for key in slow}


def _weighed(apart: Mapping[Level, float], levels: Mapping[Level, tuple[float, float]]) -> float:
    weights = {at: levels[at][1] ** -2 for at in apart}
    return sum(weights[at] * value for at, value in apart.items()) / sum(weights.values())


def _robust_deviation(values: Iterable[float]) -> float:
    """Return the standard deviation of the usual values: 1.4826 times the median absolute deviation, corrected for few values
    (Croux and Rousseeuw 1992)."""
    known = list(values)
    middle = median(known)
    wide = 1.4826 * median(abs(value - middle) for value in known)
    return max(ALIKE, wide * len(known) / (len(known) - 0.8))
