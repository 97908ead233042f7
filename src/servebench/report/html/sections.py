"""The contents of the page's sections on conclusions: summary, comparison, warnings and how the runs were made."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from servebench.analysis.recommendation.model import Recommendation, Score
from servebench.analysis.warnings.catalog import explain
from servebench.contracts.stored import RunData, mapping
from servebench.report import comparison as texts
from servebench.report.html.elements import LOOKS, Cells, Label, Table
from servebench.report.html.model import Page, RunPage
from servebench.report.html.results import legend_of
from servebench.report.terminal.advice import headline, lead_text, place_text, score_text
from servebench.report.terminal.tables import local_time
from servebench.util.bounded_file import open_regular
from servebench.util.figures import MISSING, change, number, seconds

LOG_LINES = 15
LOG_BYTES = 64_000
RANKED_MAX = 4
SENTENCES_MAX = 3
COMPARISON_NOTE = (
    "Change from baseline to candidate with its 95% interval over starts of the engine. With one start each the interval is that "
    "of these two starts, and there is no verdict on the engines. P-values are corrected for their number (Holm); points that "
    "are not valid do not compete and are in brackets."
)

Section = tuple[str, Any] | None
"""The macro of a section and its content."""


def answer(data: Page) -> tuple[str, dict[str, Any]]:
    """Return the first screen: the question, the answer, and the matrix of uses by engines."""
    measured = [one for one in data.answers if one.outcome != "not measured"]
    return "answer", {
        "question": _question(data),
        "sentences": [f"{one.use_case.title}: {headline(one)}" for one in measured[:SENTENCES_MAX]],
        "faults": data.faults,
        "problems": [_problem(one.run) for one in data.runs],
        "emulated": any(one.run.emulated for one in data.runs),
        "engines": legend_of([one.series for one in data.runs if one.rows]),
        "matrix": _matrix(data, [one for one in measured if one.ranking]),
        "recommendations": [_recommendation(one) for one in measured],
        "command": f"servebench {shlex.join(data.words)}" if data.words else "",
        "not_measured": ", ".join(dict.fromkeys(one.use_case.title for one in data.answers if not one.ranking)),
    }


def _question(data: Page) -> str:
    names = list(dict.fromkeys(one.series.name for one in data.runs))
    facts = [
        ", ".join(dict.fromkeys(value for one in data.runs if (value := one.run.fact(name))))
        for name in ("workload", "model", "gpu")
    ]
    subject = (
        f"Which of {', '.join(names[:-1])} and {names[-1]} is best, and for what?"
        if len(names) > 1
        else f"How fast is {', '.join(names)}?"
    )
    return " · ".join([subject, *filter(None, facts)])


def _matrix(data: Page, found: Sequence[Recommendation]) -> list[dict[str, Any]]:
    """Return a row for each use and a cell for each engine: its score, with the lead of the best."""
    series = {one.run.run_id: one.series.name for one in data.runs}
    engines = list(dict.fromkeys(one.series.name for one in data.runs if one.rows))
    common = set.intersection(*(set(one.group.split(" · ")) for one in found)) if len(found) > 1 else set()
    rows = []
    for one in found:
        scores = {series.get(score.entrant.run_id): score for score in reversed(one.ranking)}
        rows.append(
            {
                "use": one.use_case.title,
                "of": " · ".join(part for part in one.group.split(" · ") if part not in common),
                "cells": [_matrix_cell(name, scores.get(name), one) for name in engines],
                "outcome": Label.of(one.outcome),
                "trust": one.why,
            }
        )
    return rows


def _matrix_cell(name: str, score: Score | None, found: Recommendation) -> dict[str, str]:
    if score is None:
        return {"name": name, "text": MISSING, "note": "", "best": "", "look": ""}
    first = score is found.ranking[0] and len(found.ranking) > 1
    lead = lead_text(found) if first else ""
    best = "" if not first else "best" if found.outcome == "winner" else "leads"
    return {
        "name": name,
        "text": f"{number(score.value)} {found.use_case.unit}",
        "note": ", ".join(
            filter(None, [lead, f"at {score.at}" if score.at else "", "doubtful" if score.doubtful else ""])
        ),
        "best": best,
        "look": {"best": "good", "leads": "warn"}.get(best, ""),
    }


def _problem(run: RunData) -> dict[str, Any]:
    bad = run.status != "finished" or run.error
    return {
        "name": run.name,
        "status": run.status if bad else "",
        "error": run.error,
        "log": _log_tail(run) if bad else "",
        "faults": run.faults,
    }


def _log_tail(run: RunData) -> str:
    if run.engine_log is None:
        return ""
    try:
        with open_regular(run.engine_log) as file:
            file.seek(max(0, file.seek(0, 2) - LOG_BYTES))
            lines = file.read(LOG_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LOG_LINES:])


def _recommendation(one: Recommendation) -> dict[str, Any]:
    return {
        "title": one.use_case.title,
        "outcome": Label.of(one.outcome),
        "group": one.group,
        "ranking": [
            {"text": f"{score.entrant.name}: {score_text(score, one.use_case.unit)}", "place": place_text(score)}
            for score in one.ranking[:RANKED_MAX]
        ],
        "lead": lead_text(one),
        "why": one.why,
        "missing": one.missing,
        "quality": one.quality,
        "changes": one.changes,
    }


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
            rows.append([*cells, Label(verdict, look, row.why)])
        shown.append(
            {
                "title": f"{one.candidate} vs {one.baseline}",
                "result": Label.of(str(one.result)),
                "summary": one.summary,
                "table": Table(texts.HEADINGS, rows, left=(1,), prose=(5,)),
            }
        )
    return "comparison", {"undecided": data.unjudged, "comparisons": shown, "note": COMPARISON_NOTE}


def fairness(data: Page) -> Section:
    """Return the settings that compared runs do not share."""
    shown = []
    for one in data.comparisons:
        rows: list[Cells] = [
            [d.key, d.baseline, d.candidate, Label("matters", "bad") if d.matters else Label("no", "plain"), d.reason]
            for d in one.unequal
        ]
        head = ("setting", "baseline", "candidate", "matters", "why")
        title = f"{one.candidate} vs {one.baseline}"
        shown.append({"title": title, "table": Table(head, rows, prose=(0, 1, 2, 4), left=(3,)) if rows else None})
    return ("fairness", shown) if shown else None


def warnings(data: Page) -> Section:
    """Return each warning with what it means, what to do, and where it occurs."""
    where: dict[str, list[str]] = {}
    for one in data.runs:
        for row in one.rows:
            for code in row.doubts:
                where.setdefault(str(code), []).append(f"{one.name} at {row.level_label}")
    for graded in data.quality:
        for doubt in graded.result.doubts:
            where.setdefault(doubt.code, []).append(f"{graded.run}, {graded.result.benchmark} at {graded.result.at}")
    if not where:
        return ("text", "None: every point is valid.") if any(one.rows for one in data.runs) else None
    rows = [[code, explain(code), ", ".join(dict.fromkeys(places))] for code, places in where.items()]
    return "plain_table", Table(("warning", "what it means and what to do", "where"), rows, prose=(1, 2))


def published(data: Page) -> Section:
    """Return the published numbers for the same setup."""
    rows = [
        [
            one.run,
            one.level,
            one.metric,
            f"{number(one.own)} {one.unit}",
            f"{number(one.published)} {one.unit}",
            change(one.difference),
            f"{one.source}; {one.note}" if one.note else one.source,
        ]
        for one in data.published
    ]
    head = ("run", "load", "metric", "measured", "published", "difference", "source")
    return ("plain_table", Table(head, rows, left=(0, 2), prose=(6,))) if rows else None


def commands(data: Page) -> Section:
    """Return the commands and the machine behind each run."""
    study = f"servebench {shlex.join(data.words)}" if data.words else ""
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
