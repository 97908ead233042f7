"""Verdicts between runs whose starts are added until they suffice (`study.until=decided`).

After each planned number of starts (`contracts.precision.LOOKS`) every question that is still open is looked at: a pair of
runs, a level, a metric of DECIDING. All looks are made again from the stored starts, so a study that was killed decides as if
it had not been.

*Several looks.* A look at n starts calls p < SPENT / n a difference. Equal engines whose spread is known are then called
different in 5% of studies, over all LOOKS together (Lan and DeMets 1983, Biometrika 70; for t-tests by the significance-level
approach, Jennison and Turnbull 2000, "Group Sequential Methods", chapter 11). Early looks spend more of the error than a
constant level would (Pocock 1977, Biometrika 64), because most questions should end after two or three starts. Looks are
planned: an interval that is valid at any time costs about a third more starts. Intervals are repeated confidence intervals:
they hold at all looks together. The level of a look depends on nothing but its starts, so a study that ended by its budget may
go on (`servebench resume --budget`) without a correction.

*Few starts.* Two or three starts say little about how much starts differ. Their variance is therefore moderated (Smyth 2004,
Stat. Appl. Genet. Mol. Biol. 3): it is pooled with a prior that is worth PRIOR_STARTS degrees of freedom and expects starts to
differ by PRIOR_SD (docs/decide.md), in TTFT by more, and with that of earlier starts of the set-ups, where some are stored. The
error is below 5% for engines whose starts differ by less than that, and above it where they differ by much more;
docs/calibration.md has the numbers. From PAIRS_MIN starts on, starts that sent the same requests are compared in pairs where
that is closer; before, pairs would say too little, and each side's own spread is taken, which what the requests share can only
make larger.

*Void points.* They are no evidence: the study measures them on another start. Until then only the starts before them count.

*Several questions.* P-values are corrected over levels, metrics and pairs by `families`; what one look found to differ stays so.
A level of a pair is *faster* or *slower* as soon as one metric is, and *equal* only when the interval of each metric lies within
the margin: two one-sided tests (Schuirmann 1987, J. Pharmacokinet. Biopharm. 15), so these intervals are of 90%.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from servebench.analysis.statistics import Floats
from servebench.analysis.verdict.families import Asked, corrected
from servebench.analysis.verdict.model import (
    DIFFERENT,
    EQUAL,
    METRICS,
    NOT_COMPARED,
    OPEN,
    ComparedPoint,
    Comparison,
    ComparisonRow,
    Difference,
    Side,
    StartValues,
    VerdictKind,
    better,
    level_verdict,
)
from servebench.analysis.verdict.questions import codes_of, missing_row, points_at, questions
from servebench.analysis.verdict.reasons import Method, MethodKind, Reason, ReasonKind, without_repeats
from servebench.analysis.verdict.starts import group_by_start, student_difference
from servebench.contracts.level import Level
from servebench.contracts.precision import LOOKS, VOID_ATTEMPTS, may_be_replaced

SPENT = 0.05
"""The level of a look, times its starts; over all LOOKS together it is 5% (tests/analysis/verdict/test_looks.py)."""
PRIOR_STARTS, PRIOR_SD, PRIOR_SD_OF_TTFT = 1, 0.02, 0.05
TTFT_STARTS_MIN = 6
"""A few streams may send in step for the whole of one start and not of another, so that their TTFT has one of two values: a
few starts of each engine that happen to agree would look like two engines (one case in 128 with four, in 2,048 with six)."""
PAIRS_MIN = 4
WEIGHT_OF_MEANS = 0.8
"""Of each look's error: starts move all levels alike, so engines usually differ at all of them."""
DECIDING = tuple(one for one in METRICS if one.name in ("output_throughput_tok_s", "ttft_ms_p50", "e2e_ms_p50"))
FORECAST_MAX = 200
"""Starts beyond which it is not said how many would decide."""


@dataclass(frozen=True)
class Look:
    """Evidence of the first `count` starts of each side, with the variance moderated by what is known before."""

    values: StartValues
    count: int

    def difference(self, confidence: float = 1 - SPENT) -> Difference:
        """Return the difference of the means."""
        found, error, freedom = moderated(self.values.first(self.count))
        method = Method(MethodKind.LOOKS, (self.count, self.count))
        return student_difference(found, error, freedom, confidence, method)


def decide(pairs: Iterable[tuple[Side, Side]], *, margin: float, looks: Sequence[int] = LOOKS) -> list[Comparison]:
    """Return what is decided between the runs of each pair (baseline, candidate) after these numbers of starts. Pure.

    `margin` is a share. The pairs share one error of 5%, so give all pairs of a study.
    """
    cut = [_before_void(*_with_common_starts(a, b)) for a, b in pairs]
    asked = [
        [with_prior(row, a, b) for row in questions(a, b, False, DECIDING) if row.metric in DECIDING] for a, b, _ in cut
    ]
    return [
        Comparison(
            baseline=a.name,
            candidate=b.name,
            ids=(a.run_id, b.run_id),
            margin=margin,
            rows=tuple(_with_void(own, void)),
        )
        for (a, b, void), own in zip(cut, decide_rows(asked, margin=margin, looks=looks), strict=True)
    ]


def with_prior(row: ComparisonRow, a: Side, b: Side) -> ComparisonRow:
    """Return the row with the spread of starts that is known before: of the prior, and of earlier starts of both set-ups."""
    if row.starts is None:
        return row
    found = [side.spreads.get((row.level, row.metric.name)) for side in (a, b)]
    # sides with the same set-up share their earlier starts
    known = [(one.sd, one.count - 1) for one in dict.fromkeys(found) if one is not None]
    known.append((PRIOR_SD_OF_TTFT if row.metric.source == "ttft_ms" else PRIOR_SD, PRIOR_STARTS))
    freedom = sum(count for _, count in known)
    spread = (sum(count * sd**2 for sd, count in known) / freedom) ** 0.5
    return replace(row, starts=replace(row.starts, known=(spread, freedom)))


def decide_rows(
    pairs: Sequence[Sequence[ComparisonRow]], *, margin: float, looks: Sequence[int]
) -> list[list[ComparisonRow]]:
    """Return what is decided of the rows of each pair, whose `starts` are all that there are."""
    rows = [list(own) for own in pairs]
    for look in looks:
        rows = [[_tested(row, look) for row in own] for own in rows]
        ps = corrected([[_asked(row) for row in own] for own in rows], p_values_of_means, WEIGHT_OF_MEANS)
        rows = [
            [_judged(row, look, p, margin) for row, p in zip(own, of, strict=True)]
            for own, of in zip(rows, ps, strict=True)
        ]
    return [[_forecast(row, margin, looks) for row in own] for own in rows]


def starts_at(found: Comparison, level: Level) -> int:
    """Return how many starts both runs have at a level."""
    return max((row.starts.fewest for row in found.at(level) if row.starts is not None), default=0)


def starts_needed(found: Comparison, level: Level) -> int | None:
    """Return with how many starts an open level would be decided, if it goes on as so far; None for more than can be said.

    One metric that differs decides a level; for *equal* all must be.
    """
    rows = [one for one in found.at(level) if one.result is not NOT_COMPARED]
    equal = [one.equal_at if one.result is OPEN else one.looked for one in rows]
    ways = [one.difference_at for one in rows if one.result is OPEN]
    ways.append(None if None in equal else max((one for one in equal if one), default=None))
    return min((one for one in ways if one is not None), default=None)


def looks_until(most: int) -> tuple[int, ...]:
    """Return the numbers of starts after which to look, if a run has at most `most`."""
    return (*(one for one in LOOKS if one < most), min(most, LOOKS[-1]))


def looks_beyond(most: int) -> tuple[int, ...]:
    """Return the looks of a study that was planned with at most `most` starts and goes on: the planned ones, then LOOKS.

    A planned last look that is not in LOOKS is one more than these; with it equal engines are still called different in 5%
    of studies (tests/analysis/verdict/test_looks.py).
    """
    return tuple(sorted({*looks_until(most), *LOOKS}))


def _with_common_starts(a: Side, b: Side) -> tuple[Side, Side]:
    """The sides with as many starts at each level as both have, the first ones."""
    kept: tuple[list[ComparedPoint], list[ComparedPoint]] = ([], [])
    for level in dict.fromkeys(point.level for side in (a, b) for point in side.samples):
        starts = [group_by_start(points_at(side, level)) for side in (a, b)]
        count = min(map(len, starts)) or max(map(len, starts))
        for found, own in zip(kept, starts, strict=True):
            found += [point for start in own[:count] for point in start]
    return replace(a, samples=tuple(kept[0])), replace(b, samples=tuple(kept[1]))


def _before_void(a: Side, b: Side) -> tuple[Side, Side, dict[Level, Reason]]:
    """The sides with the starts of each level before the first void one, and why by level where there is one."""
    voids: dict[Level, Reason] = {}
    kept: tuple[list[ComparedPoint], list[ComparedPoint]] = ([], [])
    for level in dict.fromkeys(point.level for side in (a, b) for point in side.samples):
        starts = [group_by_start(points_at(side, level)) for side in (a, b)]
        void = [point for side in starts for start in side for point in start if point.verdict == "void"]
        whole = [
            next((n for n, start in enumerate(side) if any(one.verdict == "void" for one in start)), len(side))
            for side in starts
        ]
        if void:
            replaced = all(may_be_replaced(one.verdict, one.row.point) for one in void)
            kind = ReasonKind.VOID_TO_REPLACE if replaced else ReasonKind.VOID_FOR_GOOD
            voids[level] = Reason(kind, codes=codes_of(void), needed=0 if replaced else VOID_ATTEMPTS)
        for found, side in zip(kept, starts, strict=True):
            found += [point for start in side[: min(whole) if void else None] for point in start]
    return replace(a, samples=tuple(kept[0])), replace(b, samples=tuple(kept[1])), voids


def _with_void(rows: Sequence[ComparisonRow], voids: Mapping[Level, Reason]) -> list[ComparisonRow]:
    """The rows with those of levels that void points keep open, or leave without a decision."""
    found = list(rows)
    for level, void in voids.items():
        kind = OPEN if void.kind is ReasonKind.VOID_TO_REPLACE else NOT_COMPARED
        own = [row for row in found if row.level == level and row.starts is not None]
        if not own:
            found = [row for row in found if row.level != level]
            found.append(missing_row(level, DECIDING[0], void).judged(kind))
        elif level_verdict(own) is OPEN:
            found = [_kept_open(row, kind, void) if row.level == level else row for row in found]
    return found


def _kept_open(row: ComparisonRow, kind: VerdictKind, void: Reason) -> ComparisonRow:
    row = row.because(*without_repeats((*row.reasons, void)))
    return row if kind is OPEN else row.judged(kind)


def _tested(row: ComparisonRow, look: int) -> ComparisonRow:
    """The row of an open question as this look sees it, if it has that many starts."""
    values = row.starts
    if row.result is not OPEN or values is None or not values.finite or values.fewest < look:
        return row
    if row.metric.source == "ttft_ms" and look < TTFT_STARTS_MIN:
        return row
    row = replace(row, difference=_difference(row, look, SPENT / look), looked=look)
    return row.because(*(() if row.competes else row.reasons))


def _difference(row: ComparisonRow, look: int, level: float) -> Difference:
    """What a look sees, with the interval at a level; the warnings of its starts make it wider."""
    assert row.starts is not None
    found = Look(row.starts, look).difference(1 - level)
    return found.widened(row.widened[look - 1] if row.widened else 0.0)


def _asked(row: ComparisonRow) -> Asked:
    """The question as the correction sees it: with the starts of its last look, and p 0 once it differs."""
    if not row.looked or row.starts is None:
        return Asked(row.metric.name, None)
    if row.result in DIFFERENT:
        return Asked(row.metric.name, 0.0)
    return Asked(row.metric.name, row.p, row.starts.first(row.looked))


def _judged(row: ComparisonRow, look: int, p_corrected: float | None, margin: float) -> ComparisonRow:
    if row.starts is None or not row.starts.finite:
        return row.judged(NOT_COMPARED)
    found = row.difference
    if row.result is not OPEN or row.looked != look or found is None:
        return row
    narrow = _difference(row, look, 2 * SPENT / look)
    if -margin < narrow.low and narrow.high < margin:
        return replace(row, difference=replace(found, low=narrow.low, high=narrow.high)).judged(EQUAL)
    if p_corrected is not None and p_corrected < SPENT / look and found.leaves_out_zero:
        return row.judged(better(row.metric, found.low))
    return row


def _forecast(row: ComparisonRow, margin: float, looks: Sequence[int]) -> ComparisonRow:
    """The open question with the starts that would decide it, if difference and spread stay what they are."""
    from scipy.special import stdtrit

    if row.result is not OPEN or not row.looked or row.starts is None:
        return row
    difference, error, freedom = map(float, moderated(row.starts.first(row.looked)))
    counts = np.arange(row.looked + 1, FORECAST_MAX + 1)
    errors = error * np.sqrt(row.looked / counts)
    freedoms = freedom + (counts - row.looked)
    room = math.log1p(margin) - abs(difference)
    differs = counts[abs(difference) > errors * stdtrit(freedoms, 1 - SPENT / counts / 2)]
    equal = counts[errors * stdtrit(freedoms, 1 - SPENT / counts) < room]
    first, within = (_next_look(int(found[0]), looks) if found.size else None for found in (differs, equal))
    return replace(row, difference_at=first, equal_at=within)


def _next_look(count: int, looks: Sequence[int]) -> int:
    """The first look with at least `count` starts, as if the study went on; the number itself beyond the last."""
    return next((look for look in sorted({*looks, *LOOKS}) if look >= count), count)


def moderated(values: StartValues) -> tuple[Floats, Floats, Floats]:
    """Return the difference of the means of two sides with equally many starts (over the last axis), its standard error and
    its degrees of freedom, the prior included."""
    a, b = values.baseline, values.candidate
    count = a.shape[-1]
    squares = 2 * (a.var(axis=-1) + b.var(axis=-1)) * count
    error, freedom = _error(squares, 2 * (count - 1), count, values.known)
    if values.paired and count >= PAIRS_MIN:
        in_pairs, fewer = _error((b - a).var(axis=-1) * count, count - 1, count, values.known)
        closer = in_pairs * _quantile(fewer, count) < error * _quantile(freedom, count)
        error, freedom = np.where(closer, in_pairs, error), np.where(closer, fewer, freedom)
    return b.mean(axis=-1) - a.mean(axis=-1), error, freedom


def _error(squares: Floats, freedom: int, count: int, known: tuple[float, int]) -> tuple[Floats, Floats]:
    """The standard error of a mean of `count` differences, from their sum of squares and what is known before; and its
    degrees of freedom. A difference has twice the variance of a start."""
    spread, before = known
    variance = (squares + 2 * before * spread**2) / (freedom + before)
    return np.sqrt(variance / count), np.full_like(squares, freedom + before)


def _quantile(freedom: Floats, count: int) -> Floats:
    from scipy.special import stdtrit

    found: Floats = stdtrit(freedom, 1 - SPENT / count / 2)
    return found


def p_values_of_means(values: Sequence[StartValues], subsets: Floats) -> Floats:
    """Return the p-value of each subset of levels (a row of weights that add up to one): that of its mean, start by start."""
    from scipy.special import stdtr

    a, b = (subsets @ np.array(side) for side in zip(*((one.baseline, one.candidate) for one in values), strict=True))
    freedom = min(one.known[1] for one in values)
    # as if levels moved together, which is the most by which their mean can differ
    spread = max(one.known[0] for one in values) if freedom else 0.0
    merged = StartValues(baseline=a, candidate=b, paired=values[0].paired, known=(spread, freedom))
    difference, error, freedoms = moderated(merged)
    found: Floats = 2 * stdtr(freedoms, -np.abs(difference) / error)
    return found
