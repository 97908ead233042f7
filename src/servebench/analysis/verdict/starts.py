"""Evidence over starts of the engine: the start is the unit, because requests of one start share its speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from servebench.analysis.statistics import Floats
from servebench.analysis.verdict.model import ComparedPoint, Difference, Side, StartSpread, StartValues
from servebench.analysis.verdict.reasons import Method, MethodKind
from servebench.contracts.estimate import CONFIDENCE
from servebench.contracts.level import Level

STARTS_MIN = 2
"""Starts on each side from which on they are compared: the fewest that show a spread."""
KNOWN_STARTS_MIN = 5
"""Starts of a set-up from which on their spread is taken as known for a run with a single start."""
PAIRED_SHARE_MIN = 0.9
UNEXPLAINED_SD = 1e-9
"""Below this the starts do not differ at all, as with an emulated engine: no test has anything to work with."""

Points = Sequence[ComparedPoint]
Number = Floats | float


def group_by_start(points: Points) -> list[list[ComparedPoint]]:
    """Return the points of a level by start of the engine, in the order of their repeats."""
    groups: dict[str | None, list[ComparedPoint]] = {}
    for point in sorted(points, key=lambda one: one.repeat):
        groups.setdefault(point.start_id, []).append(point)
    return list(groups.values())


def same_requests(ours: Sequence[Points], theirs: Sequence[Points]) -> bool:
    """Return whether both sides sent the same requests in each start: nearly all ids of the
    shorter point are shared, with the same sizes (with `load.until` points differ in length)."""
    if [len(one) for one in ours] != [len(one) for one in theirs]:
        return False
    return all(_share_requests(a, b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True))


def _share_requests(a: ComparedPoint, b: ComparedPoint) -> bool:
    sizes = dict(zip(b.request_ids, b.sizes, strict=True))
    shared = [(size, sizes[name]) for name, size in zip(a.request_ids, a.sizes, strict=True) if name in sizes]
    fewer = min(len(a.request_ids), len(b.request_ids))
    return len(shared) >= PAIRED_SHARE_MIN * fewer and all(x == y for x, y in shared)


@dataclass(frozen=True)
class FixedStarts:
    """Evidence of at least STARTS_MIN starts on each side, whose number was fixed before.

    Starts that sent the same requests are compared by the paired t-test, others by Welch's (Student 1908; Welch 1947).
    `least_error` is the smallest standard error of the difference that is believed: few starts may agree by chance. `shares`:
    the values are shares, not logarithms.
    """

    values: StartValues
    least_error: float = 0.0
    shares: bool = False

    def difference(self, confidence: float = CONFIDENCE) -> Difference:
        """Return the difference of the means."""
        values = self.values
        found, error, freedom = mean_difference(values.baseline, values.candidate, paired=values.paired)
        kind = MethodKind.PAIRED_STARTS if values.paired else MethodKind.STARTS
        error = np.maximum(error, max(self.least_error, UNEXPLAINED_SD))
        method = Method(kind, (values.baseline.size, values.candidate.size))
        return student_difference(found, error, freedom, confidence, method, shares=self.shares)


@dataclass(frozen=True)
class EarlierStarts:
    """Evidence of few starts, by the spread of earlier starts of their set-ups (Welch 1947).

    Sides with the same spread share one estimate of it, which has its degrees of freedom once.
    """

    values: StartValues
    ours: StartSpread
    theirs: StartSpread

    def difference(self, confidence: float = CONFIDENCE) -> Difference:
        """Return the difference of the means."""
        values, spreads = self.values, (self.ours, self.theirs)
        squares = [
            one.sd**2 / part.size for one, part in zip(spreads, (values.baseline, values.candidate), strict=True)
        ]
        freedoms = [one.count - 1 for one in spreads]
        parts = sum(square**2 / freedom for square, freedom in zip(squares, freedoms, strict=True))
        apart = parts > 0 and self.ours != self.theirs
        freedom = sum(squares) ** 2 / parts if apart else float(min(freedoms))
        found = float(values.candidate.mean() - values.baseline.mean())
        method = Method(MethodKind.EARLIER_STARTS, (self.ours.count, self.theirs.count))
        return student_difference(found, max(sum(squares) ** 0.5, UNEXPLAINED_SD), freedom, confidence, method)


def student_difference(
    found: Number, error: Number, freedom: Number, confidence: float, method: Method, *, shares: bool = False
) -> Difference:
    """Return the difference of two means (logarithms, or `shares`) with Student's interval and test."""
    from scipy.special import stdtr, stdtrit

    effect, scale, of = float(found), float(error), float(freedom)
    half = scale * float(stdtrit(of, (1 + confidence) / 2))
    p = float(2 * stdtr(of, -abs(effect) / scale))
    ends = (effect, effect - half, effect + half)
    value, low, high = ends if shares else (float(np.expm1(one)) for one in ends)
    return Difference(effect=value, low=low, high=high, p=p, method=method)


def p_values_of_means(values: Sequence[StartValues], subsets: Floats) -> Floats:
    """Return the p-value of each subset of levels (a row of weights that add up to one): that of its mean, start by start."""
    from scipy.special import stdtr

    a, b = (subsets @ np.array(side) for side in zip(*((one.baseline, one.candidate) for one in values), strict=True))
    difference, error, freedom = mean_difference(a, b, paired=values[0].paired)
    found: Floats = 2 * stdtr(freedom, -np.abs(difference) / np.maximum(error, UNEXPLAINED_SD))
    return found


def mean_difference(a: Floats, b: Floats, *, paired: bool) -> tuple[Floats, Floats, Floats]:
    """Return the difference of means over the last axis, its standard error and degrees of freedom."""
    difference = b.mean(axis=-1) - a.mean(axis=-1)
    sizes = a.shape[-1], b.shape[-1]
    if paired:
        return difference, (b - a).std(axis=-1, ddof=1) / sizes[0] ** 0.5, np.full_like(difference, sizes[0] - 1)
    squares = [side.var(axis=-1, ddof=1) / size for side, size in zip((a, b), sizes, strict=True)]
    parts = sum(square**2 / (size - 1) for square, size in zip(squares, sizes, strict=True))
    fewest = np.full_like(difference, min(sizes) - 1)
    freedom = np.divide(sum(squares) ** 2, parts, out=fewest, where=parts > 0)
    return difference, sum(squares) ** 0.5, freedom


def known_spreads(level: Level, metric: str, baseline: Side, candidate: Side) -> tuple[StartSpread, StartSpread] | None:
    """Return by how much starts of each side's set-up differ, where enough starts are known; else None."""
    found = [side.spreads.get((level, metric)) for side in (baseline, candidate)]
    known = [one for one in found if one is not None and one.count >= KNOWN_STARTS_MIN]
    return (known[0], known[1]) if len(known) == len(found) else None


def spread_of(logs: Floats) -> StartSpread | None:
    """Return the spread of the logarithms of several starts; None for fewer than two."""
    return StartSpread(sd=float(logs.std(ddof=1)), count=int(logs.size)) if logs.size > 1 else None
