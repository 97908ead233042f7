"""The lead of the first of a ranking, and whether it is a win."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from servebench.analysis.recommendation.model import DecidedRow, Score
from servebench.analysis.recommendation.objectives import LATENCIES
from servebench.analysis.recommendation.rules import Rules, UseCase
from servebench.analysis.recommendation.scores import Ranking
from servebench.analysis.verdict.levels import RankedLevel, lead_difference, metric_value
from servebench.analysis.verdict.model import EQUAL, FASTER, ComparisonRow, Difference
from servebench.analysis.verdict.one_start import exceeds_starts
from servebench.analysis.verdict.within_run import WITHIN_RUN
from servebench.analysis.warnings.weighing import weigh
from servebench.contracts.estimate import CONFIDENCE
from servebench.contracts.point_row import level_words
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
        one_start = one_start or (row is None and not _over_starts(first, rival, confidence))
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


def _over_starts(first: Score, rival: Score, confidence: float) -> bool:
    """Return whether the lead of two entrants rests on several starts of each."""
    ours, theirs = first.level, rival.level or rival.best
    found = lead_difference(first.metric, ours, theirs, confidence) if ours and theirs else None
    return found is not None and found.method != WITHIN_RUN


def _why_unknown(rival: Score, case: UseCase) -> str:
    """Return at which heavier loads a rival may reach more, because it has no point there that counts; empty without any."""
    level = rival.level
    if level is None or case.measure not in ("best", "within_slo"):
        return ""
    reach = level.load
    if case.measure == "within_slo":
        # the SLO point is the last of the levels that meet it: what lies beyond a level that misses it does not count
        met = max((one.load for one in rival.entrant.levels if one.label == rival.slo_at), default=level.load)
        missed = [one.load for one in rival.entrant.levels if one.verdict != "void" and one.load > met]
        open_to = min(missed, default=float("inf"))
    else:
        open_to = float("inf")
    found = [name for name, load in rival.entrant.unmeasured if reach < load < open_to]
    if not found:
        return ""
    where = ", ".join(map(level_words, found))
    return f"{rival.entrant.name} has no point that counts at {where}, where it may reach more: measure it again"


def _interval(metric: str, ours: RankedLevel | None, theirs: RankedLevel | None) -> tuple[float | None, float | None]:
    """The 95% interval of a lead as a share, wider by what warnings of a known size may account for, as in a comparison."""
    found = lead_difference(metric, ours, theirs, CONFIDENCE) if ours is not None and theirs is not None else None
    if found is None or ours is None or theirs is None:
        return None, None
    for level in (ours, theirs):
        found = found.widened(weigh([(row.doubts, row) for row in level.rows], metric).bound)
    return found.low, found.high


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
            whose += f" at {level_words(level.label)}"
            why = f"{whose} has warnings of unknown size ({', '.join(codes)}); --with-doubtful accepts it"
            yield f"{first.entrant.name} leads, and {why}"
        if level is own:
            bound = weights[0]
            continue
        theirs = metric_value(case.metric, level)
        found = lead_difference(case.metric, own, level, confidence)
        lead = abs(math.log(first.value / theirs)) if theirs else 0.0
        least = _least(found) if found is not None else lead
        codes = list(dict.fromkeys((*bound.bounded, *weights[0].bounded)))
        if codes and math.expm1(least) <= (1 + bound.bound) * (1 + weights[0].bound) - 1:
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
    elif row.result is EQUAL:
        yield f"{row.metric.title} differs from that of {rival.entrant.name} by at most {percent(row.bound)}"
    elif row.result is not FASTER:
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
    found = lead_difference(case.metric, worst, best, confidence)
    if found is None:
        if size < rules.once_margin:
            yield _once(_shown(size, case), rival)
        return
    if not found.leaves_out_zero:
        ends = change_interval(found.low, found.high)
        level = f" ({percent(confidence)}, for several rivals)" * (confidence > CONFIDENCE)
        yield f"the interval {ends}{level} of the lead over {rival.entrant.name} includes 0"
    elif found.method == WITHIN_RUN and not _exceeds_starts(case.metric, size, found, rules):
        ahead = f"{first.entrant.name} is {_shown(size, case):.0%} ahead of {rival.entrant.name}"
        yield f"{ahead}, but starts of one engine may differ by as much: {STARTS_ADVICE}"
    elif size < rules.margin:
        yield _below_margin(_shown(size, case), rival, rules)


def _shown(size: float, case: UseCase) -> float:
    """Return a lead as it is shown, as a share of the rival's value: 80 ms are 20% less than 100 ms, which are 25% more."""
    return size / (1 + size) if case.lower_is_better else size


def _below_margin(size: float, rival: Score, rules: Rules) -> str:
    return f"the lead of {percent(size)} over {rival.entrant.name} is below the margin of {100 * rules.margin:g}%"


def _exceeds_starts(metric: str, size: float, found: Difference, rules: Rules) -> bool:
    return exceeds_starts(math.log1p(size), _least(found)) if metric in BY_STARTS else size >= rules.once_margin


def _least(found: Difference) -> float:
    """Return the end of an interval that is nearer to no difference, as a logarithm."""
    return min(map(abs, found.logs))


def _once(size: float, rival: Score, why: str = "each was measured once") -> str:
    lead = f"the lead of {percent(size)} over {rival.entrant.name}"
    return f"{lead} may be chance, as {why}: measure again"
