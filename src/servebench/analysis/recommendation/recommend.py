"""The recommendation for each use case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from servebench.analysis.fairness import SettingDifference, how_to_resolve, mattering_keys
from servebench.analysis.recommendation.changes import what_would_change
from servebench.analysis.recommendation.lead import lead_of
from servebench.analysis.recommendation.model import DecidedRow, Entrant, Outcome, Recommendation, Score
from servebench.analysis.recommendation.rules import Rules, UseCase
from servebench.analysis.recommendation.scores import rank
from servebench.analysis.verdict.levels import COSTS

NO_POWER = "power could not be read: it needs an NVIDIA GPU, or a CPU with readable RAPL counters"

UnequalSettings = Callable[[Entrant, Entrant, Sequence[str]], Sequence[SettingDifference]]
"""Returns the unequal settings of two entrants; the third argument names config groups that may differ."""


def _nothing_decided(_first: Score, _second: Score) -> None:
    return None


def recommend(
    entrants: Sequence[Entrant],
    rules: Rules,
    *,
    unequal: UnequalSettings,
    with_doubtful: bool = False,
    decided: DecidedRow = _nothing_decided,
) -> list[Recommendation]:
    """Return a recommendation for each use case and each setup (model, GPU, workload) that was measured. Pure."""
    found: list[Recommendation] = []
    for case in rules.use_cases:
        taking_part = [entrant for entrant in entrants if _takes_part(entrant, case)]
        why = _why_not_measured(case, taking_part)
        if why:
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


def _takes_part(entrant: Entrant, case: UseCase) -> bool:
    return case.workloads is None or any(fnmatchcase(entrant.workload, pattern) for pattern in case.workloads)


def _why_not_measured(case: UseCase, entrants: Sequence[Entrant]) -> str:
    if not entrants:
        workloads = case.workloads or ("",)
        example = f"servebench -m engine=... workload={workloads[0]}"
        return f"no run of workload {' or '.join(workloads)}; measure one: {example}"
    if any(row.get(case.metric) is not None for entrant in entrants for level in entrant.levels for row in level.rows):
        return ""
    if case.metric in COSTS:
        return _why_no_cost(case.metric, entrants)
    return NO_POWER if case.metric == "energy_j_per_token" else ""


def _why_no_cost(metric: str, entrants: Sequence[Entrant]) -> str:
    """Return what is missing for a cost: GPUs, their price, an SLO, or what was to be paid for."""
    if all(entrant.price_usd_per_hour is None for entrant in entrants):
        gpus = [name for name in dict.fromkeys(entrant.gpu for entrant in entrants) if name and name != "none"]
        example = "such as gpu.price_usd_per_hour=2.5" + (
            " gpu.count=1 for a machine without a GPU" if not gpus else ""
        )
        return f"no run has a price{' of its ' + ' or '.join(gpus) if gpus else ''}: set one, {example}"
    if not any(entrant.gpu_count and entrant.price_usd_per_hour is not None for entrant in entrants):
        return "the runs have a price and nothing to pay for: set gpu.count, such as gpu.count=1 for the machine"
    if metric == "cost_usd_per_mgood" and all(entrant.own_limits is None for entrant in entrants):
        return "no run has an SLO: set one, such as slo=interactive"
    return (
        f"no point of a run with a price has {'a request that met its SLO' if 'good' in metric else 'any throughput'}"
    )


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
        case = replace(case, limits=limits)
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
        return Recommendation(outcome="none qualifies", why="no run can be ranked", **facts)
    if len(ranking) + len(ranked.possible) == 1:
        why = f"no other run than {ranking[0].entrant.name} can be ranked"
        return Recommendation(outcome="only one", why=why, **facts)
    lead = lead_of(ranked, case, rules, with_doubtful=with_doubtful, decided=decided)
    unfair = _why_unfair(ranking, case, unequal)
    fastest = case.measure == "cold_start" and abs(lead.size or 0.0) >= rules.once_margin / (1 + rules.once_margin)
    no_win: Outcome = "different settings" if unfair else "one start each" if fastest else "no clear difference"
    return Recommendation(
        outcome=no_win if unfair or lead.why else "provisional" if lead.provisional else "winner",
        lead=lead.size,
        lead_low=lead.low,
        lead_high=lead.high,
        rival=lead.rival,
        why=unfair or lead.why or lead.provisional,
        one_start=lead.one_start,
        **facts,
    )


def _why_unfair(ranking: Sequence[Score], case: UseCase, unequal: UnequalSettings) -> str:
    """Return which settings of the first and its rivals differ and matter; empty where none do."""
    apart = {
        rival.entrant.name: [one for one in unequal(ranking[0].entrant, rival.entrant, case.across) if one.matters]
        for rival in ranking[1:]
    }
    if not any(apart.values()):
        return ""
    keys = "; ".join(f"{name}: {mattering_keys(found)}" for name, found in apart.items() if found)
    every = {one.key: one for found in apart.values() for one in found}
    return f"{keys}; {how_to_resolve(every.values())}"
