"""What would change a recommendation: another limit, load or price, or doubtful points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from servebench.analysis.recommendation.model import Entrant, Score, UseReason, UseReasonKind
from servebench.analysis.recommendation.rules import UseCase
from servebench.analysis.recommendation.scores import rank
from servebench.analysis.verdict.levels import COSTS, metric_value
from servebench.contracts.level import Level
from servebench.measure.cost import break_even_price

SLO_FACTORS = (0.25, 0.5, 2.0, 4.0)


def what_would_change(
    case: UseCase, entrants: Sequence[Entrant], ranking: Sequence[Score], *, margin: float
) -> Iterator[UseReason]:
    """Yield what would change the answer."""
    leader = ranking[0].entrant.name if ranking else None
    if leader is not None and case.measure == "within_slo":
        yield from _by_limit(case, entrants, leader)
        yield from _still_within_limits(ranking)
    if leader is not None and case.measure in ("best", "within_slo"):
        yield from _by_level(case, entrants, leader, margin)
    if ranking and case.metric in COSTS:
        yield from _by_price(ranking, COSTS[case.metric])
    valid = [replace(one, levels=tuple(level for level in one.levels if level.verdict == "valid")) for one in entrants]
    firm = rank(case, valid).scores
    if firm and firm[0].entrant.name != leader:
        doubted = {one.name: [level for level in one.levels if level.verdict == "doubtful"] for one in entrants}
        name = next((name for name in (leader, firm[0].entrant.name) if name and doubted[name]), None)
        for level in doubted[name] if name else ():
            yield UseReason(kind=UseReasonKind.IN_DOUBT, run=name or "", levels=(level.level,), codes=level.doubts)


def _by_limit(case: UseCase, entrants: Sequence[Entrant], leader: str) -> Iterator[UseReason]:
    name = "ttft_ms" if case.slo.ttft_ms is not None else "e2e_ms" if case.slo.e2e_ms is not None else "tpot_ms"
    for factor in SLO_FACTORS:
        limit = getattr(case.slo, name) * factor
        other_case = case.model_copy(update={"slo": replace(case.slo, **{name: limit})})
        ranking = rank(other_case, entrants).scores
        if not ranking:
            yield UseReason(kind=UseReasonKind.NONE_WITH_LIMIT, metric=name, limit=limit)
        elif (other := ranking[0].entrant.name) != leader:
            yield UseReason(kind=UseReasonKind.LEADS_WITH_LIMIT, run=other, metric=name, limit=limit)


def _still_within_limits(ranking: Sequence[Score]) -> Iterator[UseReason]:
    for score in ranking:
        levels = [level for level in score.entrant.levels if level.verdict != "void"]
        if levels and score.slo_at == max(level.level for level in levels):
            yield UseReason(kind=UseReasonKind.STILL_MET, run=score.entrant.name, levels=(score.slo_at,))


def _by_level(case: UseCase, entrants: Sequence[Entrant], leader: str, margin: float) -> Iterator[UseReason]:
    at: dict[Level, dict[str, float]] = {}
    for entrant in entrants:
        for level in entrant.levels:
            value = metric_value(case.metric, level) if level.verdict != "void" else None
            if value is not None:
                at.setdefault(level.level, {})[entrant.name] = value
    leads: dict[str, list[Level]] = {}
    for load, values in at.items():
        best = (min if case.lower_is_better else max)(values, key=lambda name: values[name])
        own = values.get(leader)
        if own and values[best] and abs(values[best] / own - 1) >= margin:
            leads.setdefault(best, []).append(load)
    return (UseReason(kind=UseReasonKind.LEADS_AT, run=name, levels=tuple(own)) for name, own in leads.items())


def _by_price(ranking: Sequence[Score], rate_metric: str) -> Iterator[UseReason]:
    for score in ranking[1:]:
        rate = metric_value(rate_metric, score.level) if score.level is not None else None
        if rate:
            price = break_even_price(float(rate), ranking[0].value, score.entrant.gpus[1])
            yield UseReason(kind=UseReasonKind.AS_CHEAP, run=score.entrant.name, limit=price)
