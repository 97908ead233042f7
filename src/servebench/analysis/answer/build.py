"""Makes the answer of some runs: a table for each workload, and all that is to be said below it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from servebench.analysis.answer.leads import find_lead, find_overall, other_differences
from servebench.analysis.answer.model import Answer, AnswerCell, AnswerColumn, FailedRun, NotUsable, WorkloadAnswer
from servebench.analysis.answer.next_steps import next_steps
from servebench.analysis.answer.notes import caveats, inequalities, remarks
from servebench.analysis.decided import StudyDecision
from servebench.analysis.estimate import THROUGHPUT, estimate_level, levels_of, mean_of
from servebench.analysis.recommendation.model import Entrant
from servebench.analysis.recommendation.scores import codes_of_mean
from servebench.analysis.statistics import is_weak_percentile
from servebench.analysis.stored_runs import entrant_of
from servebench.analysis.verdict.levels import RankedLevel
from servebench.analysis.verdict.model import Comparison
from servebench.analysis.warnings.catalog import is_wide, type_of
from servebench.analysis.warnings.disturbed import taker_of
from servebench.contracts.labels import RunLabel, run_labels, setting_text
from servebench.contracts.level import Level
from servebench.contracts.stored import RunData, mapping
from servebench.util.groups import grouped


def answer_of(
    runs: Sequence[RunData],
    comparisons: Sequence[Comparison],
    *,
    name: str = "last",
    words: Sequence[str] = (),
    decision: StudyDecision | None = None,
    earlier: Sequence[RunData] = (),
) -> Answer:
    """Return the answer that runs and their comparisons give. `name` is how a command names the study of these runs, `words` is
    the command that made it, `decision` what it has decided; `earlier` are other stored runs."""
    labels = run_labels(runs)
    entrants = {run.run_id: entrant_of(run, labels[run.run_id].text) for run in runs if run.point_rows}
    groups = grouped(runs, lambda run: run.fact("workload") or "")
    unequal = {each.key: each for one in comparisons for each in one.mattering}.values()
    workloads = [_workload_answer(key, group, labels, entrants, comparisons) for key, group in groups.items()]
    return Answer(
        workloads=tuple(workloads),
        failures=tuple(
            FailedRun(
                label=labels[run.run_id].text,
                standing="unreadable" if run.status == "finished" else run.standing,
                error=run.faults[0]
                if run.status == "finished"
                else run.error
                if run.error and run.error != run.status
                else "",
            )
            for run in runs
            if run.status != "finished" or run.faults
        ),
        inequalities=inequalities(comparisons, labels),
        remarks=remarks(runs, labels),
        caveats=tuple(caveats(runs, workloads, labels, earlier)),
        next_steps=tuple(next_steps(runs, workloads, name, words, decision, unequal=unequal)),
        comparisons=tuple(comparisons),
    )


def _workload_answer(
    workload: str,
    runs: Sequence[RunData],
    labels: Mapping[str, RunLabel],
    entrants: Mapping[str, Entrant],
    comparisons: Sequence[Comparison],
) -> WorkloadAnswer:
    cells: dict[str, dict[Level, AnswerCell]] = {run.run_id: {} for run in runs}
    for run in cells.keys() & entrants:
        cells[run] = {level.level: _cell(level, entrants[run]) for level in entrants[run].levels}
    levels = sorted({level for own in cells.values() for level in own})
    leads = [lead for level in levels if (lead := find_lead(level, cells, labels, comparisons)) is not None]
    # where fairness refuses a verdict, or a run may be better than its void point, the sentence says what was measured, and
    # nothing is marked
    void = {level for own in cells.values() for level, cell in own.items() if cell.verdict == "void"}
    best = {(lead.level, lead.best) for lead in leads if lead.clear and not lead.unequal and lead.level not in void}
    columns = [
        AnswerColumn(
            run_id=run.run_id,
            label=labels[run.run_id].series,
            colour=labels[run.run_id].colour,
            status=run.standing,
            error=run.error,
            cells={
                level: replace(cell, best=(level, labels[run.run_id].series) in best)
                for level in levels
                if (cell := cells[run.run_id].get(level)) is not None
            },
        )
        for run in runs
    ]
    own = [one for one in comparisons if set(one.ids) <= set(cells)]
    measured = [run for run in cells if cells[run]]
    overall = find_overall(measured, labels, own) if len(measured) > 1 and not void else None
    return WorkloadAnswer(
        workload=workload,
        facts=_shared_facts(runs),
        levels=tuple(levels),
        columns=tuple(columns),
        leads=tuple(leads),
        others=tuple(other_differences(leads, own, labels)),
        overall=overall,
        not_usable=_not_usable(runs, labels),
    )


def _not_usable(runs: Sequence[RunData], labels: Mapping[str, RunLabel]) -> NotUsable | None:
    taken = {(labels[run.run_id].series, row.level): row for run in runs for row in run.point_rows if taker_of([row])}
    by, places = taker_of(taken.values()), dict[str, tuple[Level, ...]]()
    for label, level in sorted(taken):
        places[label] = (*places.get(label, ()), level)
    return None if by is None else NotUsable(by=by, places=places)


def _shared_facts(runs: Sequence[RunData]) -> tuple[str, ...]:
    sizes = {
        tuple("" if one is None else setting_text(one) for one in (own.get("input_tokens"), own.get("output_tokens")))
        for own in (mapping(run.config.get("workload")) for run in runs)
    }
    lengths = sizes.pop() if len(sizes) == 1 else ("", "")
    models = {(run.fact("model") or "").rstrip("/").rsplit("/", 1)[-1] for run in runs}
    machines = {run.fact("gpu") or "" for run in runs}
    parts = [f"{lengths[0]} in / {lengths[1]} out" if all(lengths) else ""]
    parts += [next(iter(one)) for one in (models, machines) if len(one) == 1]
    return tuple(part for part in parts if part and part != "none")


def _cell(level: RankedLevel, entrant: Entrant) -> AnswerCell:
    (rows,) = levels_of(level.rows).values()
    pools = any(row.input_throughput_texts_s is not None for row in rows)
    rate, unit = ("input_throughput_texts_s", "texts/s") if pools else (THROUGHPUT, "tok/s")
    found = estimate_level(rows, rate)
    low, high = (found.low, found.high) if found else (None, None)
    names = (rate, "ttft_ms_p50", "ttft_ms_p99", "itl_ms_mean", "e2e_ms_p50")
    value, ttft_ms, ttft_ms_p99, itl_ms, e2e_ms = (mean_of(rows, name) for name in names)
    codes = tuple(code for code in level.doubts if not type_of(code).mark) if level.verdict != "valid" else ()
    wide = is_wide(codes_of_mean(level, entrant))
    return AnswerCell(
        value=value, unit=unit, low=low, high=high, ttft_ms=ttft_ms, ttft_ms_p99=ttft_ms_p99, itl_ms=itl_ms, e2e_ms=e2e_ms,
        few_for_p99=level.verdict != "void" and any(is_weak_percentile(row, "ttft_ms_p99") for row in rows),
        verdict=level.verdict, codes=codes, wide=wide,
    )  # fmt: skip
