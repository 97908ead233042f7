"""The answer of `servebench tune`."""

from __future__ import annotations

from collections.abc import Iterator

from servebench.analysis.tuning.answer import TuneAnswer
from servebench.report.blocks import (
    Block,
    Charts,
    Fold,
    Heading,
    Items,
    Label,
    Line,
    NextCommand,
    Sides,
    Table,
    TableColumn,
    Verbatim,
    items,
    row,
)
from servebench.report.charts.tune_gains import gains
from servebench.report.wording.tuning import (
    FRONT_NOTE,
    HEADINGS,
    asked_line,
    change_lines,
    contribution_lines,
    doubt_line,
    headline,
    imitation_line,
    reason,
    refused_lines,
    rows,
    short_status,
    shortened,
    spent_line,
    untried_line,
    value_line,
    was_tried,
)

ROWS_MAX = 8
WIDE, NAME_MAX, SETTINGS = 120, 14, 1
"""From this width on settings have a column, at this place; names are shortened on a narrower screen."""
TONES = {"better": "strong good", "open": "strong warn", "none": "strong bad", "too little": "strong bad"}


VERDICTS = {
    "better": ("good", "proven", "the interval of the gain over stock, from fresh starts in the finals, leaves out 0"),
    "open": ("warn", "not proven", "the gain over stock may be chance"),
    "as good": ("", "no gain", "what the best other settings gain is too little to matter, and may be chance"),
    "stock": ("", "no gain", "no candidate was better than stock"),
    "too little": ("warn", "not measured", "the budget did not suffice for a comparison"),
    "none": ("bad", "none is best", "no candidate could be measured or met the limits"),
}
"""How far to trust each verdict: a tone, a word, and why."""


def tune_blocks(answer: TuneAnswer, *, width: int, complete: bool) -> Iterator[Block]:
    """Yield the answer on one screen; all candidates where it is `complete`."""
    if not answer.finished:
        yield Line.of("so far, for the race is not over:", tone="warn")
    yield from _headline(answer)
    yield from _contributions(answer)
    yield from _candidates(answer, width, complete=complete)
    for line in (imitation_line(answer), doubt_line(answer), *refused_lines(answer)):
        if line:
            yield Line.of(line, tone="warn")
    yield Line.of(spent_line(answer))
    yield Line.of(f"what would change the answer: {'; '.join(change_lines(answer))}")
    for kind, command in (("command", answer.command), ("engine", answer.engine_command)):
        if command:
            yield NextCommand(kind, command)
    yield from (NextCommand("next", command, why) for command, why in answer.next_steps)


def tune_page_blocks(answer: TuneAnswer) -> Iterator[Block]:
    """Yield the answer on a page: the same, with a chart and how far to trust it."""
    yield Line.of("Which settings are best?", tone="dim large")
    if answer.command:
        yield Verbatim(answer.command)
    yield from _headline(answer)
    tone, word, why = VERDICTS[answer.verdict]
    notes = [] if answer.finished else [("warn", "so far", "the race is not over")]
    notes += [(tone, word, why), ("warn", "points in doubt", doubt_line(answer))]
    notes += [("warn", "not real", imitation_line(answer))]
    trust = Items([Line.of(Label(word, tone), f" {text}") for tone, word, text in notes if text])
    use: list[Block] = [NextCommand("next", command, why) for command, why in answer.next_steps]
    if answer.engine_command:
        use.append(Fold("the engine's command", [Verbatim(answer.engine_command)]))
    yield Sides([(title, group) for title, group in (("How far to trust it", [trust]), ("Use it", use)) if group])
    yield from _contributions(answer)
    if (chart := gains(answer.tried)) is not None:
        yield Charts([chart])
    yield Heading("What was tried, and how it ended", level=2)
    yield from _candidates(answer, WIDE, complete=True)
    yield Line.of(spent_line(answer), tone="dim")
    if refused := refused_lines(answer):
        yield items(refused, tone="warn")
    yield Heading("What would change the answer", level=2)
    yield items(change_lines(answer))


def _headline(answer: TuneAnswer) -> Iterator[Block]:
    yield Line.of(headline(answer), tone=f"{TONES.get(answer.verdict, 'strong')} large")
    yield Line.of(f"{value_line(answer)}; asked: {asked_line(answer)}", indent=2)


def _contributions(answer: TuneAnswer) -> Iterator[Block]:
    if contributions := contribution_lines(answer):
        yield Line.of("What each setting contributes (the best candidate against itself without it):")
        yield Items([Line.of(line, indent=2) for line in contributions])


def _candidates(answer: TuneAnswer, width: int, *, complete: bool) -> Iterator[Block]:
    """The table of candidates. On a narrow screen settings and reasons stand below it, for they would be cut."""
    wide = width >= WIDE
    columns = [
        TableColumn(name, left=index not in range(2, 6), wrap=index == SETTINGS or (wide and name == HEADINGS[-1]))
        for index, name in enumerate(HEADINGS)
        if wide or index != SETTINGS
    ]
    shown = rows(answer)
    few = list(zip(shown, filter(was_tried, answer.tried), strict=True))[: None if complete else ROWS_MAX]
    narrow = ((shortened(cells[0], NAME_MAX), *cells[2:6], short_status(one)) for cells, one in few)
    yield Table(columns, [row(*cells) for cells in ((cells for cells, _ in few) if wide else narrow)], ruled=True)
    for _, one in () if wide else few:
        if one.origin != "stock":
            yield Line.of(f"{one.name}: {one.settings}{reason(one)}", indent=2)
    if len(few) < len(shown):
        yield Line.of(f"more with -v: {len(shown) - len(few)} candidates", tone="dim")
    if untried := untried_line(answer):
        yield Line.of(untried, tone="dim")
    yield Line.of(FRONT_NOTE, tone="dim")
    if answer.as_good:
        yield Line.of(f"may be as good as {answer.recommended_name}: {', '.join(answer.as_good)}")
