"""The answer of `servebench tune` in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from servebench.analysis.tuning.answer import TuneAnswer
from servebench.report.terminal.tables import new_table
from servebench.report.wording.tuning import (
    FRONT_NOTE,
    HEADINGS,
    asked_line,
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
"""From so many columns on settings have a column; names are shortened on a narrower screen. The column of the settings."""
STYLES = {"better": "bold green", "open": "bold yellow", "none": "bold red", "too little": "bold red"}


def print_tuning(answer: TuneAnswer, out: Console, *, complete: bool) -> None:
    """Print the answer on one screen; all candidates where it is `complete`."""
    if not answer.finished:
        out.print("so far, for the race is not over:", style="yellow")
    out.print(Text(headline(answer), style=STYLES.get(answer.verdict, "bold")))
    out.print(f"  {value_line(answer)}; asked: {asked_line(answer)}")
    contributions = contribution_lines(answer)
    if contributions:
        out.print("What each setting contributes (the winner against itself without it):")
        for line in contributions:
            out.print(f"  {line}")
    _print_candidates(answer, out, complete=complete)
    out.print(FRONT_NOTE, style="dim")
    if answer.as_good:
        out.print(f"may be as good as {answer.recommended_name}: {', '.join(answer.as_good)}")
    for line in (imitation_line(answer), doubt_line(answer), *refused_lines(answer)):
        if line:
            out.print(line, style="yellow")
    out.print(spent_line(answer))
    out.print(f"what would change the answer: {'; '.join(answer.would_change)}")
    if answer.command:
        out.print(Text(f"command: {answer.command}"))
    if answer.engine_command:
        out.print(Text(f"engine: {answer.engine_command}"))
    for command, why in answer.next_steps:
        out.print(Text("next: ").append(command, style="bold").append(f"  ({why})", style="dim"))


def _print_candidates(answer: TuneAnswer, out: Console, *, complete: bool) -> None:
    """Print the table of candidates. On a narrow screen settings and reasons stand below it, for they would be cut."""
    wide = out.width >= WIDE
    headings = HEADINGS if wide else tuple(name for index, name in enumerate(HEADINGS) if index != SETTINGS)
    table = new_table(narrow=True)
    for name in headings:
        may_wrap = name == HEADINGS[SETTINGS] or (wide and name == HEADINGS[-1])
        table.add_column(name, justify="right" if name in HEADINGS[2:6] else "left", no_wrap=not may_wrap)
    shown = rows(answer)
    few = list(zip(shown, filter(was_tried, answer.tried), strict=True))[: None if complete else ROWS_MAX]
    for row, one in few:
        table.add_row(*(row if wide else (shortened(row[0], NAME_MAX), *row[2:6], short_status(one))))
    out.print(table)
    for _, one in () if wide else few:
        if one.origin != "stock":
            out.print(Text(f"  {one.name}: {one.settings}{reason(one)}"))
    if len(few) < len(shown):
        out.print(f"more with -v: {len(shown) - len(few)} candidates", style="dim")
    if untried := untried_line(answer):
        out.print(untried, style="dim")
