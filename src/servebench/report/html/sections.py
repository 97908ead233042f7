"""The contents of the page's sections on conclusions: comparison, warnings and how the runs were made."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from servebench.analysis.limits import RUNS_MAX
from servebench.analysis.warnings.catalog import explain
from servebench.contracts.level import Level
from servebench.contracts.stored import RunData, mapping
from servebench.report.html.elements import LOOKS, Cells, Label, Table
from servebench.report.html.model import Page, RunPage
from servebench.report.terminal.tables import local_time
from servebench.report.wording import comparison as texts
from servebench.report.wording.limits import action_text, fact_text, statement_of
from servebench.util.figures import change, number, seconds

COMPARISON_NOTE = (
    "Change from baseline to candidate with its interval over starts of the engine. With one start each the interval is that "
    "of these two starts, and there is no verdict on the engines. Each interval is that of its row alone, while verdicts allow "
    "for the number of rows (corrected p-values), so a change whose interval leaves out 0 may still be chance. Points that "
    "are not valid do not compete and are in brackets."
)

LIMITS_HEAD = ("run", "load", "limit", "evidence", "what to try")

Section = tuple[str, Any] | None
"""The macro of a section and its content."""


def comparison(data: Page) -> Section:
    """Return the rows of each comparison."""
    if not data.comparisons and not data.unjudged:
        return None
    shown = []
    for one in data.comparisons:
        rows: list[Cells] = []
        for row in one.rows:
            *cells, verdict = texts.cells_of(row)
            look = LOOKS.get(row.result, "plain") if row.competes else "plain"
            rows.append([*cells, Label(verdict, look, texts.text_of(row.reasons))])
        shown.append(
            {
                "title": f"{one.candidate} vs {one.baseline}",
                "result": replace(Label.of(one.result), text=texts.result_of(one)),
                "summary": texts.summary_of(one),
                "note": texts.starts_note(one),
                "table": Table("Each metric and load", texts.HEADINGS, rows, left=(1,), prose=(5,)),
            }
        )
    return "comparison", {"undecided": data.unjudged, "comparisons": shown, "note": COMPARISON_NOTE}


def fairness(data: Page) -> Section:
    """Return the settings that compared runs do not share."""
    if not data.comparisons:
        return None
    rows: list[Cells] = [
        [
            one.name,
            "; ".join(f"{value}: {', '.join(names)}" for value, names in one.values.items()),
            Label("matters", "bad") if one.matters else Label("no", "plain"),
            one.reason,
        ]
        for one in data.answer.inequalities
    ]
    if not rows:
        return "text", "All settings are the same."
    return "plain_table", Table(
        "Settings that differ", ("setting", "values", "matters", "why"), rows, prose=(0, 1, 3), left=(2,)
    )


def warnings(data: Page) -> Section:
    """Return each warning with what it means, what to do, and where it occurs."""
    rows = [[one.code, explain(one.code), one.where] for one in data.answer.remarks]
    graded: dict[str, list[str]] = {}
    for one in data.quality:
        for doubt in one.result.doubts:
            graded.setdefault(doubt.code, []).append(f"{one.run}, {one.result.benchmark} at {one.result.at}")
    rows += [[code, explain(code), ", ".join(dict.fromkeys(places))] for code, places in graded.items()]
    if not rows:
        return ("text", "None: every point is valid.") if any(one.rows for one in data.runs) else None
    return "plain_table", Table(
        "Warnings and remedies", ("warning", "what it means and what to do", "where"), rows, prose=(1, 2)
    )


def limits(data: Page) -> Section:
    """Return what limits each run at each load, on what evidence, and what to try."""
    levels: dict[tuple[str, ...], list[Level]] = {}
    for run, one in data.findings:
        evidence = "; ".join(fact_text(fact) for fact in one.evidence)
        proposals = "; ".join(f"{action_text(proposal)} (may cost: {proposal.cost})" for proposal in one.proposals)
        key = (run, f"{statement_of(one)} [{one.code}]", evidence, proposals)
        levels.setdefault(key, []).append(one.level)
    rows = [[run, _levels_in_words(at), *rest] for (run, *rest), at in levels.items()]
    left = sum(bool(run.rows) for run in data.runs) - RUNS_MAX
    if rows and left > 0:
        rows.append([f"{left} more", "", "'servebench show RUN' has those of each run", "", ""])
    kept = [index for index, _ in enumerate(LIMITS_HEAD) if any(row[index] for row in rows)]
    head = [LIMITS_HEAD[index] for index in kept]
    cells = [[row[index] for index in kept] for row in rows]
    return ("plain_table", Table("Limits", head, cells, left=(0, 1), prose=(2, 3, 4))) if rows else None


def _levels_in_words(levels: Sequence[Level]) -> str:
    """Return load levels with one unit: `1, 4 and 16 users`."""
    *first, last = levels
    more = f"{', '.join(level.number for level in first)} and " if first else ""
    return more + last.words


def published(data: Page) -> Section:
    """Return the published numbers for the same setup."""
    rows = [
        [
            one.run,
            str(one.level),
            one.metric,
            f"{number(one.own)} {one.unit}",
            f"{number(one.published)} {one.unit}",
            change(one.difference),
            f"{one.source}; {one.note}" if one.note else one.source,
        ]
        for one in data.published
    ]
    head = ("run", "load", "metric", "measured", "published", "difference", "source")
    return ("plain_table", Table("Published numbers", head, rows, left=(0, 2), prose=(6,))) if rows else None


def commands(data: Page) -> Section:
    """Return the commands and the machine behind each run."""
    study = data.command
    return "commands", {"study": study, "runs": [_made_by(one) for one in data.runs]}


def _made_by(one: RunPage) -> dict[str, Any]:
    run, manifest = one.run, one.run.manifest
    command = mapping(manifest.get("command"))
    argv = [str(word) for word in command.get("argv") or ()]
    variables = [f"{name}={shlex.quote(str(value))}" for name, value in mapping(command.get("env")).items()]
    repeatable = run.config and not run.foreign
    return {
        "title": f"{one.name}: {run.title}",
        "facts": _machine_facts(run, manifest),
        "engine": " ".join([*variables, shlex.join(argv)]) if argv else "",
        "repeat": f"servebench run --lock {shlex.quote(str(run.path / 'manifest.json'))}" if repeatable else "",
    }


def _machine_facts(run: RunData, manifest: Mapping[str, Any]) -> dict[str, Any]:
    machine = mapping(manifest.get("machine"))
    gpus = [mapping(gpu) for gpu in machine.get("gpus") or ()]
    started, ended = manifest.get("started_s"), manifest.get("ended_s")
    return {
        "folder": f"{run.path.parent.name}/{run.path.name}",
        "started": local_time(run.started_s),
        "took": seconds(ended - started) if started and ended else None,
        "machine": " · ".join(str(v) for v in (machine.get("platform"), machine.get("cpu_model")) if v),
        "GPU": ", ".join(f"{gpu.get('name')} (driver {gpu.get('driver_version')})" for gpu in gpus),
        "CUDA": machine.get("cuda"),
        "commit": mapping(manifest.get("git")).get("commit"),
        "measured by": run.foreign,
    }
