"""What the first screen says of how far to trust a study: runs that failed, doubtful points, and settings that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from servebench.analysis.answer.model import CaveatKind, Remark
from servebench.analysis.warnings.catalog import type_of
from servebench.contracts.stored import RunData, StudyData
from servebench.report.blocks import Block, Fold, Items, Label, Line, Span, Verbatim
from servebench.report.screens.page import Page
from servebench.report.wording.answer import caveat_text
from servebench.util.bounded_file import open_regular
from servebench.util.file_redaction import is_clean

LOG_LINES = 15
LOG_BYTES = 64_000
RUNS_MAX = 4
"""More runs that did not finish are only named."""
REMARKS_MAX = 6
"""More warnings are only counted: all are further down on the page."""
PLACES_MAX = 110
"""Longer lists of points are counted."""
OPEN = ("running", "missing")
"""What runs of a study are that is at work and has not ended them."""
STATUS_WORDS = {"running": "still running", "interrupted": "interrupted", "missing": "not started"}


def progress(data: Page) -> str:
    """Return how far a study is that is still running; nothing of any other."""
    ended = sum(one.run.status not in OPEN for one in data.runs)
    running = any(one.run.status == "running" for one in data.runs)
    return f"{ended} of {len(data.runs)} runs have ended" if running else ""


def trust_blocks(data: Page) -> list[Block]:
    """Return what to trust less and why, what is missing first; that all points are valid where there is nothing."""
    found = list(_notes(data))
    if not found and any(one.rows for one in data.runs):
        found = [_note("good", "valid", text="every point")]
    return found


def _notes(data: Page) -> Iterator[Block]:
    if at_work := progress(data):
        yield _note("warn", "still running", text=at_work)
    yield from _unfinished(data)
    if isinstance(data.found, StudyData):
        yield from (_note("warn", text=fault) for fault in data.found.faults)
    for one in data.runs:
        if one.run.status != "missing":
            yield from (_note("warn", place=one.name, text=fault) for fault in one.run.faults)
    # wide points have a note of their own
    caveats = [one for one in data.answer.caveats if one.kind is not CaveatKind.WIDE]
    yield from (_note("warn", text=caveat_text(one)) for one in caveats)
    yield from (_note("warn", "not equal", text=one.text) for one in data.answer.inequalities if one.matters)
    yield from _remarks(data.answer.remarks)


def _note(tone: str, word: str = "", *, place: str = "", text: str = "", code: str = "") -> Items:
    """A reason to trust something less: how in a word, what it concerns, and the code of a warning."""
    colon = ": " if place and text else ""
    label = [Label(word, tone), Span(" ", tone)] if word else []
    tail = Span(f" {code}" if code else "", "small")
    return Items([Line.of(*label, Span(place, f"strong {tone}"), Span(colon + text, tone), tail)])


def _unfinished(data: Page) -> Iterator[Block]:
    """Runs that did not finish: the first with the end of their logs, the others by name, those that never started together."""
    at_work = bool(progress(data))
    bad = [one for one in data.runs if one.run.status != "finished" or one.run.error]
    bad = [one for one in bad if not (at_work and one.run.status in OPEN)]
    begun = [one for one in bad if one.run.status != "missing"]
    for one in begun[:RUNS_MAX]:
        word = STATUS_WORDS.get(one.run.status, one.run.status)
        yield _note("bad", word, place=one.name, text=one.run.error or "")
        if log := log_tail(one.run):
            yield Fold("last lines of engine.log", [Verbatim(log)], screen=True)
    if more := ", ".join(one.name for one in begun[RUNS_MAX:]):
        yield _note("bad", "not finished", place=more)
    if missing := ", ".join(one.name for one in bad if one.run.status == "missing"):
        yield _note("bad", "not started", place=missing)


def _word(one: Remark) -> str:
    kind = type_of(one.code)
    return "wide" if kind.wide else "void" if kind.void else "note" if one.mark else "doubtful"


def _remarks(remarks: Sequence[Remark]) -> Iterator[Block]:
    shown = [one for one in remarks if one.first or type_of(one.code).wide]
    shown.sort(key=lambda one: (type_of(one.code).wide is not None, not type_of(one.code).void))
    places: dict[tuple[str, str], list[Remark]] = {}
    for one in shown:
        place = one.where if len(one.where) <= PLACES_MAX else f"{one.points} of {one.of} points"
        places.setdefault((_word(one), place), []).append(one)
    for (word, place), own in list(places.items())[:REMARKS_MAX]:
        text, code = "; ".join(one.brief for one in own), ", ".join(one.code for one in own)
        yield _note("bad" if word == "void" else "warn", word, place=place, text=text, code=code)
    left = [one for own in list(places.values())[REMARKS_MAX:] for one in own]
    if more := ", ".join(one.code for one in left):
        yield _note("warn", "more", text=more)


def log_tail(run: RunData) -> str:
    """Return the last lines of the log of a run's engine; empty without one."""
    if run.engine_log is None:
        return ""
    if not is_clean(run.engine_log):
        return f"{run.engine_log.name} may hold keys and is not shown; 'servebench recover' cleans it once its engine is gone"
    try:
        with open_regular(run.engine_log) as file:
            file.seek(max(0, file.seek(0, 2) - LOG_BYTES))
            lines = file.read(LOG_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LOG_LINES:])
