"""Verdicts between runs whose starts are added until they suffice (`study.until=decided`).

A study asks one question first: by how much the output throughput differs, as a mean over all levels. After each planned number
of starts (`contracts.precision.LOOKS`) each pair of runs is looked at, until it *differs* or is *equal* within the margin; what
is said of its levels and other metrics is what that look shows. All looks are made again from the stored starts, so a study that
was killed decides as if it had not been.

*Several looks.* A look at n starts calls a difference what has p < SPENT / n after the correction for the number of questions
(`families`), and equal what is within the margin at both ends of an interval (two one-sided tests: Schuirmann 1987, J.
Pharmacokinet. Biopharm. 15) whose level is less where it would buy little (`equal_level`). All were chosen by simulation, so
that over all looks together two equal engines are called different in at most 5% of studies if their starts differ by 0.5 to
5%, and engines that differ by the margin are called equal in about 5% (docs/precision.md). The level of a look depends on
nothing but its starts, so a study that ended by its budget may go on (`servebench resume --budget`) without a correction.

*Few starts.* How much starts differ is learned from all starts at once (`analysis/start_model.py`); a look at one start of each
takes earlier starts of the set-ups.

*A gate* (`study.until=gate`) has another first question: whether each judged metric is within the limit at each level
(`gate.judge_pair`), at the end of the same interval where the candidate is worse. The other end may be anywhere, so a candidate
that is faster is known to pass as soon as it is not slower.

*Foresight.* How many starts a gate will take follows from how much starts differed before, without a measurement.

*Void points.* They are no evidence: the study measures them on another start. Until then only the starts before them count.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import NormalDist, fmean

import numpy as np

from servebench.analysis.start_model import ERROR_LEAST, SLOW_SIDES, StartModel, Starts
from servebench.analysis.verdict.families import FIRST_SHARE, AskedPair, corrected
from servebench.analysis.verdict.gate import GATED, GateQuestion, judge_pair
from servebench.analysis.verdict.model import (
    DIFFERENT,
    EQUAL,
    FAILED,
    METRICS,
    NOT_COMPARED,
    NOT_WORSE,
    OPEN,
    THROUGHPUT,
    ComparedPoint,
    Comparison,
    ComparisonRow,
    Metric,
    Side,
    better,
    level_verdict,
)
from servebench.analysis.verdict.questions import between, missing_row, points_at, questions, void_reason
from servebench.analysis.verdict.reasons import Method, MethodKind, Reason, ReasonKind
from servebench.analysis.verdict.starts import ONE_SD, STARTS_MIN, OverStarts, StartComparison, group_by_start
from servebench.contracts.level import Level
from servebench.contracts.precision import LOOKS, VOID_ATTEMPTS, may_be_replaced

SPENT = 0.025
"""The level of a look for a difference, times its starts."""
EQUAL_SPENT, EQUAL_STARTS = 0.03, 6
"""The level for *equal*, times the square root of the starts; from EQUAL_STARTS on times these over the starts, too. Without that
engines that differ by 3% were called so in up to 8.4% of 500 drawn studies (starts differ by 2%), with it in up to 7.0%."""
PAIRS_EQUAL_LEVEL, PAIRS_EQUAL_ERRORS = 0.016, 3.5
"""The level for *equal* where starts took turns: the first, times the square of PAIRS_EQUAL_ERRORS over the margin in errors of
the difference, where that is more. By then equal engines are known to be equal, and each look is one more chance for those that
differ by the margin. With 0.038 / n, at least 0.008, two equal engines (four levels, slices that scatter by 3, 4 and 6%) were
called equal within four minutes in 88, 60 and 10% of drawn studies, with these in 94, 78 and 27%; engines that differ by the
margin in up to 4.9 and 5.0%."""
WITHIN_SPENT = 0.02
"""The level of a look for *not worse* of a gate, whose looks are many where starts differ much, times the square root of its
starts: with 0.03 a build that is worse by the limit passed in 6.1% of 294 studies whose starts differ by 3%."""
TTFT = tuple(one for one in METRICS if one.source == "ttft_ms")
TTFT_STARTS_MIN = 6
"""A few streams may send in step for the whole of one start and not of another, so that their TTFT has one of two values: a
few starts of each engine that happen to agree would look like two engines (one case in 128 with four, in 2,048 with six)."""
FORECAST_MAX = 200
"""Starts beyond which it is not said how many would decide."""
NORMAL = NormalDist()
PASSED = 0.95
"""How often equal engines are to pass."""
ROOM = 0.85
"""The share of the limit that is planned with: starts may differ more than those that are known (docs/precision.md)."""
USUAL_RATIO = 0.5
"""The variance between starts by that of points of one start, before anything is known."""


@dataclass(frozen=True)
class OpenPair:
    """A pair of runs: its questions with all starts that count, how many these are, and what was found so far."""

    rows: Sequence[ComparisonRow]
    sides: tuple[Side, Side]
    starts: int
    voids: Mapping[Level, Reason]
    found: Comparison


@dataclass(frozen=True)
class Look:
    """What the first `count` starts of two runs show."""

    asked: StartComparison
    count: int
    gate: GateQuestion | None = None

    @cached_property
    def first(self) -> tuple[ComparisonRow, OverStarts] | None:
        """The first question and its evidence, where the starts suffice for a test."""
        found = self.asked.first_question()
        return None if found is None or found[0].p is None else found

    @cached_property
    def rows(self) -> list[ComparisonRow]:
        """The other questions."""
        return [self._tested(row) for row in self.asked.with_differences(1 - self.error)]

    @property
    def error(self) -> float:
        """The level of a difference."""
        return SPENT / self.count

    def judged(self, found: Comparison, p_first: float | None, p_rows: Sequence[float | None]) -> Comparison:
        """Return what is found, with the verdicts of this look by the corrected p-values."""
        assert self.first is not None
        row, evidence = self.first
        if self.gate is None:
            in_turns = evidence.method.slice_by_slice
            level = equal_level(self.count, evidence.sd, margin=math.log1p(found.margin), in_turns=in_turns)
        else:
            level = _within_level(self.count)
        equal = 1 - 2 * level
        wide, narrow = (self.asked.given(row, evidence, one) for one in (1 - self.error, equal))
        first = self._judge(replace(wide, looked=self.count), narrow, p_first, found.margin)
        narrows = self.asked.with_differences(equal)
        rows = [self._judge(*three, found.margin) for three in zip(self.rows, narrows, p_rows, strict=True)]
        found = replace(found, first=first, rows=tuple(rows))
        return found if self.gate is None else replace(found, gate=judge_pair(found, self.gate).verdict)

    def _tested(self, row: ComparisonRow) -> ComparisonRow:
        if row.difference is None:
            return row
        if row.metric in TTFT and (row.starts is None or row.starts.first(self.count).fewest < TTFT_STARTS_MIN):
            row = replace(row, difference=replace(row.difference, p=None))
            row = row.because(*row.reasons, Reason(ReasonKind.STARTS_OF_TTFT, needed=TTFT_STARTS_MIN))
        return replace(row, looked=self.count)

    def _judge(self, row: ComparisonRow, narrow: ComparisonRow, p: float | None, margin: float) -> ComparisonRow:
        found, inner = row.difference, narrow.difference
        if found is None or inner is None:
            return row.judged(OPEN if row.has(ReasonKind.FEW_REQUESTS_YET) else NOT_COMPARED)
        row = replace(row, p_corrected=p)
        if p is None:
            return row.judged(OPEN)
        if inner.bound < margin:
            return replace(row, difference=replace(found, low=inner.low, high=inner.high)).judged(
                EQUAL, bound=inner.bound
            )
        if p < self.error and found.leaves_out_zero:
            return row.judged(better(row.metric, found.effect))
        if self.gate is not None and narrow.worst_case <= margin:
            return replace(row, difference=inner).judged(NOT_WORSE, bound=inner.bound)
        return row.judged(OPEN)


def decide(
    pairs: Iterable[tuple[Side, Side]],
    *,
    margin: float,
    looks: Sequence[int] = LOOKS,
    gate: GateQuestion | None = None,
) -> list[Comparison]:
    """Return what is decided between the runs of each pair (baseline, candidate) after these numbers of starts. Pure.

    `margin` is a share. The pairs share one error of 5%, so give all pairs of a study. With a `gate` a pair is decided by that.
    """
    return decide_pairs([_pair_of(*one, margin) for one in pairs], looks, gate)


def decide_pairs(
    pairs: Iterable[OpenPair], looks: Sequence[int] = LOOKS, gate: GateQuestion | None = None
) -> list[Comparison]:
    """Return what is decided of pairs of runs, from the values of their starts."""
    undecided = None if gate is None else OPEN
    states = [replace(one, found=replace(one.found, gate=undecided)) for one in pairs]
    for count in looks:
        seen = [
            Look(StartComparison(one.rows, *one.sides, count, MethodKind.LOOKS), count, gate)
            if one.starts >= count and not one.found.answered
            else None
            for one in states
        ]
        ps = corrected([_asked(one, look) for one, look in zip(states, seen, strict=True)])
        states = [
            one if look is None or look.first is None else replace(one, found=look.judged(one.found, *p))
            for one, look, p in zip(states, seen, ps, strict=True)
        ]
    return [_forecast(one, looks, gate) for one in states]


def looks_until(most: int) -> tuple[int, ...]:
    """Return the numbers of starts after which to look, if a run has at most `most`."""
    return (*(one for one in LOOKS if one < most), min(most, LOOKS[-1]))


def looks_beyond(most: int) -> tuple[int, ...]:
    """Return the looks of a study that was planned with at most `most` starts and goes on: the planned ones, then LOOKS.

    A planned last look that is not in LOOKS is one more than these.
    """
    return tuple(sorted({*looks_until(most), *LOOKS}))


def _pair_of(a: Side, b: Side, margin: float) -> OpenPair:
    a, b, voids = _with_common_starts(a, b)
    asked = [row for row in questions(a, b, False) if row.metric is not FAILED]
    # what cannot be compared at a level, such as a p99 of few requests, is said by `compare`
    rows = [row for row in asked if row.starts is not None or row.metric is THROUGHPUT]
    return open_pair(rows, (a, b), margin, voids)


def open_pair(
    rows: Sequence[ComparisonRow], sides: tuple[Side, Side], margin: float, voids: Mapping[Level, Reason] | None = None
) -> OpenPair:
    """Return a pair of runs of which nothing is decided, with the starts that are whole."""
    voids = voids or {}
    measured: dict[Level, set[int]] = {}
    for row in rows:
        if row.starts is not None:
            measured.setdefault(row.level, set()).update(row.starts.measured)
    to_replace, for_good = (
        {level for level, one in voids.items() if one.kind is kind}
        for kind in (ReasonKind.VOID_TO_REPLACE, ReasonKind.VOID_FOR_GOOD)
    )
    kept = {level: own for level, own in measured.items() if level not in for_good} or measured
    # a void point is measured again on another start, and later ones count after that
    before = [1 + max(measured.get(level, ()), default=-1) for level in to_replace]
    known = [row.judged(OPEN if row.more_starts_help else NOT_COMPARED) for row in rows]
    left_out = {row.level for row in rows} - kept.keys()
    starts = min([_whole_starts(kept, left_out), *before])
    return OpenPair(rows, sides, starts, voids, between(*sides, margin, known))


def _whole_starts(measured: Mapping[Level, set[int]], left_out: Collection[Level]) -> int:
    """How many starts there are up to the last one that has all its levels: the first all, the others as many as the one of them
    that has most. What an earlier one lacks is not measured any more. Levels that are `left_out` are in each start."""
    starts = 1 + max((one for own in measured.values() for one in own), default=-1)
    counts = [len({level for level, own in measured.items() if start in own} | {*left_out}) for start in range(starts)]
    enough = [len(measured.keys() | {*left_out}), *[max(counts[1:], default=0)] * starts]
    return max((start + 1 for start in range(starts) if counts[start] >= enough[start]), default=0)


def _asked(pair: OpenPair, look: Look | None) -> AskedPair:
    """The questions of a pair as the correction sees them. What an earlier look found to differ stays so."""
    if look is not None and look.first is not None:
        return look.asked.asked(look.first[0].p, look.rows, () if look.count >= TTFT_STARTS_MIN else TTFT)
    first = pair.found.first
    return AskedPair(None if first is None else 0.0 if first.result in DIFFERENT else 1.0, (), {})


def _forecast(pair: OpenPair, looks: Sequence[int], gate: GateQuestion | None) -> Comparison:
    """What was found, with what void points leave open, and for an open pair with the starts that would decide it, if the spread
    stays what it is and the difference is what its error leaves of it."""
    found = replace(pair.found, rows=tuple(_with_void(pair.found.rows, pair.voids)))
    lacking = [one for row in pair.rows for one in row.reasons if one.kind is ReasonKind.FEW_REQUESTS_YET]
    if lacking and not found.answered:
        return replace(found, starts_needed=found.starts_looked + max(one.needed for one in lacking))
    look = Look(StartComparison(pair.rows, *pair.sides, pair.starts, MethodKind.LOOKS), pair.starts)
    if found.answered or pair.starts < 1:
        return found
    if look.first is None:
        alone = look.asked.first_question() if pair.starts == 1 else None
        # one start each gives no verdict, and the next one is the least that may
        return replace(found, first=replace(alone[0], looked=1), starts_needed=STARTS_MIN) if alone else found
    if gate is None:
        evidence, margin = look.first[1], math.log1p(found.margin)
        difference = abs(_shrunken(evidence.mixture.quantile(0.5), evidence.sd))
        level = partial(equal_level, margin=margin, in_turns=evidence.method.slice_by_slice)
        needed = [_needed(pair.starts, evidence.sd, difference, margin - difference, level)]
    else:
        asked = {(row.level, row.metric) for row in judge_pair(found, gate).undecided if row is not None}
        shown = look.asked.with_differences(2 * ONE_SD - 1)
        needed = [_needed_by_gate(row, look.count, gate) for row in shown if (row.level, row.metric) in asked]
    known_all = [one for one in needed if one is not None]
    if not known_all or len(known_all) < len(needed):
        return found
    # the first look with so many starts, as if the study went on; their number itself beyond the last
    most = max(known_all)
    return replace(found, starts_needed=next((one for one in sorted({*looks, *LOOKS}) if one >= most), most))


def _needed_by_gate(row: ComparisonRow, starts: int, gate: GateQuestion) -> int | None:
    """With how many starts a row of a gate would be decided, if the spread stays what it is."""
    if row.difference is None:
        return None
    low, high = row.difference.logs
    falls = row.metric.higher_is_better
    sd = (high - low) / 2
    loss = _shrunken((low + high) / 2, sd) * (-1 if falls else 1)
    most = abs(math.log1p(-gate.limit if falls else gate.limit))
    found = _needed(starts, sd, loss if loss > most else 0.0, most - loss, lambda count, _: _within_level(count))
    return None if found is None else max(found, TTFT_STARTS_MIN if row.metric in TTFT else 0)


def _shrunken(difference: float, sd: float) -> float:
    """What is to be expected of a measured difference with this error: most of a small one is chance (James and Stein 1961,
    Proc. 4th Berkeley Symp. 1)."""
    return difference * max(0.0, 1 - (sd / difference) ** 2) if difference else 0.0


def equal_level(starts: int, sd: float, *, margin: float, in_turns: bool) -> float:
    """Return the level of *equal* at a look, at each end; `sd` is the error of the difference, as `margin` a logarithm."""
    spent = EQUAL_SPENT / math.sqrt(starts)
    if in_turns:
        spent = PAIRS_EQUAL_LEVEL * min(1.0, (PAIRS_EQUAL_ERRORS * sd / margin) ** 2)
    return spent * min(1.0, EQUAL_STARTS / starts)


def _within_level(starts: int) -> float:
    """The level of *not worse* at a look of a gate."""
    return WITHIN_SPENT / math.sqrt(starts)


def _needed(starts: int, sd: float, size: float, room: float, level: Callable[[int, float], float]) -> int | None:
    """With how many starts a difference of this size is clear of 0, or one half of its interval within the room; `sd` is its
    error after `starts`, `level` that of a look by its starts and error."""
    for count in range(starts + 1, FORECAST_MAX + 1):
        error = sd * (starts / count) ** 0.5
        levels = SPENT * FIRST_SHARE / count / 2, level(count, error)
        differs, equal = (-NORMAL.inv_cdf(one) * error for one in levels)
        if size > differs or equal < room:
            return count
    return None


def _with_common_starts(a: Side, b: Side) -> tuple[Side, Side, dict[Level, Reason]]:
    """The sides with as many starts at each level as both have, the first ones, before the first void one; and why by level where
    there is one."""
    voids: dict[Level, Reason] = {}
    kept: tuple[list[ComparedPoint], list[ComparedPoint]] = ([], [])
    for level in dict.fromkeys(point.row.level for side in (a, b) for point in side.samples):
        starts = [group_by_start(points_at(side, level)) for side in (a, b)]
        count = min(map(len, starts)) or max(map(len, starts))
        common = [side[:count] for side in starts]
        void = [point for side in common for start in side for point in start if point.row.verdict == "void"]
        if void:
            count = min(
                next((n for n, start in enumerate(side) if any(one.row.verdict == "void" for one in start)), len(side))
                for side in common
            )
            replaced = all(may_be_replaced(one.row.verdict, one.row.point) for one in void)
            kind = ReasonKind.VOID_TO_REPLACE if replaced else ReasonKind.VOID_FOR_GOOD
            voids[level] = void_reason(kind, void, needed=0 if replaced else VOID_ATTEMPTS)
        for found, side in zip(kept, common, strict=True):
            found += [point for start in side[:count] for point in start]
    return replace(a, samples=tuple(kept[0])), replace(b, samples=tuple(kept[1])), voids


def _with_void(rows: Sequence[ComparisonRow], voids: Mapping[Level, Reason]) -> list[ComparisonRow]:
    """The rows with those of levels that void points keep open, or leave without a decision."""
    found = list(rows)
    for level, void in voids.items():
        kind = OPEN if void.kind is ReasonKind.VOID_TO_REPLACE else NOT_COMPARED
        own = [row for row in found if row.level == level and row.starts is not None]
        if not own:
            found = [row for row in found if row.level != level]
            found.append(missing_row(level, THROUGHPUT, void).judged(kind))
        elif level_verdict(own) is OPEN:
            for at, row in enumerate(found):
                if row.level == level:
                    kept = row.because(*dict.fromkeys((*row.reasons, void)))
                    found[at] = kept if kind is OPEN else kept.judged(kind)
    return found


def starts_to_pass(
    known: Mapping[str, Sequence[Starts]], question: GateQuestion, looks: Iterable[int] = LOOKS
) -> int | None:
    """Return after how many starts of each equal engines pass in PASSED of studies, by `known` starts of each metric; None where
    nothing is known, or the looks do not suffice.

    The interval of a look is that of starts which differ as the known ones do (normal scores), and the difference that is
    measured has their error.
    """
    asked = [(GATED[name], known[name], level) for name in GATED if name in known for level in known[name][0].levels]
    asked = [one for one in asked if question.asks(one[0], one[2], _error(*one[1:]))]
    most = (count for count in looks if count > 1 and all(_passes(*one, count, question.limit) for one in asked))
    return next(most, None) if asked else None


def another_start_pays(cold_s: float, load_s: float, known: Sequence[Starts] = ()) -> bool:
    """Return whether another start, with its load, makes a comparison more exact than points that are longer by the time that it
    takes, by `known` starts of a metric.

    Two starts have the error (s^2 + e^2) / 2, if starts differ by s and points of one start by e; one start of the same time has
    s^2 + e^2 load_s / (cold_s + 2 load_s).
    """
    ratio = USUAL_RATIO
    if known:
        spread, factor = StartModel(known).spread
        error = factor * fmean(_error(known, level) for level in known[0].levels) / 2**0.5
        ratio = (spread / max(error, ERROR_LEAST)) ** 2
    return bool(ratio * (cold_s + 2 * load_s) > cold_s)


def _error(groups: Sequence[Starts], level: Level) -> float:
    """The mean standard error of the difference of two starts at a level."""
    errors = [float(own.errors.mean()) for one in groups if (own := one.at([level])).values.size]
    return fmean(errors) * (1.0 if groups[0].differences else 2**0.5)


def _passes(metric: Metric, groups: Sequence[Starts], level: Level, count: int, limit: float) -> bool:
    """Whether equal engines are within the limit in one question after so many starts."""
    if metric in TTFT and count < TTFT_STARTS_MIN:
        return False
    earlier, in_turns = [own for one in groups if (own := one.at([level])).values.size], groups[0].differences
    slow_side, error = SLOW_SIDES.get(metric.name, 0), _error(groups, level)
    start_sd, factor = StartModel(earlier, slow_side=slow_side).spread
    sd = math.hypot(2**0.5 * start_sd, error * (1.0 if in_turns else factor))
    scores = np.array([NORMAL.inv_cdf((place + 0.5) / count) for place in range(count)])
    scores = scores[:, None] / scores.std(ddof=1) * sd
    sides = (scores,) if in_turns else (scores / 2**0.5, -scores / 2**0.5)
    errors = np.array([error / len(sides) ** 0.5])
    model = StartModel([Starts((level,), one, errors, in_turns) for one in sides], earlier, slow_side)
    known = OverStarts(model, np.ones(1), Method(MethodKind.LOOKS), paired=in_turns).mixture
    half = known.quantile(1 - _within_level(count))
    room = ROOM * abs(math.log1p(-limit if metric.higher_is_better else limit))
    return bool(half + NORMAL.inv_cdf(PASSED) * sd / count**0.5 <= room)
