"""Decisions between runs whose starts are added until they suffice (`study.until=decided`).

After each planned number of starts (`contracts.precision.LOOKS`) every question that is still open is looked at: a pair of
runs, a level, a metric of DECIDING. All looks are made again from the stored starts, so a study that was killed decides as if
it had not been.

*Several looks.* A look at n starts calls p < SPENT / n a difference. Equal engines whose spread is known are then called
different in 5% of studies, over all LOOKS together (Lan and DeMets 1983, Biometrika 70; for t-tests by the significance-level
approach, Jennison and Turnbull 2000, "Group Sequential Methods", chapter 11). More is spent at first than by a constant level
(Pocock 1977, Biometrika 64), because most questions should end after two or three starts, and because an early look, whose
spread is hardly known, is stricter than its level. Planned looks rather than an interval that is valid at any time, which costs
about a third more starts for looks that nobody makes. Intervals are repeated confidence intervals: they hold at all looks
together. The level of a look depends on nothing but its starts, so a study that ended by its budget may go on
(`servebench resume --budget`) without a correction.

*Few starts.* Two or three starts say little about how much starts differ. Their variance is therefore moderated (Smyth 2004,
Stat. Appl. Genet. Mol. Biol. 3): it is pooled with a prior that is worth PRIOR_STARTS degrees of freedom and expects starts to
differ by PRIOR_SD (docs/decide.md), in TTFT by more, and with that of earlier starts of the set-ups, where some are stored. The
error is below 5% for engines whose starts differ by less than that, and above it where they differ by much more;
docs/calibration.md counts it. From PAIRS_MIN starts on, starts that sent the same requests are compared in pairs where that is
closer; before, pairs would say too little, and each side's own spread is taken, which what the requests share can only make
larger.

*Void points.* They are no evidence: the study measures them on another start. Until it has, the starts before them count.

*Several questions.* P-values are corrected over levels, metrics and pairs by `families`; what one look found to differ stays so.
A level of a pair is *faster* or *slower* as soon as one metric is, and *equal* only when the interval of each metric lies within
the margin: two one-sided tests (Schuirmann 1987, J. Pharmacokinet. Biopharm. 15), so these intervals are of 90%.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np

from servebench.analysis.comparison.compare import level_rows
from servebench.analysis.comparison.families import corrected
from servebench.analysis.comparison.methods import missing_row
from servebench.analysis.comparison.model import METRICS, ComparedPoint, ComparisonRow, Side, StartValues
from servebench.analysis.comparison.starts import as_relative, group_by_start
from servebench.analysis.statistics import Floats
from servebench.analysis.verdict import Method, MethodKind, Reason, ReasonKind, without_repeats
from servebench.contracts.estimate import CONFIDENCE
from servebench.contracts.level import Level
from servebench.contracts.precision import LOOKS, VOID_ATTEMPTS, may_be_replaced

SPENT = 0.05
"""The level of a look, times its starts; over all LOOKS together it is 5% (tests/analysis/comparison/test_decisions.py)."""
PRIOR_STARTS, PRIOR_SD, PRIOR_SD_OF_TTFT = 1, 0.02, 0.05
START_SD, START_FREEDOM = 0.0175, 2
"""By how much starts of one engine usually differ, known as badly as from so many degrees of freedom: for one start each."""
TTFT_STARTS_MIN = 6
"""A few streams may send in step for the whole of one start and not of another, so that their TTFT has one of two values: a
few starts of each engine that happen to agree would look like two engines (one case in 128 with four, in 2,048 with six)."""
PAIRS_MIN = 4
WEIGHT_OF_MEANS = 0.8
"""Of each look's error: starts move all levels alike, so engines usually differ at all of them."""
DECIDING = tuple(one for one in METRICS if one.name in ("output_throughput_tok_s", "ttft_ms_p50", "e2e_ms_p50"))
FORECAST_MAX = 200
"""Starts beyond which it is not said how many would decide."""


@cache
def starts_may_differ() -> float:
    """Return by how much one start each of two equal engines may differ, as a share: the limit of a 95% interval when no
    more is known of their spread than START_SD."""
    from scipy.special import stdtrit

    return math.expm1(float(stdtrit(START_FREEDOM, (1 + CONFIDENCE) / 2)) * 2**0.5 * START_SD)


def exceeds_starts(lead: float, low: float) -> bool:
    """Return whether a lead of one start each, a logarithm with the lower end of its interval, is more than two starts of one
    engine may differ by."""
    return lead > math.hypot(lead - low, math.log1p(starts_may_differ()))


Verdict = Literal["faster", "slower", "mixed", "equal", "open", "not compared"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What is known of a metric at a level after its last look: `effect` with its interval are relative changes from the
    baseline. `difference_at` and `equal_at` are the starts with which it would be known to differ, or to be equal, if it goes
    on as so far (None: more than FORECAST_MAX). `doubts` are warnings of unknown size, which make it provisional.
    """

    row: ComparisonRow
    verdict: Verdict = "open"
    starts: int = 0
    difference_at: int | None = None
    equal_at: int | None = None

    @property
    def level(self) -> Level:
        """The load level."""
        return self.row.level


@dataclass(frozen=True, kw_only=True)
class PairDecision:
    """What is decided between two runs."""

    baseline: str
    candidate: str
    margin: float
    rows: tuple[Decision, ...]

    @property
    def levels(self) -> dict[Level, Verdict]:
        """The verdict at each level."""
        return {level: _level_verdict(self._at(level)) for level in dict.fromkeys(one.level for one in self.rows)}

    @property
    def open_levels(self) -> tuple[Level, ...]:
        """The levels that more starts may decide."""
        return tuple(level for level, verdict in self.levels.items() if verdict == "open")

    def starts_at(self, level: Level) -> int:
        """Return how many starts both runs have at a level."""
        values = [one.row.starts for one in self._at(level) if one.row.starts is not None]
        return max((min(one.baseline.size, one.candidate.size) for one in values), default=0)

    def starts_needed(self, level: Level) -> int | None:
        """Return with how many starts an open level would be decided, if it goes on as so far; None for more than can be said.

        One metric that differs decides a level; for *equal* all must be.
        """
        rows = [one for one in self._at(level) if one.verdict != "not compared"]
        equal = [one.equal_at if one.verdict == "open" else one.starts for one in rows]
        ways = [one.difference_at for one in rows if one.verdict == "open"]
        ways.append(None if None in equal else max((one for one in equal if one), default=None))
        return min((one for one in ways if one is not None), default=None)

    def _at(self, level: Level) -> list[Decision]:
        return [one for one in self.rows if one.level == level]


def _level_verdict(rows: Sequence[Decision]) -> Verdict:
    found = {one.verdict for one in rows} - {"not compared"}
    if different := found & {"faster", "slower"}:
        return "mixed" if len(different) > 1 else different.pop()
    if not found:
        return "not compared"
    return "open" if "open" in found else "equal"


def decide(pairs: Iterable[tuple[Side, Side]], *, margin: float, looks: Sequence[int] = LOOKS) -> list[PairDecision]:
    """Return what is decided between the runs of each pair (baseline, candidate) after these numbers of starts. Pure.

    `margin` is a share. The pairs share one error of 5%, so give all pairs of a study.
    """
    cut = [_before_void(*_with_common_starts(a, b)) for a, b in pairs]
    rows = [
        [with_prior(row, a, b) for row in level_rows(a, b, False, DECIDING) if row.metric in DECIDING]
        for a, b, _ in cut
    ]
    return [
        PairDecision(baseline=a.name, candidate=b.name, margin=margin, rows=tuple(_with_void(own, void)))
        for (a, b, void), own in zip(cut, decide_rows(rows, margin=margin, looks=looks), strict=True)
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
) -> list[list[Decision]]:
    """Return what is decided of the rows of each pair, whose `starts` are all that there are."""
    rows = [[Decision(row=row) for row in own] for own in pairs]
    for look in looks:
        tested = [[_tested(one, look) for one in own] for own in rows]
        judged = corrected([[_in_family(one) for one in own] for own in tested], p_values_of_means, WEIGHT_OF_MEANS)
        rows = [
            [_judged(one, look, family.p_corrected, margin) for one, family in zip(own, families, strict=True)]
            for own, families in zip(tested, judged, strict=True)
        ]
    return [[_forecast(one, margin, looks) for one in own] for own in rows]


def looks_until(most: int) -> tuple[int, ...]:
    """Return the numbers of starts after which it is looked, if a run has at most so many."""
    return (*(one for one in LOOKS if one < most), min(most, LOOKS[-1]))


def looks_beyond(most: int) -> tuple[int, ...]:
    """Return the looks of a study that was planned with at most so many starts and goes on: the planned ones, then LOOKS.

    A planned last look that is not in LOOKS is one more than these; with it equal engines are still called different in 5%
    of studies (tests/analysis/comparison/test_decisions.py).
    """
    return tuple(sorted({*looks_until(most), *LOOKS}))


def _with_common_starts(a: Side, b: Side) -> tuple[Side, Side]:
    """The sides with as many starts at each level as both have, the first ones."""
    levels = dict.fromkeys(point.level for side in (a, b) for point in side.samples)
    kept: tuple[list[ComparedPoint], list[ComparedPoint]] = ([], [])
    for level in levels:
        starts = [group_by_start([point for point in side.samples if point.level == level]) for side in (a, b)]
        count = min(map(len, starts)) or max(map(len, starts))
        for found, own in zip(kept, starts, strict=True):
            found += [point for start in own[:count] for point in start]
    return replace(a, samples=tuple(kept[0])), replace(b, samples=tuple(kept[1]))


def _before_void(a: Side, b: Side) -> tuple[Side, Side, dict[Level, Reason]]:
    """The sides with the starts of each level before the first void one, which is no evidence, and why by level where there is
    one."""
    voids: dict[Level, Reason] = {}
    kept: tuple[list[ComparedPoint], list[ComparedPoint]] = ([], [])
    for level in dict.fromkeys(point.level for side in (a, b) for point in side.samples):
        starts = [group_by_start([point for point in side.samples if point.level == level]) for side in (a, b)]
        void = [point for side in starts for start in side for point in start if point.verdict == "void"]
        whole = [
            next((n for n, start in enumerate(side) if any(one.verdict == "void" for one in start)), len(side))
            for side in starts
        ]
        if void:
            codes = tuple(dict.fromkeys(code for point in void for code in point.doubts))
            replaced = all(may_be_replaced(one.verdict, one.row.point) for one in void)
            kind = ReasonKind.VOID_TO_REPLACE if replaced else ReasonKind.VOID_FOR_GOOD
            voids[level] = Reason(kind, codes=codes, needed=0 if replaced else VOID_ATTEMPTS)
        for found, side in zip(kept, starts, strict=True):
            found += [point for start in side[: min(whole) if void else None] for point in start]
    return replace(a, samples=tuple(kept[0])), replace(b, samples=tuple(kept[1])), voids


def _with_void(rows: Sequence[Decision], voids: Mapping[Level, Reason]) -> list[Decision]:
    """The rows with those of levels that void points keep open, or leave without a decision."""
    found = list(rows)
    for level, void in voids.items():
        verdict: Verdict = "open" if void.kind is ReasonKind.VOID_TO_REPLACE else "not compared"
        own = [one for one in found if one.level == level and one.row.starts is not None]
        if not own:
            found = [one for one in found if one.level != level]
            found.append(Decision(row=missing_row(level, DECIDING[0], void), verdict=verdict))
        elif _level_verdict(own) == "open":
            found = [
                replace(
                    one,
                    verdict=one.verdict if verdict == "open" else verdict,
                    row=replace(one.row, reasons=without_repeats((*one.row.reasons, void))),
                )
                if one.level == level
                else one
                for one in found
            ]
    return found


def _known(one: Decision) -> StartValues | None:
    """The values of all starts; None where the row cannot be compared."""
    values = one.row.starts
    finite = values is not None and np.isfinite(values.baseline).all() and np.isfinite(values.candidate).all()
    return values if finite else None


def _tested(one: Decision, look: int) -> Decision:
    """The row of an open question as this look sees it, if it has so many starts."""
    values = _known(one)
    if one.verdict != "open" or values is None:
        return one
    if min(values.baseline.size, values.candidate.size) < look:
        return one
    if one.row.metric.source == "ttft_ms" and look < TTFT_STARTS_MIN:
        return one
    difference, error, freedom = moderated(first_starts(values, look))
    row = _with_interval(one.row, look, (float(difference), float(error), float(freedom)), SPENT / look)
    row = replace(row, p=float(_two_sided(difference, error, freedom)), reasons=() if row.competes else row.reasons)
    return replace(one, row=row, starts=look)


def first_starts(values: StartValues, count: int) -> StartValues:
    """Return the values of the first so many starts."""
    baseline, candidate, errors = (one[:count] for one in (values.baseline, values.candidate, values.errors))
    return replace(values, baseline=baseline, candidate=candidate, errors=errors)


def _with_interval(row: ComparisonRow, look: int, estimate: tuple[float, float, float], level: float) -> ComparisonRow:
    """The row with the interval at a level from an estimate (`_estimate`) and the warnings of the first `look` starts."""
    from scipy.special import stdtrit

    difference, error, freedom = estimate
    half = error * float(stdtrit(freedom, 1 - level / 2))
    low, high = as_relative((difference - half, difference + half))
    wider = 1 + (row.widened[look - 1] if row.widened else 0.0)
    return replace(
        row,
        effect=math.expm1(difference),
        low=(1 + low) / wider - 1,
        high=(1 + high) * wider - 1,
        method=Method(MethodKind.LOOKS, (look, look)),
    )


def _in_family(one: Decision) -> ComparisonRow:
    """The row as the correction sees it: with the starts of its last look, and p 0 once it differs."""
    if not one.starts or one.row.starts is None:
        return replace(one.row, p=None, starts=None)
    if one.verdict in ("faster", "slower"):
        return replace(one.row, p=0.0, starts=None)
    return replace(one.row, starts=first_starts(one.row.starts, one.starts))


def _judged(one: Decision, look: int, p_corrected: float | None, margin: float) -> Decision:
    if _known(one) is None:
        return replace(one, verdict="not compared")
    row = one.row
    if one.verdict != "open" or one.starts != look or row.low is None or row.high is None:
        return one
    narrow = _with_interval(row, look, _estimate(one), 2 * SPENT / look)
    if narrow.low is not None and narrow.high is not None and -margin < narrow.low and narrow.high < margin:
        return replace(one, verdict="equal", row=replace(row, low=narrow.low, high=narrow.high))
    if p_corrected is not None and p_corrected < SPENT / look and not row.low <= 0 <= row.high:
        better = (row.low > 0) == row.metric.higher_is_better
        return replace(one, verdict="faster" if better else "slower")
    return one


def _estimate(one: Decision) -> tuple[float, float, float]:
    """The difference at the last look of a question, its standard error and degrees of freedom."""
    assert one.row.starts is not None
    difference, error, freedom = moderated(first_starts(one.row.starts, one.starts))
    return float(difference), float(error), float(freedom)


def _forecast(one: Decision, margin: float, looks: Sequence[int]) -> Decision:
    """The open question with the starts that would decide it, if difference and spread stay what they are."""
    from scipy.special import stdtrit

    if one.verdict != "open" or not one.starts:
        return one
    difference, error, freedom = _estimate(one)
    counts = np.arange(one.starts + 1, FORECAST_MAX + 1)
    errors = error * np.sqrt(one.starts / counts)
    freedoms = freedom + (counts - one.starts)
    room = math.log1p(margin) - abs(difference)
    differs = counts[abs(difference) > errors * stdtrit(freedoms, 1 - SPENT / counts / 2)]
    equal = counts[errors * stdtrit(freedoms, 1 - SPENT / counts) < room]
    first, within = (_next_look(int(found[0]), looks) if found.size else None for found in (differs, equal))
    return replace(one, difference_at=first, equal_at=within)


def _next_look(count: int, looks: Sequence[int]) -> int:
    """The first look with at least so many starts, as if the study went on; the number itself beyond the last."""
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
    a, b = (subsets @ np.array(side) for side in zip(*((one.baseline, one.candidate) for one in values), strict=True))
    freedom = min(one.known[1] for one in values)
    # as if levels moved together, which is the most by which their mean can differ
    spread = max(one.known[0] for one in values) if freedom else 0.0
    return _two_sided(
        *moderated(StartValues(baseline=a, candidate=b, paired=values[0].paired, known=(spread, freedom)))
    )


def _two_sided(difference: Floats, error: Floats, freedom: Floats) -> Floats:
    from scipy.special import stdtr

    found: Floats = 2 * stdtr(freedom, -np.abs(difference) / error)
    return found
