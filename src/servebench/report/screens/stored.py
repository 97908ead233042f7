"""What `servebench show` shows of a run or a study."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from servebench.analysis.conclude import Conclusions
from servebench.analysis.limits.model import LimitFinding, LimitReason
from servebench.analysis.quality.summary import summaries
from servebench.analysis.slow_starts import OwnSlowStarts
from servebench.analysis.stored_runs import of_quality
from servebench.analysis.warnings.catalog import explain, type_of
from servebench.analysis.warnings.disturbed import taker_of
from servebench.contracts.level import levels_in_words
from servebench.contracts.stored import RunData, StudyData, mapping
from servebench.report.blocks import Block, Line, items
from servebench.report.content import quality_lines
from servebench.report.export.conclusions import as_plain, finding_as_plain, plain
from servebench.report.screens.listing import run_facts
from servebench.report.screens.points import points_blocks, repeats_blocks
from servebench.report.wording.answer import slow_starts_text
from servebench.report.wording.comparison import not_usable_text
from servebench.report.wording.limits import action_text, fact_text, statement_of
from servebench.store.files import from_here
from servebench.util.figures import local_time, number, seconds
from servebench.util.safe_text import clean_line
from servebench.util.short_id import short_id


def run_blocks(
    run: RunData, label: str, slow_starts: OwnSlowStarts | None, prior: str | None, *, complete: bool
) -> Iterator[Block]:
    """Yield a run, by its label in its study: its facts, points, the `prior` of their intervals, the slow starts of its engine,
    quality and warnings, with their remedies where `complete`."""
    rows = run.point_rows
    yield Line.of(f"{short_id(run.study_id)} {label}", tone="strong")
    yield from _fact_lines(_header(run))
    if rows:
        yield from points_blocks([("", row) for row in rows], "show")
        yield from repeats_blocks([("", rows)], "over repeats")
    if prior is not None:
        yield Line.of(prior)
    if slow_starts is not None:
        yield Line.of(f"{slow_starts_text(slow_starts)}.", tone="warn")
    for code in dict.fromkeys(code for row in rows for code in row.doubts):
        where = ", ".join(dict.fromkeys(str(row.level) for row in rows if code in row.doubts))
        yield Line.of(f"{code} (at {where}): {explain(code) if complete else type_of(code).meaning}")
    if (taker := taker_of(rows)) is not None:
        yield Line.of(not_usable_text(taker), tone="warn")
    yield items(quality_lines(of_quality(summaries, run)))
    yield items(f"unreadable: {fault}" for fault in run.faults)


def run_data(
    run: RunData,
    label: str,
    times: Mapping[str, Any],
    limits: Sequence[LimitFinding],
    slow_starts: OwnSlowStarts | None,
) -> dict[str, Any]:
    """Return a run as plain data, with where the time of its requests goes, what limits it, and which starts are slow."""
    found: dict[str, Any] = {"times": times, "limits": [finding_as_plain(one) for one in limits]}
    found["slow_starts"] = None if slow_starts is None else plain(slow_starts)
    rows = [row.as_dict() for row in run.point_rows]
    return {"label": label, **run_facts(run), "manifest": dict(run.manifest), "rows": rows, **found}


def _header(run: RunData) -> dict[str, str | None]:
    start = mapping(run.manifest.get("cold_start"))
    shared = " (shared)" if start.get("shared") else ""
    version, launch = run.fact("engine_version"), run.fact("launch")
    cold = None if start.get("seconds") is None else f"cold start {number(start['seconds'])} s{shared}"
    engine = " ".join(filter(None, (run.fact("engine"), version if version != launch else "", f"({launch})")))
    gpu = run.fact("gpu") if run.fact("gpu") != "none" else None
    return {
        "folder": from_here(str(run.path)),
        "command": run.command or None,
        "status": ", ".join(filter(None, (run.standing, f"started {local_time(run.started_s)}", cold, run.error))),
        "engine": ", ".join(filter(None, (engine, gpu, run.fact("model"), run.fact("workload")))),
        "measured by": run.foreign,
    }


def _fact_lines(facts: Mapping[str, str | None]) -> Iterator[Block]:
    for name, value in facts.items():
        if value:
            yield Line.of(f"{name + ':':<12} {clean_line(value)}")


def study_blocks(study: StudyData) -> Iterator[Block]:
    """Yield the facts of a study."""
    started, ended = study.state.get("started_s"), study.state.get("ended_s")
    yield Line.of(short_id(study.study_id), tone="strong")
    facts = {"folder": from_here(str(study.path)), "status": study.status, "command": study.command or None}
    yield from _fact_lines({**facts, "took": seconds(ended - started) if started and ended else None})


def study_data(study: StudyData, concluded: Conclusions | None) -> dict[str, Any]:
    """Return a study as plain data: its state, its runs and its conclusions."""
    state = {key: value for key, value in study.state.items() if key not in ("seal", "pid", "process", "ticket")}
    facts = {"study": study.study_id, "path": str(study.path), **state, "id": short_id(study.study_id)}
    return {**facts, "runs": [run_facts(run) for run in study.runs], **as_plain(concluded)}


def limit_blocks(found: Sequence[LimitFinding], *, complete: bool, verbose: bool = False) -> Iterator[Block]:
    """Yield the finding of each level, or of the busiest level of each limit unless `complete`, and what to try first; `verbose`
    adds the evidence and everything to try."""
    first = next((one for one in found if one.reason is LimitReason.NONE), None)
    busiest = {one.reason: one for one in found}
    if not complete and first is not None:
        none = levels_in_words(one.level for one in found if one.reason is first.reason)
        yield Line.of(f"limit at {none}: no single limit found")
        del busiest[first.reason]
    for one in found if complete else busiest.values():
        yield Line.of(f"limit at {one.level.words}: {statement_of(one, unknown=one is first)}")
        if verbose:
            yield from (Line.of(fact_text(fact), indent=2) for fact in one.evidence)
        for proposal in one.proposals[: None if verbose else 1]:
            setting = f" [{proposal.override}]" if verbose and proposal.override else ""
            cost = f"; it may cost: {proposal.cost}" if complete else ""
            yield Line.of(f"try: {action_text(proposal)}{setting}{cost}", indent=2)
