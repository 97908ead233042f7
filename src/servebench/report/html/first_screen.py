"""The first screen of a report: the question, the answer, and the table of uses by engines."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from servebench.analysis.answer import Answer
from servebench.analysis.answer.model import Purpose
from servebench.analysis.recommendation.model import Recommendation, Score
from servebench.analysis.recommendation.scores import codes_of_mean
from servebench.report.html.elements import Label
from servebench.report.html.model import Page
from servebench.report.html.results import legend_of
from servebench.report.html.trust import progress, trust_notes
from servebench.report.points import point_trust, reason_of_code
from servebench.report.wording.answer import sentence_of, step_reason, title_of
from servebench.report.wording.recommendation import (
    best_word,
    lead_text,
    outcome_text,
    place_text,
    quality_text,
    reason_text,
    reservations_text,
    score_text,
)
from servebench.util.figures import MISSING, number

RANKED_MAX = 4
NAMED_MAX = 4
"""More setups are only counted in the question."""
COLUMNS_MAX = 5
"""So many setups have a column in the matrix: those with the best ranks."""
SENTENCES_MAX = 1000
"""Longer answers in words are folded: of many setups the matrix says more."""


def first_screen(data: Page) -> tuple[str, dict[str, Any]]:
    """Return the question, the answer in sentences, what not to trust and why, what to run next, and the matrix of uses by
    engines."""
    measured = [one for one in data.answers if one.outcome != "not measured"]
    found, ranked = data.answer, [one for one in measured if one.ranking]
    columns = _columns(data, ranked)
    sentences = [(title_of(one), text) for one in found.workloads if (text := sentence_of(one))]
    return "first_screen", {
        "question": _question(data),
        "sentences": sentences,
        "folded": bool(ranked) and sum(len(line) for _, line in sentences) > SENTENCES_MAX,
        "trust": trust_notes(data),
        "engines": [one for one in legend_of(data.series) if one["name"] in columns],
        "matrix": _matrix(data, ranked, columns),
        "recommendations": [_recommendation(one) for one in measured],
        "not_measured": _not_measured(data.answers),
        "next": () if progress(data) else _next_steps(found),
        "command": data.command,
    }


def _not_measured(found: Sequence[Recommendation]) -> dict[str, str]:
    """Return why each use that no run was measured for has no row."""
    measured = {one.use_case.title for one in found if one.outcome != "not measured"}
    return {one.use_case.title: reason_text(one.why) for one in found if one.use_case.title not in measured}


def _next_steps(found: Answer) -> list[tuple[str, str]]:
    """Return commands and why to run them, without the one that makes this page."""
    return [(one.command, step_reason(one)) for one in found.next_steps if Purpose.CHARTS not in one.purposes]


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
    """Return how far to trust a row and why; of one run alone, the trust in its point."""
    if found.outcome == "only one":
        first = found.ranking[0]
        word, why = "one start", tuple[str, ...]()
        if first.level is not None:
            word, why = point_trust(first.level.verdict, codes_of_mean(first.level, first.entrant))
        return {"outcome": Label.of(word), "trust": "; ".join(map(reason_of_code, why))}
    return {"outcome": _label(found), "trust": reservations_text(found)}


def _label(found: Recommendation) -> Label:
    """Return how far to trust a recommendation, in the colour of that."""
    known = found.outcome == "best"
    return replace(Label.of(found.trust), text=found.trust if known else outcome_text(found))


def _matrix_cell(name: str, score: Score | None, found: Recommendation) -> dict[str, str]:
    if score is None:
        return {"name": name, "text": MISSING, "note": _why_missing(name, found), "best": "", "look": ""}
    first = score is found.ranking[0] and len(found.ranking) > 1
    lead = lead_text(found) if first and found.outcome != "one start each" else ""
    best = best_word(found) if first else ""
    return {
        "name": name,
        "text": f"{number(score.value)} {found.use_case.unit}",
        "note": ", ".join(filter(None, [lead, f"at {score.at.words}" if score.at else "", _doubt(score)])),
        "best": best,
        "look": "" if not best else "good" if found.trust == "clear" else "warn",
    }


def _why_missing(name: str, found: Recommendation) -> str:
    """Return why a run has no score for a use; empty if that is unknown."""
    return next((reason_text(one.why) for one in found.missing if one.name == name), "")


def _doubt(score: Score) -> str:
    """Return how far to trust the point of a score, and why; empty for a valid one."""
    if score.level is None:
        return ""
    word, why = point_trust(score.level.verdict, codes_of_mean(score.level, score.entrant))
    return "" if word == "valid" else f"{word} ({', '.join(why)})" if why else word


def _recommendation(one: Recommendation) -> dict[str, Any]:
    return {
        "title": one.use_case.title,
        "outcome": _label(one),
        "group": one.group,
        "ranking": [
            {"text": f"{score.entrant.name}: {score_text(score, one.use_case.unit)}", "place": place_text(score)}
            for score in one.ranking[:RANKED_MAX]
        ],
        "lead": lead_text(one),
        "why": reservations_text(one),
        "missing": [f"{other.name}: {reason_text(other.why)}" for other in one.missing],
        "quality": [quality_text(other) for other in one.quality],
        "changes": [reason_text(other) for other in one.changes],
    }
