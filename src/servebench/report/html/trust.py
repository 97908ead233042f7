"""What the first screen says of how far to trust a study: runs that failed, doubtful points, and settings that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from servebench.analysis.answer.model import CaveatKind, Remark
from servebench.analysis.warnings.catalog import type_of
from servebench.contracts.stored import RunData
from servebench.report.html.model import Page
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


@dataclass(frozen=True, kw_only=True)
class TrustNote:
    """A reason to trust something less: `word` says how (in the colours of `look`), `place` what it concerns. `code` is that
    of a warning, `log` the end of an engine's log."""

    look: str
    text: str
    word: str = ""
    place: str = ""
    code: str = ""
    log: str = ""


def progress(data: Page) -> str:
    """Return how far a study is that is still running; nothing of any other."""
    ended = sum(one.run.status not in OPEN for one in data.runs)
    running = any(one.run.status == "running" for one in data.runs)
    return f"{ended} of {len(data.runs)} runs have ended" if running else ""


def trust_notes(data: Page) -> list[TrustNote]:
    """Return what to trust less and why, what is missing first; that all points are valid where there is nothing."""
    found = [TrustNote(look="warn", word="still running", text=text) for text in filter(None, (progress(data),))]
    found += _unfinished(data)
    found += [TrustNote(look="warn", text=fault) for fault in data.faults]
    found += [
        TrustNote(look="warn", place=one.name, text=fault)
        for one in data.runs
        if one.run.status != "missing"
        for fault in one.run.faults
    ]
    found += [
        # wide points have a note of their own
        TrustNote(look="warn", text=caveat_text(one))
        for one in data.answer.caveats
        if one.kind is not CaveatKind.WIDE
    ]
    found += [
        TrustNote(look="warn", word="not equal", text=one.text) for one in data.answer.inequalities if one.matters
    ]
    found += _remarks(data.answer.remarks)
    if not found and any(one.rows for one in data.runs):
        found = [TrustNote(look="good", word="valid", text="every point")]
    return found


def _unfinished(data: Page) -> Iterator[TrustNote]:
    """Runs that did not finish: the first with the end of their logs, the others by name, those that never started together."""
    at_work = bool(progress(data))
    bad = [one for one in data.runs if one.run.status != "finished" or one.run.error]
    bad = [one for one in bad if not (at_work and one.run.status in OPEN)]
    begun = [one for one in bad if one.run.status != "missing"]
    for one in begun[:RUNS_MAX]:
        word = STATUS_WORDS.get(one.run.status, one.run.status)
        yield TrustNote(look="bad", word=word, place=one.name, text=one.run.error or "", log=log_tail(one.run))
    if more := ", ".join(one.name for one in begun[RUNS_MAX:]):
        yield TrustNote(look="bad", word="not finished", place=more, text="")
    if missing := ", ".join(one.name for one in bad if one.run.status == "missing"):
        yield TrustNote(look="bad", word="not started", place=missing, text="")


def _remarks(remarks: Sequence[Remark]) -> list[TrustNote]:
    """Which points are void, doubtful or wide, and why."""
    shown = [one for one in remarks if one.first or type_of(one.code).wide]
    shown.sort(key=lambda one: (type_of(one.code).wide is not None, not type_of(one.code).void))
    places: dict[tuple[str, str], list[Remark]] = {}
    for one in shown:
        word = (
            "wide"
            if type_of(one.code).wide
            else "void"
            if type_of(one.code).void
            else "note"
            if one.mark
            else "doubtful"
        )
        place = one.where if len(one.where) <= PLACES_MAX else f"{one.points} of {one.of} points"
        places.setdefault((word, place), []).append(one)
    found = [
        TrustNote(
            look="bad" if word == "void" else "warn",
            word=word,
            place=place,
            text="; ".join(one.brief for one in own),
            code=", ".join(one.code for one in own),
        )
        for (word, place), own in list(places.items())[:REMARKS_MAX]
    ]
    left = [one for own in list(places.values())[REMARKS_MAX:] for one in own]
    if more := ", ".join(one.code for one in left):
        found.append(TrustNote(look="warn", word="more", text=more))
    return found


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
