"""The lead of the first of a ranking, and whether it makes it the best. All differences are those of `verdict`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from servebench.analysis.recommendation.model import DecidedRow, Score, UseReason, UseReasonKind
from servebench.analysis.recommendation.objectives import LATENCIES
from servebench.analysis.recommendation.rules import Rules, UseCase
from servebench.analysis.recommendation.scores import Ranking
from servebench.analysis.verdict.levels import RankedLevel, lead_difference, metric_value
from servebench.analysis.verdict.model import EQUAL, FASTER, ComparisonRow
from servebench.analysis.verdict.starts import STARTS_MIN
from servebench.contracts.estimate import CONFIDENCE, Interval

BY_STARTS = ("output_throughput_tok_s", "cost_usd_per_mtok")
"""Metrics by which starts of one engine differ as the prior of the model takes it; latencies differ by more, and so do requests
within an SLO."""


@dataclass(frozen=True, kw_only=True)
class Lead:
    """The lead of the first over the second, the `rival`, with its 95% interval, why it does not make it the best (None when it
    does), and why only provisionally. It has no size where the second may reach more at a level that has no point.
    `one_start`: it rests on one start of an engine, of which it is not known how its starts differ."""

    rival: str
    size: float | None = None
    interval: Interval | None = None
    why: UseReason | None = None
    provisional: UseReason | None = None
    one_start: bool = False


def lead_of(ranking: Ranking, case: UseCase, rules: Rules, *, with_doubtful: bool, decided: DecidedRow) -> Lead:
    """Return the lead of the first over the second, and the first reason against it over all other entrants."""
    first, rivals = ranking.scores[0], [*ranking.scores[1:], *ranking.possible]
    # with several rivals each interval is wider (Bonferroni), so that "best of all" is as sure as it says
    confidence = 1 - (1 - CONFIDENCE) / len(rivals)
    second = rivals[0]
    unknown = {rival.entrant.name: why for rival in rivals if (why := _unmeasured(rival, case)) is not None}
    reasons, one_start = list(unknown.values()), False
    for rival in rivals:
        row = decided(first, rival)
        if row is None:
            found = lead_difference(first.metric, first.level, rival.level or rival.best, confidence)
            one_start = one_start or found is None or min(found.method.starts) < STARTS_MIN
            reasons += _objections(first, rival, case, rules, confidence)
        else:
            reasons += _objections_to_verdict(first, rival, row, rules)
    if second.entrant.name in unknown:
        return Lead(rival=second.entrant.name, why=reasons[0])
    return Lead(
        rival=second.entrant.name,
        size=first.value / second.value - 1 if second.value else 0.0,
        interval=_interval(first.metric, first.level, second.level or second.best),
        why=next(iter(reasons), None),
        provisional=None if with_doubtful else next(_provisional(first, rivals, case, confidence), None),
        one_start=one_start,
    )


def _unmeasured(rival: Score, case: UseCase) -> UseReason | None:
    """At which heavier loads a rival may reach more, because it has no point there that counts."""
    level = rival.level
    if level is None or case.measure not in ("best", "within_slo"):
        return None
    reach, open_to = level.level, None
    if case.measure == "within_slo":
        # the SLO point is the last of the levels that meet it: what lies beyond a level that misses it does not count
        met = rival.slo_at or reach
        open_to = min(
            (one.level for one in rival.entrant.levels if one.verdict != "void" and one.level > met), default=None
        )
    found = tuple(one for one in rival.entrant.unmeasured if reach < one and (open_to is None or one < open_to))
    return UseReason(kind=UseReasonKind.UNMEASURED, rival=rival.entrant.name, levels=found) if found else None


def _interval(metric: str, ours: RankedLevel | None, theirs: RankedLevel | None) -> Interval | None:
    """The 95% interval of a lead as a share, wider by what warnings of a known size may account for, as in a comparison."""
    found = lead_difference(metric, ours, theirs, CONFIDENCE)
    if found is None or ours is None or theirs is None:
        return None
    found = found.widened(ours.weight(metric).bound).widened(theirs.weight(metric).bound)
    return found.low, found.high


def _provisional(first: Score, rivals: Sequence[Score], case: UseCase, confidence: float) -> Iterator[UseReason]:
    """Why warnings make the best provisional: one of unknown size, or of a size that may be the whole lead."""
    own = first.level
    if own is None:
        return
    limits = case.slo if case.measure == "within_slo" else None
    metrics = [case.metric, *(name for name in LATENCIES if limits and getattr(limits, name) is not None)]
    bound = own.weight(case.metric)
    for score in (first, *rivals):
        level = score.level or score.best
        if level is None:
            continue
        weights, name = [level.weight(metric) for metric in metrics], score.entrant.name
        if codes := tuple(dict.fromkeys(code for weight in weights for code in weight.unbounded)):
            yield UseReason(
                kind=UseReasonKind.UNKNOWN_SIZE, run=first.entrant.name, rival="" if score is first else name,
                levels=(level.level,), codes=codes,
            )  # fmt: skip
        if level is own:
            continue
        theirs = metric_value(case.metric, level)
        found = lead_difference(case.metric, own, level, confidence)
        lead = abs(math.log(first.value / theirs)) if theirs else 0.0
        # the end of the interval that is nearer to no difference
        least = min(map(abs, found.logs)) if found is not None else lead
        codes = tuple(dict.fromkeys((*bound.bounded, *weights[0].bounded)))
        if codes and math.expm1(least) <= (1 + bound.bound) * (1 + weights[0].bound) - 1:
            yield UseReason(kind=UseReasonKind.MAY_ACCOUNT, rival=name, codes=codes)


def _objections(first: Score, rival: Score, case: UseCase, rules: Rules, confidence: float) -> Iterator[UseReason]:
    """Why the first is not better than a rival, with undecided levels taken against the first and for the rival."""
    if case.measure == "cold_start":
        size = rival.value / first.value - 1 if first.value else 0.0
        small = size < rules.once_margin
        name, share = (rival.entrant.name, _shown(size, case)) if small else ("", 0.0)
        yield UseReason(kind=UseReasonKind.ONE_COLD_START, rival=name, share=share)
    elif first.worst is None:
        yield UseReason(kind=UseReasonKind.SLO_UNDECIDED, run=first.entrant.name, cause=first.undecided)
    elif rival.best is not None:
        yield from _objections_to_lead((first, first.worst), (rival, rival.best), case, rules, confidence)


def _objections_to_verdict(first: Score, rival: Score, row: ComparisonRow, rules: Rules) -> Iterator[UseReason]:
    """Why the first is not better than a rival at a level at which a comparison over several starts gives the verdict."""
    name, metric, effect = rival.entrant.name, row.metric.name, abs(row.effect or 0.0)
    if first.worst is not first.level or rival.best is not rival.level:
        yield _by_slo_point(first, rival)
    elif row.result is EQUAL:
        yield UseReason(kind=UseReasonKind.AT_MOST, rival=name, metric=metric, share=row.bound or 0.0)
    elif row.result is not FASTER:
        ends = (row.difference.low, row.difference.high) if row.difference and row.may_be_chance else None
        yield UseReason(kind=UseReasonKind.NOT_DECIDED, rival=name, metric=metric, interval=ends)
    elif effect < rules.margin:
        yield UseReason(kind=UseReasonKind.BELOW_MARGIN, rival=name, share=effect, limit=rules.margin)


def _by_slo_point(first: Score, rival: Score) -> UseReason:
    cause = first.undecided if first.worst is not first.level else rival.undecided
    return UseReason(kind=UseReasonKind.BY_SLO_POINT, rival=rival.entrant.name, cause=cause)


def _objections_to_lead(
    leader: tuple[Score, RankedLevel], other: tuple[Score, RankedLevel], case: UseCase, rules: Rules, confidence: float
) -> Iterator[UseReason]:
    (first, worst), (rival, best), name = leader, other, other[0].entrant.name
    own, theirs = metric_value(case.metric, worst), metric_value(case.metric, best)
    assert own is not None
    assert theirs is not None
    size = (theirs / own if case.lower_is_better else own / theirs) - 1
    shown = _shown(size, case)
    if size < rules.margin and (worst is not first.level or best is not rival.level):
        yield _by_slo_point(first, rival)
        return
    found = lead_difference(case.metric, worst, best, confidence)
    if found is None:
        if size < rules.once_margin:
            yield UseReason(kind=UseReasonKind.ONE_MEASUREMENT, rival=name, share=shown)
    elif min(found.method.starts) < STARTS_MIN and not (
        found.leaves_out_zero and (case.metric in BY_STARTS or size >= rules.once_margin)
    ):
        yield UseReason(kind=UseReasonKind.STARTS_MAY_DIFFER, run=first.entrant.name, rival=name, share=shown)
    elif not found.leaves_out_zero:
        several = confidence if confidence > CONFIDENCE else 0.0
        ends = (found.low, found.high)
        yield UseReason(kind=UseReasonKind.INCLUDES_ZERO, rival=name, interval=ends, share=several)
    elif size < rules.margin:
        yield UseReason(kind=UseReasonKind.BELOW_MARGIN, rival=name, share=shown, limit=rules.margin)


def _shown(size: float, case: UseCase) -> float:
    """Return a lead as it is shown, as a share of the rival's value: 80 ms are 20% less than 100 ms, which are 25% more."""
    return size / (1 + size) if case.lower_is_better else size
