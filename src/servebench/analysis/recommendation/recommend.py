"""The recommendation for each use case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from servebench.analysis.fairness import SettingDifference
from servebench.analysis.recommendation.changes import what_would_change
from servebench.analysis.recommendation.lead import lead_of
from servebench.analysis.recommendation.model import DecidedRow, Entrant, Outcome, Recommendation, Score
from servebench.analysis.recommendation.reasons import UseReason, UseReasonKind
from servebench.analysis.recommendation.rules import Rules, UseCase
from servebench.analysis.recommendation.scores import rank
from servebench.analysis.verdict.levels import COSTS

UnequalSettings = Callable[[Entrant, Entrant, Sequence[str]], Sequence[SettingDifference]]
"""Returns the unequal settings of two entrants; the third argument names config groups that may differ."""


def recommend(
    entrants: Sequence[Entrant],
    rules: Rules,
    *,
    unequal: UnequalSettings,
    with_doubtful: bool = False,
    decided: DecidedRow = lambda *_: None,
) -> list[Recommendation]:
    """Return a recommendation for each use case and each setup (model, GPU, workload) that was measured. Pure."""
    found: list[Recommendation] = []
    for case in rules.use_cases.values():
        patterns = ("*",) if case.workloads is None else case.workloads
        taking_part = [one for one in entrants if any(fnmatchcase(one.workload, pattern) for pattern in patterns)]
        why = _why_not_measured(case, taking_part)
        if why is not None:
            found.append(Recommendation(use_case=case, group="", outcome="not measured", why=why))
            continue
        groups: dict[str, list[Entrant]] = {}
        for entrant in taking_part:
            groups.setdefault(_group(entrant, case), []).append(entrant)
        found += [
            _recommend_one(
                case, name, group, rules=rules, unequal=unequal, with_doubtful=with_doubtful, decided=decided
            )
            for name, group in groups.items()
        ]
    return found


def _why_not_measured(case: UseCase, entrants: Sequence[Entrant]) -> UseReason | None:
    if not entrants:
        return UseReason(kind=UseReasonKind.NO_RUN, names=case.workloads or ("",))
    if any(row.get(case.metric) is not None for entrant in entrants for level in entrant.levels for row in level.rows):
        return None
    if case.metric in COSTS:
        return _why_no_cost(case.metric, entrants)
    return UseReason(kind=UseReasonKind.NO_POWER) if case.metric == "energy_j_per_token" else None


def _why_no_cost(metric: str, entrants: Sequence[Entrant]) -> UseReason:
    if all(entrant.price_usd_per_hour is None for entrant in entrants):
        gpus = tuple(name for name in dict.fromkeys(entrant.gpu for entrant in entrants) if name and name != "none")
        return UseReason(kind=UseReasonKind.NO_PRICE, names=gpus)
    kind = UseReasonKind.NO_GOOD_REQUEST if "good" in metric else UseReasonKind.NO_THROUGHPUT
    if not any(entrant.gpu_count and entrant.price_usd_per_hour is not None for entrant in entrants):
        kind = UseReasonKind.NOTHING_TO_PAY
    elif metric == "cost_usd_per_mgood" and all(entrant.own_limits is None for entrant in entrants):
        kind = UseReasonKind.NO_SLO
    return UseReason(kind=kind)


def _group(entrant: Entrant, case: UseCase) -> str:
    parts = {"model": entrant.model, "gpu": entrant.gpu, "workload": entrant.workload}
    return " · ".join(value for name, value in parts.items() if name not in case.across and value != "none")


def _recommend_one(
    case: UseCase,
    group: str,
    entrants: Sequence[Entrant],
    *,
    rules: Rules,
    unequal: UnequalSettings,
    with_doubtful: bool,
    decided: DecidedRow,
) -> Recommendation:
    own = {entrant.own_limits for entrant in entrants}
    if case.own_slo and len(own) == 1 and (limits := own.pop()) is not None:
        case = case.with_limits(limits)
    ranked = rank(case, entrants)
    ranking = ranked.scores
    facts: dict[str, Any] = {
        "use_case": case,
        "group": group,
        "ranking": ranking,
        "missing": ranked.missing,
        "changes": tuple(what_would_change(case, entrants, ranking, margin=rules.margin)),
    }
    if not ranking:
        return Recommendation(outcome="none qualifies", why=UseReason(kind=UseReasonKind.NONE_RANKED), **facts)
    if len(ranking) + len(ranked.possible) == 1:
        why = UseReason(kind=UseReasonKind.ONLY_ONE, run=ranking[0].entrant.name)
        return Recommendation(outcome="only one", why=why, **facts)
    lead = lead_of(ranked, case, rules, with_doubtful=with_doubtful, decided=decided)
    unfair = _why_unfair(ranking, case, unequal)
    fastest = case.measure == "cold_start" and abs(lead.size or 0.0) >= rules.once_margin / (1 + rules.once_margin)
    no_best: Outcome = "different settings" if unfair else "one start each" if fastest else "no clear difference"
    return Recommendation(
        outcome=no_best if unfair or lead.why else "provisional" if lead.provisional else "best",
        lead=lead.size,
        interval=lead.interval,
        rival=lead.rival,
        why=unfair or lead.why or lead.provisional,
        one_start=lead.one_start,
        **facts,
    )


def _why_unfair(ranking: Sequence[Score], case: UseCase, unequal: UnequalSettings) -> UseReason | None:
    apart = [(rival.entrant.name, unequal(ranking[0].entrant, rival.entrant, case.across)) for rival in ranking[1:]]
    settings = tuple((name, kept) for name, own in apart if (kept := tuple(one for one in own if one.matters)))
    return UseReason(kind=UseReasonKind.UNEQUAL, settings=settings) if settings else None
