"""The recommendation for each use case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from servebench.analysis.answer.leads import row_between
from servebench.analysis.decided import StudyDecision
from servebench.analysis.fairness import unequal_settings
from servebench.analysis.quality.agreement import agreements
from servebench.analysis.recommendation.lead import lead_of
from servebench.analysis.recommendation.model import (
    Entrant,
    LessAccurate,
    Outcome,
    Recommendation,
    Score,
    UseReason,
    UseReasonKind,
)
from servebench.analysis.recommendation.rules import Rules, UseCase
from servebench.analysis.recommendation.scores import rank, what_would_change
from servebench.analysis.stored_runs import entrant_of, of_quality, own_limits
from servebench.analysis.verdict.levels import COSTS
from servebench.analysis.verdict.model import Comparison, ComparisonRow
from servebench.contracts.labels import RunLabel, run_labels
from servebench.contracts.stored import RunData
from servebench.util.groups import grouped


@dataclass(frozen=True)
class Adviser:
    """Recommends one of some runs for each use case and each setup (model, GPU, workload) that they measured.

    `varying` are settings that differ on purpose, `labels` those of a larger view. The lead of two runs that `comparisons`
    compare at the same level is theirs, so that one number has one interval; over several starts, or with a `decision` of
    their study, so is whether it is a win.
    """

    runs: Sequence[RunData]
    rules: Rules
    with_doubtful: bool = False
    varying: str | None = None
    labels: Mapping[str, RunLabel] | None = None
    comparisons: Sequence[Comparison] = ()
    decision: StudyDecision | None = None

    def recommendations(self) -> list[Recommendation]:
        """Return them, use case by use case."""
        labels = self.labels or run_labels(self.runs)
        entrants = [entrant_of(run, labels[run.run_id].text) for run in self.runs]
        return [one for case in self.rules.use_cases.values() for one in self._of_case(case, entrants)]

    def _of_case(self, case: UseCase, entrants: Sequence[Entrant]) -> Iterator[Recommendation]:
        patterns = ("*",) if case.workloads is None else case.workloads
        taking_part = [one for one in entrants if any(fnmatchcase(_fact(one, "workload"), own) for own in patterns)]
        if (why := _why_not_measured(case, taking_part)) is not None:
            yield Recommendation(use_case=case, group="", outcome="not measured", why=why)
            return
        for name, group in grouped(taking_part, lambda entrant: _group(entrant, case)).items():
            found = _as_compared(self._recommend(case, name, group), self.comparisons)
            yield replace(found, quality=tuple(_less_accurate(found.ranking)))

    def _recommend(self, case: UseCase, group: str, entrants: Sequence[Entrant]) -> Recommendation:
        own = {own_limits(entrant.run) for entrant in entrants}
        if case.own_slo and len(own) == 1 and (limits := own.pop()) is not None:
            case = case.model_copy(update={"slo": limits})
        ranked, rules = rank(case, entrants), self.rules
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
        lead = lead_of(ranked, case, rules, with_doubtful=self.with_doubtful, decided=self._decided)
        unfair = self._why_unfair(ranking, case)
        fastest = case.measure == "cold_start" and abs(lead.size or 0.0) >= rules.once_margin / (1 + rules.once_margin)
        no_best: Outcome = "one start each" if fastest else "no clear difference"
        return Recommendation(
            outcome=no_best if lead.why else "provisional" if lead.provisional or unfair else "best",
            lead=lead.size,
            interval=lead.interval,
            rival=lead.rival,
            why=lead.why or lead.provisional or unfair,
            unequal=unfair,
            one_start=lead.one_start,
            **facts,
        )

    def _why_unfair(self, ranking: Sequence[Score], case: UseCase) -> UseReason | None:
        keys = [f"{group}.*" for group in case.across] + (["machine.*"] if "gpu" in case.across else [])
        on_purpose = ",".join([*keys, *([self.varying] if self.varying else [])])
        first, *rivals = (score.entrant.run for score in ranking)
        apart = [unequal_settings(first, run, on_purpose) for run in rivals]
        settings = {one.key: one for own in apart for one in own if one.matters}
        return UseReason(kind=UseReasonKind.UNEQUAL, settings=tuple(settings.values())) if settings else None

    def _decided(self, first: Score, second: Score) -> ComparisonRow | None:
        row = _compared_row(first, second, self.comparisons)
        if row is None or self.decision is None:
            known = row is not None and row.p_corrected is not None and (row.competes or not row.doubts)
            return row if known else None
        ids = {first.entrant.run.run_id, second.entrant.run.run_id}
        return row if row.looked and any(ids == set(one.ids) for one in self.decision.pairs) else None


def _less_accurate(ranking: Sequence[Score]) -> Iterator[LessAccurate]:
    for first, other in ((ranking[0].entrant, score.entrant) for score in ranking[1:]):
        for agreement in of_quality(agreements, other.run, first.run):
            if agreement.second_is_worse:
                yield LessAccurate(first.name, other.name, agreement.swapped())
            elif agreement.swapped().second_is_worse:
                yield LessAccurate(other.name, first.name, agreement)


def _why_not_measured(case: UseCase, entrants: Sequence[Entrant]) -> UseReason | None:
    if not entrants:
        return UseReason(kind=UseReasonKind.NO_RUN, names=case.workloads or ("",))
    if any(row.get(case.metric) is not None for entrant in entrants for level in entrant.levels for row in level.rows):
        return None
    if case.metric in COSTS:
        return _why_no_cost(case.metric, entrants)
    return UseReason(kind=UseReasonKind.NO_POWER) if case.metric == "energy_j_per_token" else None


def _why_no_cost(metric: str, entrants: Sequence[Entrant]) -> UseReason:
    if all(price is None for price, _ in (entrant.gpus for entrant in entrants)):
        gpus = dict.fromkeys(_fact(entrant, "gpu") for entrant in entrants)
        return UseReason(kind=UseReasonKind.NO_PRICE, names=tuple(name for name in gpus if name not in ("", "none")))
    kind = UseReasonKind.NO_GOOD_REQUEST if "good" in metric else UseReasonKind.NO_THROUGHPUT
    if not any(count and price is not None for price, count in (entrant.gpus for entrant in entrants)):
        kind = UseReasonKind.NOTHING_TO_PAY
    elif metric == "cost_usd_per_mgood" and all(own_limits(entrant.run) is None for entrant in entrants):
        kind = UseReasonKind.NO_SLO
    return UseReason(kind=kind)


def _fact(entrant: Entrant, name: str) -> str:
    return entrant.run.fact(name) or ""


def _group(entrant: Entrant, case: UseCase) -> str:
    parts = {name: _fact(entrant, name) for name in ("model", "gpu", "workload")}
    # the energy of a processor is not that of a GPU
    rapl = any(row.energy_source == "rapl" for level in entrant.levels for row in level.rows)
    parts |= {"meter": "rapl"} if rapl and case.metric == "energy_j_per_token" else {}
    return " · ".join(value for name, value in parts.items() if name not in case.across and value != "none")


def _compared_row(first: Score, second: Score, comparisons: Sequence[Comparison]) -> ComparisonRow | None:
    """Return the row of a metric that two runs have at one level, the first as the candidate. A cost per token of two runs with
    one price is their throughput."""
    a, b = first.entrant, second.entrant
    if first.at != second.at:
        return None
    metric = COSTS.get(first.metric, first.metric) if a.gpus == b.gpus else first.metric
    return row_between(a.run.run_id, b.run.run_id, first.at, comparisons, metric)


def _as_compared(found: Recommendation, comparisons: Sequence[Comparison]) -> Recommendation:
    if len(found.ranking) < 2 or found.ranking[0].at != found.ranking[1].at:
        return found
    first, second = found.ranking[:2]
    ids = first.entrant.run.run_id, second.entrant.run.run_id
    row = row_between(*ids, first.at, comparisons, first.metric)
    if row is None or row.difference is None:
        return found
    if found.outcome in ("best", "provisional") and not row.difference.leaves_out_zero:
        # the interval that decided is the one to show
        return found
    return replace(found, lead=row.effect, interval=(row.difference.low, row.difference.high))
