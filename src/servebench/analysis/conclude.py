"""What stored runs say: the only place that puts estimates, comparisons, decisions and recommendations together.

Each screen, page, gate and JSON document shows Conclusions, so that two of them cannot show two results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from servebench.analysis.answer.build import answer_of
from servebench.analysis.answer.model import Answer
from servebench.analysis.decided import StudyDecision, as_decided, decide_study
from servebench.analysis.pairing import RunPair, compare_speed, pairs_within
from servebench.analysis.quality.agreement import agreements
from servebench.analysis.quality.parity import parities
from servebench.analysis.stored_runs import of_quality, without_damaged
from servebench.analysis.verdict.compare import MARGIN
from servebench.analysis.verdict.model import Comparison
from servebench.contracts.labels import run_labels
from servebench.contracts.stored import RunData, StudyData, is_number
from servebench.util.errors import StoreError

if TYPE_CHECKING:
    from servebench.analysis.limits.model import LimitFinding
    from servebench.analysis.recommendation.model import Recommendation
    from servebench.analysis.recommendation.rules import Rules


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to conclude, and what to leave out because it takes time.

    `margin` (a share) replaces MARGIN and the margins of studies, `varying` are settings that differ on purpose, `with_doubtful`
    accepts what warnings make provisional. Without `rules` nothing is recommended; `answers` compares what models answered,
    `limits` finds what limits the engines. `name` is how a command names the study of these runs, `words` the command that made
    it.
    """

    margin: float | None = None
    varying: str | None = None
    with_doubtful: bool = False
    rules: Rules | None = None
    answers: bool = False
    limits: bool = False
    name: str = "last"
    words: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Conclusions:
    """All that some runs say.

    `comparisons` are of pairs (of speed; of answers, too, where the options say so), as the studies with `study.until=decided`
    have decided them, `decisions` are those of these studies. `recommendations` and `limits` (with the label of the run) are
    None where the options leave them out.
    """

    answer: Answer
    comparisons: tuple[Comparison, ...] = ()
    decisions: tuple[StudyDecision, ...] = ()
    recommendations: tuple[Recommendation, ...] | None = None
    limits: tuple[tuple[str, LimitFinding], ...] | None = None


def conclude(
    runs: Sequence[RunData],
    studies: Sequence[StudyData] = (),
    options: Options = Options(),
    *,
    pairs: Sequence[RunPair] | None = None,
    earlier: Sequence[RunData] = (),
) -> Conclusions:
    """Return what runs say; of one whose requests cannot be read, that. Raises StoreError where nothing can be concluded.

    `studies` are those whose own decisions count, `pairs` (baseline, candidate) what is compared instead of all runs of a
    workload, and `earlier` other stored runs: those of the same set-ups show by how much starts differ, and which are slow.
    """
    try:
        return _conclude(runs, studies, options, pairs, earlier)
    except StoreError:
        whole = {run.run_id: without_damaged(run) for run in (*earlier, *runs)}
        return _conclude(
            [whole[run.run_id] for run in runs],
            [replace(one, runs=tuple(whole.get(run.run_id, run) for run in one.runs)) for one in studies],
            options,
            None if pairs is None else [(whole[a.run_id], whole[b.run_id]) for a, b in pairs],
            [whole[run.run_id] for run in earlier],
        )


def _conclude(
    runs: Sequence[RunData],
    studies: Sequence[StudyData],
    options: Options,
    pairs: Sequence[RunPair] | None,
    earlier: Sequence[RunData],
) -> Conclusions:
    labels, measured = run_labels(runs), [run for run in runs if run.point_rows]
    listed = pairs_within(measured) if pairs is None else list(pairs)
    decisions = [
        one
        for study in studies
        if (one := decide_study(study, earlier, margin=options.margin, varying=options.varying)) is not None
    ]
    compared = compare_speed(
        listed,
        margin=options.margin or MARGIN,
        with_doubtful=options.with_doubtful,
        varying=options.varying,
        earlier=earlier,
        labels=labels,
    )
    for each in decisions:
        compared = [as_decided(one, each) for one in compared]
    decision = decisions[0] if len(decisions) == 1 else None
    answer = answer_of(runs, compared, name=options.name, words=options.words, decision=decision, earlier=earlier)
    if len(studies) == 1 and {run.study_id for run in runs} <= {studies[0].study_id}:
        found_s = (studies[0].state.get(name) for name in ("started_s", "ended_s", "expected_s"))
        began_s, ended_s, expected_s = (one if is_number(one) else None for one in found_s)
        took_s = None if began_s is None or ended_s is None or ended_s < began_s else ended_s - began_s
        answer = replace(answer, expected_s=expected_s, took_s=took_s)
    found = Conclusions(
        answer=answer,
        comparisons=tuple(
            replace(one, agreements=tuple(of_quality(agreements, a, b)), parities=tuple(of_quality(parities, a, b)))
            if options.answers
            else one
            for one, (a, b) in zip(compared, listed, strict=True)
        ),
        decisions=tuple(decisions),
    )
    if options.limits:
        from servebench.analysis.limits import findings_of, summary_of

        limits = tuple(findings_of(runs))
        found = replace(found, limits=limits, answer=replace(answer, limits=summary_of(runs, limits)))
    if options.rules is not None and not measured:
        found = replace(found, recommendations=())
    elif options.rules is not None:
        from servebench.analysis.advice import Adviser

        how = options.rules, options.with_doubtful, options.varying
        adviser = Adviser(measured, *how, labels, found.comparisons, decision)
        found = replace(found, recommendations=tuple(adviser.recommendations()))
    return found
