"""The answer of `servebench tune`."""

from __future__ import annotations

from collections.abc import Iterator

from servebench.analysis.tuning.answer import TuneAnswer
from servebench.analysis.tuning.candidates import describe_settings
from servebench.contracts.events import TunePlanned
from servebench.report.blocks import Block, Items, Line, NextCommand, Table, TableColumn, row, table
from servebench.report.wording import tuning as wording
from servebench.report.wording.budget import least_text
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
    yield Line.of(wording.headline(answer), tone=f"{TONES.get(answer.verdict, 'strong')} large")
    yield from (Line.of(line, indent=2) for line in wording.best_lines(answer))
    if contributions := wording.contribution_lines(answer):
        yield Line.of("What each setting contributes (the best candidate against itself without it):")
        yield Items([Line.of(line, indent=2) for line in contributions])
    yield from _candidates(answer, complete=complete)
    for line in (wording.imitation_line(answer), wording.doubt_line(answer), *wording.refused_lines(answer.refused)):
        if line:
            yield Line.of(line, tone="warn")
    yield Line.of(wording.spent_line(answer))
    changes = [wording.CHANGES[one.kind](one) for one in answer.would_change]
    yield Line.of(f"what would change the answer: {'; '.join(changes)}")
    for kind, command in (("command", answer.command), ("engine", answer.engine_command)):
        if command:
            yield NextCommand(kind, command)
    yield from (NextCommand("next", command, why) for command, why in answer.next_steps)


def plan_blocks(state: TuneState, planned: TunePlanned) -> Iterator[Block]:
    """Yield what a tune would try, and what a verdict takes at least."""
    cells = [
        (one.name, one.origin, describe_settings(one.settings) if one.settings else MISSING) for one in state.candidates
    ]
    yield table(("candidate", "origin", "settings"), cells, left=(0, 1), wrap=(2,))
    for line in wording.refused_lines([(one.candidate.name, one.why) for one in state.refused]):
        yield Line.of(line, tone="warn")
    if state.slices:
        yield Line.of(wording.SLICES_NOTE)
    yield Line.of(least_text(planned))


def _candidates(answer: TuneAnswer, *, complete: bool) -> Iterator[Block]:
    """The table of candidates, and below it their settings, which would be cut in it."""
    columns = [TableColumn(name, left=name == wording.HEADINGS[-1]) for name in wording.HEADINGS[1:]]
    tried = [one for one in answer.tried if wording.was_tried(one)]
    few = tried[: None if complete else ROWS_MAX]
    name = TableColumn(wording.HEADINGS[0], left=True, wrap=True, width_max=NAME_MAX)
    yield Table([name, *columns], [row(*wording.cells_of(one)) for one in few], ruled=True)
    for one in few:
        if one.origin != "stock":
            yield Line.of(f"{one.name}: {one.settings}{wording.reason(one)}", indent=2)
    if len(few) < len(tried):
        yield Line.of(f"more with -v: {len(tried) - len(few)} candidates", tone="dim")
    if untried := wording.untried_line(answer):
        yield Line.of(untried, tone="dim")
    yield Line.of(wording.FROM_STOCK_NOTE, tone="dim")
    if answer.as_good:
        yield Line.of(f"may be as good as {answer.recommended_name}: {', '.join(answer.as_good)}")
