"""The answer of `servebench tune`."""

from __future__ import annotations

from collections.abc import Iterator

from servebench.analysis.tuning.answer import TuneAnswer
from servebench.analysis.tuning.candidates import describe_settings
from servebench.contracts.events import TunePlanned
from servebench.report.blocks import (
    Block,
    Items,
    Line,
    NextCommand,
    Table,
    TableColumn,
    row,
)
from servebench.report.wording.budget import least_text
from servebench.report.wording.tuning import (
    FROM_STOCK_NOTE,
    HEADINGS,
    SLICES_NOTE,
    asked_line,
    cells_of,
    change_lines,
    contribution_lines,
    doubt_line,
    equals_line,
    gain_line,
    headline,
    imitation_line,
    reason,
    refused_lines,
    spent_line,
    untried_line,
    value_line,
    was_tried,
)
from servebench.store.tune import TuneState
from servebench.util.figures import MISSING

ROWS_MAX = 8
NAME_MAX = 14
"""Longer names take several lines."""
TONES = {"better": "strong good", "open": "strong warn", "none": "strong bad", "too little": "strong bad"}


def tune_blocks(answer: TuneAnswer, *, complete: bool) -> Iterator[Block]:
    """Yield the answer on one screen; all candidates where it is `complete`."""
    if not answer.finished:
        yield Line.of("so far, for the race is not over:", tone="warn")
    yield Line.of(headline(answer), tone=f"{TONES.get(answer.verdict, 'strong')} large")
    yield Line.of(f"{value_line(answer)}; asked: {asked_line(answer)}", indent=2)
    for line in filter(None, (gain_line(answer), equals_line(answer))):
        yield Line.of(line, indent=2)
    if contributions := contribution_lines(answer):
        yield Line.of("What each setting contributes (the best candidate against itself without it):")
        yield Items([Line.of(line, indent=2) for line in contributions])
    yield from _candidates(answer, complete=complete)
    for line in (imitation_line(answer), doubt_line(answer), *refused_lines(answer.refused)):
        if line:
            yield Line.of(line, tone="warn")
    yield Line.of(spent_line(answer))
    yield Line.of(f"what would change the answer: {'; '.join(change_lines(answer))}")
    for kind, command in (("command", answer.command), ("engine", answer.engine_command)):
        if command:
            yield NextCommand(kind, command)
    yield from (NextCommand("next", command, why) for command, why in answer.next_steps)


def plan_blocks(state: TuneState, planned: TunePlanned) -> Iterator[Block]:
    """Yield what a tune would try, and what a verdict takes at least."""
    columns = [TableColumn(name, left=True, wrap=name == "settings") for name in ("candidate", "origin", "settings")]
    cells = [
        (one.name, one.origin, describe_settings(one.settings) if one.settings else MISSING) for one in state.candidates
    ]
    yield Table(columns, [row(*own) for own in cells], ruled=True)
    for line in refused_lines([(one.candidate.name, one.why) for one in state.refused]):
        yield Line.of(line, tone="warn")
    if state.slices:
        yield Line.of(SLICES_NOTE)
    yield Line.of(least_text(planned))


def _candidates(answer: TuneAnswer, *, complete: bool) -> Iterator[Block]:
    """The table of candidates, and below it their settings, which would be cut in it."""
    columns = [TableColumn(name, left=name == HEADINGS[-1]) for name in HEADINGS[1:]]
    tried = [one for one in answer.tried if was_tried(one)]
    few = tried[: None if complete else ROWS_MAX]
    name = TableColumn(HEADINGS[0], left=True, wrap=True, width_max=NAME_MAX)
    yield Table([name, *columns], [row(*cells_of(one)) for one in few], ruled=True)
    for one in few:
        if one.origin != "stock":
            yield Line.of(f"{one.name}: {one.settings}{reason(one)}", indent=2)
    if len(few) < len(tried):
        yield Line.of(f"more with -v: {len(tried) - len(few)} candidates", tone="dim")
    if untried := untried_line(answer):
        yield Line.of(untried, tone="dim")
    yield Line.of(FROM_STOCK_NOTE, tone="dim")
    if answer.as_good:
        yield Line.of(f"may be as good as {answer.recommended_name}: {', '.join(answer.as_good)}")
