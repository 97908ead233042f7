"""Recommendations for stored runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from servebench.analysis.answer.leads import row_between
from servebench.analysis.decided import StudyDecision
from servebench.analysis.fairness import SettingDifference, unequal_settings
from servebench.analysis.recommendation.model import Entrant, LessAccurate, Recommendation, Score
from servebench.analysis.recommendation.recommend import recommend
from servebench.analysis.recommendation.rules import Rules
from servebench.analysis.stored_runs import SamplesOf, entrant_of, quality_agreements, samples_of
from servebench.analysis.verdict.levels import COSTS
from servebench.analysis.verdict.model import Comparison, ComparisonRow
from servebench.contracts.labels import RunLabel, run_labels
from servebench.contracts.stored import RunData


def recommend_runs(
    runs: Sequence[RunData],
    rules: Rules,
    *,
    with_doubtful: bool = False,
    varying: str | None = None,
    labels: Mapping[str, RunLabel] | None = None,
    comparisons: Sequence[Comparison] = (),
    decision: StudyDecision | None = None,
    samples: SamplesOf = samples_of,
) -> list[Recommendation]:
    """Return the recommendations of the rules for these runs.

    `varying` are settings that differ on purpose, `labels` those of a larger view. The lead of two runs that `comparisons`
    compare at the same level is theirs, so that one number has one interval; over several starts, or with a `decision` of
    their study, so is whether it is a win.
    """
    names = {key: label.text for key, label in (labels or run_labels(runs)).items()}
    by_name = {names[run.run_id]: run for run in runs}

    def unequal(a: Entrant, b: Entrant, across: Sequence[str]) -> Sequence[SettingDifference]:
        keys = [f"{group}.*" for group in across] + (["machine.*"] if "gpu" in across else [])
        on_purpose = ",".join([*keys, *([varying] if varying else [])])
        return unequal_settings(by_name[a.name], by_name[b.name], on_purpose)

    def decided(first: Score, second: Score) -> ComparisonRow | None:
        row = _compared_row(first, second, comparisons)
        if decision is None:
            return row if row is not None and row.p_corrected is not None and row.competes else None
        ids = {first.entrant.run_id, second.entrant.run_id}
        paired = any(ids == set(one.ids) for one in decision.pairs)
        return row if paired and row is not None and row.looked else None

    found = recommend(
        [entrant_of(run, names[run.run_id], samples) for run in runs],
        rules,
        unequal=unequal,
        with_doubtful=with_doubtful,
        decided=decided,
    )
    found = [_as_compared(one, comparisons) for one in found]
    return [replace(one, quality=_less_accurate(one, by_name)) for one in found]


def _compared_row(first: Score, second: Score, comparisons: Sequence[Comparison]) -> ComparisonRow | None:
    """Return the row of a metric that two runs have at one level, the first as the candidate. A cost per token of two runs with
    one price is their throughput."""
    a, b = first.entrant, second.entrant
    if first.at != second.at:
        return None
    priced = (a.price_usd_per_hour, a.gpu_count) == (b.price_usd_per_hour, b.gpu_count)
    metric = COSTS.get(first.metric, first.metric) if priced else first.metric
    return row_between(a.run_id, b.run_id, first.at, comparisons, metric)


def _as_compared(found: Recommendation, comparisons: Sequence[Comparison]) -> Recommendation:
    if len(found.ranking) < 2 or found.ranking[0].at != found.ranking[1].at:
        return found
    first, second = found.ranking[:2]
    row = row_between(first.entrant.run_id, second.entrant.run_id, first.at, comparisons, first.metric)
    if row is None or row.difference is None:
        return found
    if found.outcome in ("best", "provisional") and not row.difference.leaves_out_zero:
        # the interval that decided is the one to show
        return found
    return replace(found, lead=row.effect, interval=(row.difference.low, row.difference.high))


def _less_accurate(found: Recommendation, runs: Mapping[str, RunData]) -> tuple[LessAccurate, ...]:
    notes = []
    for score in found.ranking[1:]:
        first, other = found.ranking[0].entrant.name, score.entrant.name
        for agreement in quality_agreements(runs[other], runs[first]):
            if agreement.second_is_worse:
                notes.append(LessAccurate(first, other, agreement.swapped()))
            elif agreement.swapped().second_is_worse:
                notes.append(LessAccurate(other, first, agreement))
    return tuple(notes)
