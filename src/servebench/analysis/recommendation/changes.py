"""What would change a recommendation: another limit, load or price, or doubtful points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from servebench.analysis.recommendation.model import Entrant, Score
from servebench.analysis.recommendation.rules import UseCase
from servebench.analysis.recommendation.scores import rank
from servebench.analysis.verdict.levels import COSTS, metric_value
from servebench.contracts.point_row import level_words
from servebench.measure.cost import break_even_price

SLO_FACTORS = (0.25, 0.5, 2.0, 4.0)


def what_would_change(
    case: UseCase, entrants: Sequence[Entrant], ranking: Sequence[Score], *, margin: float
) -> list[str]:
    """Return what would change the answer, a line each."""
    leader = ranking[0].entrant.name if ranking else None
    found = []
    if leader is not None and case.measure == "within_slo":
        found += _by_limit(case, entrants, leader)
        found += _still_within_limits(ranking)
    if leader is not None and case.measure == "best":
        found += _by_level(case, entrants, leader, margin)
    if ranking and case.metric in COSTS:
        found += _by_price(ranking, COSTS[case.metric])
    found += _without_doubtful_points(case, entrants, leader)
    return found


def _by_limit(case: UseCase, entrants: Sequence[Entrant], leader: str) -> list[str]:
    found = []
    name = "ttft_ms" if case.limits.ttft_ms is not None else "e2e_ms" if case.limits.e2e_ms is not None else "tpot_ms"
    limit = getattr(case.limits, name)
    for factor in SLO_FACTORS:
        other = replace(case, limits=replace(case.limits, **{name: limit * factor}))
        ranking = rank(other, entrants).scores
        label = f"with a {name.removesuffix('_ms').upper()} limit of {limit * factor:g} ms,"
        if not ranking:
            found.append(f"{label} none would meet it")
        elif ranking[0].entrant.name != leader:
            found.append(f"{label} {ranking[0].entrant.name} would lead")
    return found


def _still_within_limits(ranking: Sequence[Score]) -> list[str]:
    found = []
    for score in ranking:
        levels = [level for level in score.entrant.levels if level.verdict != "void"]
        if levels and score.slo_at == max(levels, key=lambda level: level.load).label:
            found.append(
                f"{score.entrant.name} still met the limits at its highest load ({score.slo_at}): measure higher"
            )
    return found


def _by_level(case: UseCase, entrants: Sequence[Entrant], leader: str, margin: float) -> list[str]:
    """Loads at which another entrant leads by the margin or more."""
    at: dict[str, dict[str, float]] = {}
    for entrant in entrants:
        for level in entrant.levels:
            value = metric_value(case.metric, level) if level.verdict != "void" else None
            if value is not None:
                at.setdefault(level.label, {})[entrant.name] = value
    leads: dict[str, list[str]] = {}
    for label, values in at.items():
        best = (min if case.lower_is_better else max)(values, key=lambda name: values[name])
        own = values.get(leader)
        if own and values[best] and abs(values[best] / own - 1) >= margin:
            leads.setdefault(best, []).append(label)
    return [f"at {', '.join(map(level_words, labels))} {name} leads" for name, labels in leads.items()]


def _by_price(ranking: Sequence[Score], rate_metric: str) -> list[str]:
    found = []
    for score in ranking[1:]:
        rate = metric_value(rate_metric, score.level) if score.level is not None else None
        if rate:
            price = break_even_price(float(rate), ranking[0].value, score.entrant.gpu_count)
            found.append(f"{score.entrant.name} would be as cheap at ${price:.3g} per GPU hour")
    return found


def _without_doubtful_points(case: UseCase, entrants: Sequence[Entrant], leader: str | None) -> list[str]:
    valid = [replace(one, levels=tuple(level for level in one.levels if level.verdict == "valid")) for one in entrants]
    ranking = rank(case, valid).scores
    if ranking and ranking[0].entrant.name != leader:
        return [f"if only valid points counted, {ranking[0].entrant.name} would lead"]
    return []
