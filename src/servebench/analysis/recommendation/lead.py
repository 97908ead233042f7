"""The lead of the first of a ranking, and whether it is a win."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from servebench.analysis.comparison.decisions import exceeds_starts
from servebench.analysis.comparison.model import ComparisonRow
from servebench.analysis.comparison.starts import STARTS_MIN
from servebench.analysis.recommendation.model import DecidedRow, RankedLevel, Score
from servebench.analysis.recommendation.objectives import LATENCIES
from servebench.analysis.recommendation.rules import Rules, UseCase
from servebench.analysis.recommendation.scores import Ranking
from servebench.analysis.recommendation.values import LogLead, log_lead, metric_value
from servebench.analysis.warnings.weighing import weigh
from servebench.contracts.estimate import CONFIDENCE
from servebench.util.figures import change_interval, percent

STARTS_ADVICE = "study.starts=5 measures five starts of each engine"
BY_STARTS = ("output_throughput_tok_s", "cost_usd_per_mtok")
"""Metrics by which starts of one engine differ as `exceeds_starts` takes it; latencies differ by more, and so do requests
within an SLO."""


@dataclass(frozen=True, kw_only=True)
class Lead:
    """The leader's lead over the second, the `rival`, with its 95% interval, why it is no win (empty when it is one), and why
    it is a provisional one. It has no size where the second may reach more at a level that has no point.
    `one_start`: it rests on one start of an engine, of which it is not known how its starts differ."""

    size: float | None
    low: float | None
    high: float | None
    rival: str
    why: str
    provisional: str = ""
    one_start: bool = False


def lead_of(ranking: Ranking, case: UseCase, rules: Rules, *, with_doubtful: bool, decided: DecidedRow) -> Lead:
    """Return the lead of the first over the second, and the first reason against a win over all other entrants."""
    first, rivals = ranking.scores[0], [*ranking.scores[1:], *ranking.possible]
    confidence = 1 - (1 - CONFIDENCE) / len(rivals)
    second = rivals[0]
    unknown = {rival.entrant.name: why for rival in rivals if (why := _why_unknown(rival, case))}
    reasons, one_start = list(unknown.values()), False
    for rival in rivals:
        row = decided(first, rival)
        one_start = one_start or (row is None and _starts(first, rival, confidence) < STARTS_MIN)
        fixed = _objections(first, rival, case, rules, confidence)
        reasons += fixed if row is None else _objections_to_decision(first, rival, row, rules)
    ours, theirs = first.level, second.level or second.best
    low, high = _interval(first.metric, ours, theirs)
    if second.entrant.name in unknown:
        return Lead(size=None, low=None, high=None, rival=second.entrant.name, why=reasons[0])
    size = first.value / second.value - 1 if second.value else 0.0
    warned = "" if with_doubtful else next(_provisional(first, rivals, case, confidence), "")
    return Lead(
        size=size,
        low=low,
        high=high,
        rival=second.entrant.name,
        why=next(iter(reasons), ""),
        provisional=warned,
        one_start=one_start,
    )


def _starts(first: Score, rival: Score, confidence: float) -> int:
    """Return the fewest starts of two entrants that their lead rests on."""
    ours, theirs = first.level, rival.level or rival.best
    found = log_lead(first.metric, ours, theirs, confidence) if ours is not None and theirs is not None else None
    return found.starts if found is not None else 1


def _why_unknown(rival: Score, case: UseCase) -> str:
    """Return at which heavier loads a rival may reach more, because it has no point there that counts; empty without any."""
    level = rival.level
    if level is None or case.measure not in ("best", "within_slo"):
        return ""
    reach, open_to = level.level, None
    if case.measure == "within_slo":
        # the SLO point is the last of the levels that meet it: what lies beyond a level that misses it does not count
        met = rival.slo_at or reach
        open_to = min(
            (one.level for one in rival.entrant.levels if one.verdict != "void" and one.level > met), default=None
        )
    found = [one for one in rival.entrant.unmeasured if reach < one and (open_to is None or one < open_to)]
    if not found:
        return ""
    where = ", ".join(level.words for level in found)
    return f"{rival.entrant.name} has no point that counts at {where}, where it may reach more: measure it again"


def _interval(metric: str, ours: RankedLevel | None, theirs: RankedLevel | None) -> tuple[float | None, float | None]:
    """The 95% interval of a lead as a share, wider by what warnings of a known size may account for, as in a comparison."""
    found = log_lead(metric, ours, theirs, CONFIDENCE) if ours is not None and theirs is not None else None
    if found is None or ours is None or theirs is None:
        return None, None
    wider = sum(
        float(np.log1p(weigh([(row.doubts, row) for row in level.rows], metric).bound)) for level in (ours, theirs)
    )
    return float(np.expm1(found.interval[0] - wider)), float(np.expm1(found.interval[1] + wider))


def _provisional(first: Score, rivals: Sequence[Score], case: UseCase, confidence: float) -> Iterator[str]:
    """Why warnings make a win provisional: one of unknown size, or of a size that may be the whole lead."""
    own = first.level
    if own is None:
        return
    limits = case.limits if case.measure == "within_slo" else None
    metrics = [case.metric, *(name for name in LATENCIES if limits and getattr(limits, name) is not None)]
    for score in (first, *rivals):
        level = score.level or score.best
        if level is None:
            continue
        weights = [weigh([(row.doubts, row) for row in level.rows], metric) for metric in metrics]
        if codes := list(dict.fromkeys(code for weight in weights for code in weight.unbounded)):
            whose = "its point" if score is first else f"the point of {score.entrant.name}"
            whose += f" at {level.level.words}"
            why = f"{whose} has warnings of unknown size ({', '.join(codes)}); --with-doubtful accepts it"
            yield f"{first.entrant.name} leads, and {why}"
        if level is own:
            bound = weights[0]
            continue
        theirs = metric_value(case.metric, level)
        found = log_lead(case.metric, own, level, confidence)
        lead = abs(np.log(first.value / theirs)) if theirs else 0.0
        least = min(map(abs, found.interval)) if found is not None else lead
        codes = list(dict.fromkeys((*bound.bounded, *weights[0].bounded)))
        if codes and np.expm1(least) <= (1 + bound.bound) * (1 + weights[0].bound) - 1:
            why = f"may account for the lead over {score.entrant.name}; --with-doubtful accepts it"
            yield f"{', '.join(codes)} {why}"


def _objections(first: Score, rival: Score, case: UseCase, rules: Rules, confidence: float) -> Iterator[str]:
    """Why the first does not win against a rival, with undecided levels taken against the first and for the rival."""
    if case.measure == "cold_start":
        size = rival.value / first.value - 1 if first.value else 0.0
        yield (
            _once(_shown(size, case), rival, "one cold start of each is stored")
            if size < rules.once_margin
            else "one cold start of each is stored: no verdict"
        )
    elif first.worst is None:
        yield f"whether {first.entrant.name} meets the SLO is undecided: {first.undecided}"
    elif rival.best is not None:
        yield from _objections_to_lead((first, first.worst), (rival, rival.best), case, rules, confidence)


def _objections_to_decision(first: Score, rival: Score, row: ComparisonRow, rules: Rules) -> Iterator[str]:
    """Why the first does not win against a rival at a level at which a comparison over several starts gives the verdict."""
    if first.worst is not first.level or rival.best is not rival.level:
        undecided = first.undecided if first.worst is not first.level else rival.undecided
        yield f"the lead over {rival.entrant.name} depends on the SLO point: {undecided}"
    elif row.result == "no difference":
        yield f"{row.metric.title} differs from that of {rival.entrant.name} by at most {percent(row.bound)}"
    elif row.result != "faster":
        ends = change_interval(row.low, row.high)
        chance = f" its interval {ends} leaves out 0, but among so many rows this may be chance:" * row.may_be_chance
        yield f"{row.metric.title} against {rival.entrant.name} is not decided:{chance} more starts are needed"
    elif abs(row.effect or 0.0) < rules.margin:
        yield _below_margin(abs(row.effect or 0.0), rival, rules)


def _objections_to_lead(
    leader: tuple[Score, RankedLevel], other: tuple[Score, RankedLevel], case: UseCase, rules: Rules, confidence: float
) -> Iterator[str]:
    (first, worst), (rival, best) = leader, other
    own, theirs = metric_value(case.metric, worst), metric_value(case.metric, best)
    assert own is not None
    assert theirs is not None
    size = (theirs / own if case.lower_is_better else own / theirs) - 1
    if size < rules.margin and (worst is not first.level or best is not rival.level):
        undecided = first.undecided if worst is not first.level else rival.undecided
        yield f"the lead over {rival.entrant.name} depends on the SLO point: {undecided}"
        return
    found = log_lead(case.metric, worst, best, confidence)
    if found is None:
        if size < rules.once_margin:
            yield _once(_shown(size, case), rival)
        return
    if found.interval[0] <= 0 <= found.interval[1]:
        ends = change_interval(*(math.expm1(end) for end in found.interval))
        level = f" ({percent(confidence)}, for several rivals)" * (confidence > CONFIDENCE)
        yield f"the interval {ends}{level} of the lead over {rival.entrant.name} includes 0"
    elif found.starts < STARTS_MIN and not _exceeds_starts(case.metric, size, found, rules):
        ahead = f"{first.entrant.name} is {_shown(size, case):.0%} ahead of {rival.entrant.name}"
        yield f"{ahead}, but starts of one engine may differ by as much: {STARTS_ADVICE}"
    elif size < rules.margin:
        yield _below_margin(_shown(size, case), rival, rules)


def _shown(size: float, case: UseCase) -> float:
    """Return a lead as it is shown, as a share of the rival's value: 80 ms are 20% less than 100 ms, which are 25% more."""
    return size / (1 + size) if case.lower_is_better else size


def _below_margin(size: float, rival: Score, rules: Rules) -> str:
    return f"the lead of {percent(size)} over {rival.entrant.name} is below the margin of {100 * rules.margin:g}%"


def _exceeds_starts(metric: str, size: float, found: LogLead, rules: Rules) -> bool:
    if metric not in BY_STARTS:
        return size >= rules.once_margin
    return exceeds_starts(float(np.log1p(size)), min(map(abs, found.interval)))


def _once(size: float, rival: Score, why: str = "each was measured once") -> str:
    lead = f"the lead of {percent(size)} over {rival.entrant.name}"
    return f"{lead} may be chance, as {why}: measure again"
