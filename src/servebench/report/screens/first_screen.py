"""The first screen of a report: the question, the answer, how far to trust it, and the table of uses by engines."""

from collections.abc import Iterator, Sequence

from servebench.analysis.answer.model import CaveatKind, Purpose, Remark
from servebench.analysis.recommendation.model import Recommendation, Score
from servebench.analysis.recommendation.scores import codes_of_mean
from servebench.analysis.warnings.catalog import type_of
from servebench.contracts.stored import RunData, StudyData
from servebench.engine.supervisor.logs import last_lines
from servebench.report.blocks import Block, Fold, Items, Label, Line, Sides, Span, Table, TableColumn, Verbatim, items
from servebench.report.charts.specs import legend_of
from servebench.report.screens.answer import step_block
from servebench.report.screens.page import Page
from servebench.report.screens.recommendation import SURE_TONES, recommendation_blocks
from servebench.report.trust import point_trust, reason_of_code
from servebench.report.wording.answer import caveat_text, sentence_of, title_of
from servebench.report.wording.recommendation import best_word, lead_text, reason_text, reservations_text
from servebench.util.figures import MISSING, listed, number
from servebench.util.file_redaction import is_clean

NAMED_MAX = 4
"""More setups are only counted in the question."""
COLUMNS_MAX = 5
"""So many setups have a column in the table of uses: those with the best ranks."""
SENTENCES_MAX = 1000
"""Longer answers in words are folded: of many setups the table of uses says more."""
LOG_LINES = 15
RUNS_MAX = 4
"""More runs that did not finish are only named."""
REMARKS_MAX = 6
"""More warnings are only counted: all are further down on the page."""
PLACES_MAX = 110
"""Longer lists of points are counted."""
OPEN = ("running", "missing")
"""What runs of a study are that is at work and has not ended them."""
STATUS_WORDS = {"running": "still running", "interrupted": "interrupted", "missing": "not started"}


def first_screen(data: Page) -> Iterator[Block]:
    """Yield the question, the answer in sentences, what not to trust and why, what to run next, and the table of uses."""
    measured = [one for one in data.answers if one.outcome != "not measured"]
    ranked = [one for one in measured if one.ranking]
    yield Line.of(_question(data), tone="dim large")
    if data.found.command:
        yield Verbatim(data.found.command)
    said = [(title_of(one), text) for one in data.answer.workloads if (text := sentence_of(one))]
    words = [line for title, text in said for line in (Line.of(title, tone="small"), Line.of(text, tone="large"))]
    folded = bool(ranked) and sum(len(text) for _, text in said) > SENTENCES_MAX
    yield from [Fold("the answer at each load, in words", words)] if folded else words
    # two of the steps lead to what this page shows
    steps = [one for one in data.answer.next_steps if not {Purpose.CHOOSE, Purpose.CHARTS} & set(one.purposes)]
    steps = [] if progress(data) else steps
    after = list(map(step_block, steps))
    sides: list[tuple[str, Sequence[Block]]] = [("How far to trust it", trust_blocks(data)), ("Run next", after)]
    yield Sides([(title, blocks) for title, blocks in sides if blocks])
    if ranked:
        yield _uses(data, ranked)
    if measured:
        every = list(recommendation_blocks(measured))
        yield Fold("each use: ranking, and what would change it", every, screen=True)
    if missing := {one.use_case.title: reason_text(one.why) for one in data.answers if one not in measured}:
        reasons = items(f"{use}: {why}" for use, why in missing.items())
        yield Fold(f"Not measured: {', '.join(missing)}.", [reasons], screen=True)


def _question(data: Page) -> str:
    names = list(dict.fromkeys(one.name for one in data.runs if one.rows or one.run.manifest))
    if len(names) > 1:
        some = listed(names) if len(names) <= NAMED_MAX else f"these {len(names)} setups"
        subject = f"Which of {some} is best, and for what?"
    else:
        subject = f"How fast is {names[0]}?" if names else ""
    facts = [dict.fromkeys(one.run.fact(name) for one in data.runs) for name in ("model", "gpu")]
    return " · ".join([subject, *filter(None, (", ".join(v for v in own if v and v != "none") for own in facts))])


def _uses(data: Page, found: Sequence[Recommendation]) -> Table:
    """A row for each use and a column for each series: its score, with the lead of the best."""
    series = {one.run.run_id: one.name for one in data.runs}
    names = _columns(data, found, series)
    facts = [{one.run.fact(name) for one in data.runs if one.rows} for name in ("model", "gpu")]
    common = {value for values in facts if len(values) == 1 for value in values}
    rows = []
    for one in found:
        scores = {series.get(score.entrant.run.run_id): score for score in reversed(one.ranking)}
        place = " · ".join(part for part in one.group.split(" · ") if part not in common)
        use = Line.of(one.use_case.title, Span(f" {place}" if place else "", "small"))
        rows.append([use, *(_use_cell(name, scores.get(name), one) for name in names), Line.of(use_label(one))])
    marks = {one["name"]: (one["mark"], one["colour"]) for one in legend_of(data.runs)}
    columns = [TableColumn(name, left=True, wrap=True, mark=marks.get(name)) for name in names]
    heads = [TableColumn("use", left=True, wrap=True), *columns, TableColumn("how sure", left=True, wrap=True)]
    return Table(heads, rows, ruled=True, caption="Uses and engines: the best of each use", look="matrix")


def _columns(data: Page, found: Sequence[Recommendation], series: dict[str, str]) -> list[str]:
    """The series that have a column, in their order: all, or those with the best ranks."""
    names = list(dict.fromkeys(one.name for one in data.runs if one.rows))
    ranks = [{series.get(score.entrant.run.run_id): rank for rank, score in enumerate(one.ranking)} for one in found]
    best = sorted(names, key=lambda name: sorted(own.get(name, len(names)) for own in ranks))[:COLUMNS_MAX]
    return [name for name in names if name in best]


def use_label(found: Recommendation) -> Label:
    """Return how far to trust the answer for a use, and why; of one run alone, the trust in its point."""
    if found.outcome == "only one":
        level, why = found.ranking[0].level, tuple[str, ...]()
        word, tone = "one start", ""
        if level is not None:
            word, why = point_trust(level.verdict, codes_of_mean(level, found.ranking[0].entrant))
            tone = "good" if level.verdict == "valid" else "bad" if level.verdict == "void" else "warn"
        return Label(word, tone, "; ".join(map(reason_of_code, why)))
    return Label(found.sureness, SURE_TONES[found.sureness], reservations_text(found))


def _use_cell(name: str, score: Score | None, found: Recommendation) -> Line:
    """The score of a series; with its lead if it is the best, or why there is none."""
    if score is None:
        why = next((reason_text(one.why) for one in found.missing if one.name == name), "")
        return Line.of(MISSING, Span(f" {why}" if why else "", "small"))
    first = score is found.ranking[0] and len(found.ranking) > 1
    lead = lead_text(found) if first and found.outcome != "one start each" else ""
    note = ", ".join(filter(None, (lead, f"at {score.at.words}" if score.at else "", _doubt(score))))
    best = best_word(found) if first else ""
    label: list[str | Span] = [" ", Label(best, "good" if found.trust == "clear" else "warn")] if best else []
    value = Span(f"{number(score.value)} {found.use_case.unit}", "strong" if best else "")
    return Line.of(value, *label, Span(f" {note}" if note else "", "small"))


def _doubt(score: Score) -> str:
    """How far to trust the point of a score, and why; empty for a valid one."""
    if score.level is None:
        return ""
    word, why = point_trust(score.level.verdict, codes_of_mean(score.level, score.entrant))
    return "" if word == "valid" else f"{word} ({', '.join(why)})" if why else word


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
            yield from (_note("warn", place=one.label, text=fault) for fault in one.run.faults)
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
        yield _note("bad", word, place=one.label, text=one.run.error or "")
        if log := log_tail(one.run):
            yield Fold("last lines of engine.log", [Verbatim(log)], screen=True)
    if more := ", ".join(one.label for one in begun[RUNS_MAX:]):
        yield _note("bad", "not finished", place=more)
    if missing := ", ".join(one.label for one in bad if one.run.status == "missing"):
        yield _note("bad", "not started", place=missing)


def _remarks(remarks: Sequence[Remark]) -> Iterator[Block]:
    shown = [one for one in remarks if one.first or type_of(one.code).wide]
    shown.sort(key=lambda one: (type_of(one.code).wide is not None, not type_of(one.code).void))
    places: dict[tuple[str, str], list[Remark]] = {}
    for one in shown:
        place = one.where if len(one.where) <= PLACES_MAX else f"{one.points} of {one.of} points"
        kind = type_of(one.code)
        word = "wide" if kind.wide else "void" if kind.void else "note" if one.mark else "doubtful"
        places.setdefault((word, place), []).append(one)
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
    return "\n".join(last_lines(run.engine_log, LOG_LINES))
