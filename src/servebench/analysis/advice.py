"""The recommendation for each use case: the lead of the first of its ranking, and whether that makes it the best."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from servebench.analysis.answer.leads import row_between
from servebench.analysis.decided import StudyDecision
from servebench.analysis.estimate import COSTS
from servebench.analysis.fairness import unequal_settings
from servebench.analysis.quality.agreement import agreements
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
from servebench.analysis.recommendation.scores import LATENCIES, Ranking, rank, what_would_change
from servebench.analysis.stored_runs import entrant_of, of_quality, own_limits
from servebench.analysis.verdict.levels import RankedLevel, lead_difference, metric_value
from servebench.analysis.verdict.model import EQUAL, FASTER, Comparison, ComparisonRow
from servebench.analysis.verdict.starts import STARTS_MIN
from servebench.contracts.estimate import CONFIDENCE, Interval
from servebench.contracts.labels import RunLabel, run_labels
from servebench.contracts.stored import RunData
from servebench.util.groups import grouped

BY_STARTS = ("output_throughput_tok_s", "cost_usd_per_mtok")
"""Metrics by which starts of one engine differ as the prior of the model takes it; latencies differ by more, and so do requests
within an SLO."""


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
        ranked = rank(case, entrants)
        ranking = ranked.scores
        facts: dict[str, Any] = {
            "use_case": case,
            "group": group,
            "ranking": ranking,
            "missing": ranked.missing,
            "changes": tuple(what_would_change(case, entrants, ranking, margin=self.rules.margin)),
        }
        if not ranking:
            return Recommendation(outcome="none qualifies", why=UseReason(kind=UseReasonKind.NONE_RANKED), **facts)
        if len(ranking) + len(ranked.possible) == 1:
            why = UseReason(kind=UseReasonKind.ONLY_ONE, run=ranking[0].entrant.name)
            return Recommendation(outcome="only one", why=why, **facts)
        return self._with_lead(case, ranked, facts)

    def _with_lead(self, case: UseCase, ranked: Ranking, facts: Mapping[str, Any]) -> Recommendation:
        """The recommendation with the lead of the first over the second, and the first reason against it over all other entrants.
        It has no size where the second may reach more at a level that has no point."""
        first, rivals = ranked.scores[0], [*ranked.scores[1:], *ranked.possible]
        # with several rivals each interval is wider (Bonferroni), so that "best of all" is as sure as it says
        confidence = 1 - (1 - CONFIDENCE) / len(rivals)
        second, once_margin = rivals[0], self.rules.once_margin
        unknown = {rival.entrant.name: why for rival in rivals if (why := _unmeasured(rival, case)) is not None}
        reasons, one_start = list(unknown.values()), False
        for rival in rivals:
            row = self._decided(first, rival)
            if row is None:
                found = lead_difference(first.metric, first.level, rival.level or rival.best, confidence)
                one_start = one_start or found is None or min(found.method.starts) < STARTS_MIN
                reasons += self._objections(first, rival, case, confidence)
            else:
                reasons += self._objections_to_verdict(first, rival, row)
        why, unfair = next(iter(reasons), None), self._why_unfair(ranked.scores, case)
        lead: dict[str, Any] = {}
        provisional = None
        if second.entrant.name not in unknown:
            size = first.value / second.value - 1 if second.value else 0.0
            interval = _interval(first.metric, first.level, second.level or second.best)
            lead = {"lead": size, "interval": interval, "one_start": one_start}
            provisional = None if self.with_doubtful else next(_provisional(first, rivals, case, confidence), None)
        once = case.measure == "cold_start" and abs(lead.get("lead", 0.0)) >= once_margin / (1 + once_margin)
        no_best: Outcome = "one start each" if once else "no clear difference"
        return Recommendation(
            outcome=no_best if why is not None else "provisional" if provisional or unfair else "best",
            rival=second.entrant.name,
            why=why or provisional or unfair,
            unequal=unfair,
            **lead,
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
        """What a comparison over several starts has found of the first against the second; None where it gives no verdict."""
        a, b = first.entrant, second.entrant
        # a cost per token of two runs with one price is their throughput
        metric = COSTS.get(first.metric, first.metric) if a.gpus == b.gpus else first.metric
        same = first.at == second.at
        row = row_between(a.run.run_id, b.run.run_id, first.at, self.comparisons, metric) if same else None
        if row is None or self.decision is None:
            known = row is not None and row.p_corrected is not None and (row.competes or not row.doubts)
            return row if known else None
        ids = {a.run.run_id, b.run.run_id}
        return row if row.looked and any(ids == set(one.ids) for one in self.decision.pairs) else None

    def _objections(self, first: Score, rival: Score, case: UseCase, confidence: float) -> Iterator[UseReason]:
        """Why the first is not better than a rival, with undecided levels taken against the first and for the rival."""
        if case.measure == "cold_start":
            size = rival.value / first.value - 1 if first.value else 0.0
            small = size < self.rules.once_margin
            name, share = (rival.entrant.name, _shown(size, case)) if small else ("", 0.0)
            yield UseReason(kind=UseReasonKind.ONE_COLD_START, rival=name, share=share)
        elif first.worst is None:
            yield UseReason(kind=UseReasonKind.SLO_UNDECIDED, run=first.entrant.name, cause=first.undecided)
        elif rival.best is not None:
            yield from self._objections_to_lead((first, first.worst), (rival, rival.best), case, confidence)

    def _objections_to_verdict(self, first: Score, rival: Score, row: ComparisonRow) -> Iterator[UseReason]:
        """Why the first is not better than a rival at a level at which a comparison over several starts gives the verdict."""
        name, metric, effect = rival.entrant.name, row.metric.name, abs(row.effect or 0.0)
        if first.worst is not first.level or rival.best is not rival.level:
            yield _by_slo_point(first, rival)
        elif row.result is EQUAL:
            yield UseReason(kind=UseReasonKind.AT_MOST, rival=name, metric=metric, share=row.bound or 0.0)
        elif row.result is not FASTER:
            ends = (row.difference.low, row.difference.high) if row.difference and row.may_be_chance else None
            yield UseReason(kind=UseReasonKind.NOT_DECIDED, rival=name, metric=metric, interval=ends)
        elif effect < self.rules.margin:
            yield UseReason(kind=UseReasonKind.BELOW_MARGIN, rival=name, share=effect, limit=self.rules.margin)

    def _objections_to_lead(
        self, leader: tuple[Score, RankedLevel], other: tuple[Score, RankedLevel], case: UseCase, confidence: float
    ) -> Iterator[UseReason]:
        (first, worst), (rival, best), name = leader, other, other[0].entrant.name
        own, theirs = metric_value(case.metric, worst), metric_value(case.metric, best)
        assert own is not None
        assert theirs is not None
        size = (theirs / own if case.lower_is_better else own / theirs) - 1
        shown, rules = _shown(size, case), self.rules
        if size < rules.margin and (worst is not first.level or best is not rival.level):
            yield _by_slo_point(first, rival)
            return
        found = lead_difference(case.metric, worst, best, confidence)
        by_starts = case.metric in BY_STARTS or size >= rules.once_margin
        if found is None:
            if size < rules.once_margin:
                yield UseReason(kind=UseReasonKind.ONE_MEASUREMENT, rival=name, share=shown)
        elif min(found.method.starts) < STARTS_MIN and not (found.leaves_out_zero and by_starts):
            yield UseReason(kind=UseReasonKind.STARTS_MAY_DIFFER, run=first.entrant.name, rival=name, share=shown)
        elif not found.leaves_out_zero:
            several = confidence if confidence > CONFIDENCE else 0.0
            ends = (found.low, found.high)
            yield UseReason(kind=UseReasonKind.INCLUDES_ZERO, rival=name, interval=ends, share=several)
        elif size < rules.margin:
            yield UseReason(kind=UseReasonKind.BELOW_MARGIN, rival=name, share=shown, limit=rules.margin)


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
    if case.metric not in COSTS:
        return UseReason(kind=UseReasonKind.NO_POWER) if case.metric == "energy_j_per_token" else None
    priced = [entrant for entrant in entrants if entrant.gpus[0] is not None]
    if not priced:
        gpus = dict.fromkeys(_fact(entrant, "gpu") for entrant in entrants)
        return UseReason(kind=UseReasonKind.NO_PRICE, names=tuple(name for name in gpus if name not in ("", "none")))
    kind = UseReasonKind.NO_GOOD_REQUEST if "good" in case.metric else UseReasonKind.NO_THROUGHPUT
    if not any(entrant.gpus[1] for entrant in priced):
        kind = UseReasonKind.NOTHING_TO_PAY
    elif case.metric == "cost_usd_per_mgood" and all(own_limits(entrant.run) is None for entrant in entrants):
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


def _by_slo_point(first: Score, rival: Score) -> UseReason:
    cause = first.undecided if first.worst is not first.level else rival.undecided
    return UseReason(kind=UseReasonKind.BY_SLO_POINT, rival=rival.entrant.name, cause=cause)


def _shown(size: float, case: UseCase) -> float:
    """Return a lead as it is shown, as a share of the rival's value: 80 ms are 20% less than 100 ms, which are 25% more."""
    return size / (1 + size) if case.lower_is_better else size
