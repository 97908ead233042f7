"""The first screen of a report: the question, the answer, and the table of uses by engines."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from servebench.analysis.answer import Answer
from servebench.analysis.answer.model import Inequality, labels_of_unequal
from servebench.analysis.recommendation.model import Recommendation, Score
from servebench.contracts.point_row import level_words
from servebench.contracts.stored import RunData
from servebench.report.html.elements import Label, Table
from servebench.report.html.model import Page
from servebench.report.html.results import legend_of
from servebench.report.terminal.advice import lead_text, place_text, score_text
from servebench.report.terminal.answer import step_reason
from servebench.util.bounded_file import open_regular
from servebench.util.figures import MISSING, number

LOG_LINES = 15
LOG_BYTES = 64_000
RANKED_MAX = 4
NAMED_MAX = 4
"""More setups are only counted in the question."""
COLUMNS_MAX = 5
"""So many setups have a column in the matrix: those with the best ranks."""
OPEN = ("running", "missing")
"""What runs of a study are that is at work and has not ended them."""
STATUS_WORDS = {"running": "is still running", "interrupted": "was interrupted", "missing": "was not started"}
CLEAR = {"winner": "clear"}
"""What an outcome is called where the best has its own mark."""


def first_screen(data: Page) -> tuple[str, dict[str, Any]]:
    """Return the question, the answer in sentences, the matrix of uses by engines, and what to run next."""
    measured = [one for one in data.answers if one.outcome != "not measured"]
    found, ranked = data.answer, [one for one in measured if one.ranking]
    columns, at_work = _columns(data, ranked), bool(_progress(data))
    return "first_screen", {
        "question": _question(data),
        "sentences": [(one.title, one.sentence) for one in found.workloads if one.sentence],
        "caveats": (*_progress(data), *found.caveats),
        "unequal": _unequal([one for one in found.inequalities if one.matters]),
        "faults": data.faults,
        "problems": [_problem(one.run, one.name) for one in data.runs if not (at_work and one.run.status in OPEN)],
        "engines": [one for one in legend_of(data.series) if one["name"] in columns],
        "matrix": _matrix(data, ranked, columns),
        "remarks": [f"{one.meaning} [{one.code}, {one.where}]" for one in found.remarks if one.first],
        "recommendations": [_recommendation(one) for one in measured],
        "not_measured": _not_measured(data.answers),
        "next": () if at_work else _next_steps(found),
        "command": f"servebench {shlex.join(data.words)}" if data.words else "",
    }


def _progress(data: Page) -> tuple[str, ...]:
    """Return how far a study is that is still running; nothing of any other."""
    ended = sum(one.run.status not in OPEN for one in data.runs)
    running = any(one.run.status == "running" for one in data.runs)
    return (f"Still running: {ended} of {len(data.runs)} runs have ended.",) if running else ()


def _unequal(found: Sequence[Inequality]) -> Table | None:
    """Return the table of what is not equal, with a column for each run."""
    names = labels_of_unequal(found)
    rows = [[one.name, *(one.value_of(name) or MISSING for name in names)] for one in found]
    return Table("What is not equal", ("not equal", *names), rows, prose=(0,)) if rows else None


def _not_measured(found: Sequence[Recommendation]) -> dict[str, str]:
    """Return why each use that no run was measured for has no row."""
    measured = {one.use_case.title for one in found if one.outcome != "not measured"}
    return {one.use_case.title: one.why for one in found if one.use_case.title not in measured}


def _next_steps(found: Answer) -> list[tuple[str, str]]:
    """Return commands and why to run them, without the one that makes this page."""
    return [
        (one.command, step_reason(one)) for one in found.next_steps if not one.command.startswith("servebench report ")
    ]


def _question(data: Page) -> str:
    names = list(dict.fromkeys(one.series.name for one in data.runs if one.rows or one.run.manifest))
    if len(names) > 1:
        some = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) <= NAMED_MAX else f"these {len(names)} setups"
        subject = f"Which of {some} is best, and for what?"
    else:
        subject = f"How fast is {names[0]}?" if names else ""
    facts = [dict.fromkeys(one.run.fact(name) for one in data.runs) for name in ("model", "gpu")]
    return " · ".join([subject, *filter(None, (", ".join(v for v in own if v and v != "none") for own in facts))])


def _columns(data: Page, found: Sequence[Recommendation]) -> list[str]:
    """Return the series that have a column in the matrix, in their order: all, or those with the best ranks."""
    names = list(dict.fromkeys(one.series.name for one in data.runs if one.rows))
    series = {one.run.run_id: one.series.name for one in data.runs}
    ranks = [{series.get(score.entrant.run_id): rank for rank, score in enumerate(one.ranking)} for one in found]
    best = sorted(names, key=lambda name: sorted(own.get(name, len(names)) for own in ranks))[:COLUMNS_MAX]
    return [name for name in names if name in best]


def _matrix(data: Page, found: Sequence[Recommendation], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each use and a cell for each engine: its score, with the lead of the best."""
    series = {one.run.run_id: one.series.name for one in data.runs}
    facts = [{one.run.fact(name) for one in data.runs if one.rows} for name in ("model", "gpu")]
    common = {value for values in facts if len(values) == 1 for value in values}
    rows = []
    for one in found:
        scores = {series.get(score.entrant.run_id): score for score in reversed(one.ranking)}
        rows.append(
            {
                "use": one.use_case.title,
                "of": " · ".join(part for part in one.group.split(" · ") if part not in common),
                "cells": [_matrix_cell(name, scores.get(name), one) for name in columns],
                **_trust(one),
            }
        )
    return rows


def _trust(found: Recommendation) -> dict[str, Any]:
    """Return how far to trust a row: its outcome and why; of one run alone, the verdict on its point."""
    if found.outcome == "only one":
        return {"outcome": Label.of("doubtful" if found.ranking[0].doubtful else "valid"), "trust": ""}
    text = CLEAR.get(found.outcome, found.words)
    return {"outcome": replace(Label.of(found.outcome), text=text), "trust": found.why}


def _matrix_cell(name: str, score: Score | None, found: Recommendation) -> dict[str, str]:
    if score is None:
        return {"name": name, "text": MISSING, "note": "", "best": "", "look": ""}
    first = score is found.ranking[0] and len(found.ranking) > 1
    lead = lead_text(found) if first and found.outcome != "one start each" else ""
    best = found.best if first else ""
    return {
        "name": name,
        "text": f"{number(score.value)} {found.use_case.unit}",
        "note": ", ".join(
            filter(
                None, [lead, f"at {level_words(score.at)}" if score.at else "", "doubtful" if score.doubtful else ""]
            )
        ),
        "best": best,
        "look": "" if not best else "good" if best == "best" else "warn",
    }


def _problem(run: RunData, name: str) -> dict[str, Any]:
    bad = run.status != "finished" or run.error
    return {
        "name": name,
        "status": STATUS_WORDS.get(run.status, run.status) if bad else "",
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
        "outcome": replace(Label.of(one.outcome), text=one.words),
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
