"""The answer of `servebench tune` in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from servebench.analysis.tuning.answer import TuneAnswer
from servebench.report.terminal.tables import new_table
from servebench.report.tuning import (
    FRONT_NOTE,
    HEADINGS,
    asked_line,
    contribution_lines,
    doubt_line,
    headline,
    rows,
    spent_line,
    value_line,
)

ROWS_MAX = 8
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
    table = new_table(narrow=True)
    for index, name in enumerate(HEADINGS):
        table.add_column(name, justify="right" if index in (2, 3, 4, 5) else "left", no_wrap=index in (0, 2, 3, 5))
    shown = rows(answer)
    few = shown if complete else shown[:ROWS_MAX]
    for row in few:
        table.add_row(*row)
    out.print(table)
    if len(few) < len(shown):
        out.print(f"more with -v: {len(shown) - len(few)} candidates", style="dim")
    out.print(FRONT_NOTE, style="dim")
    if answer.as_good:
        out.print(f"may be as good as {answer.recommended_name}: {', '.join(answer.as_good)}")
    for name, why in answer.refused:
        out.print(f"refused before a launch: {name}: {why}", style="yellow")
    if doubt := doubt_line(answer):
        out.print(doubt, style="yellow")
    out.print(spent_line(answer))
    out.print(f"what would change the answer: {'; '.join(answer.would_change)}")
    if answer.engine_command:
        out.print(Text(f"engine: {answer.engine_command}"))
    for command, why in answer.next_steps:
        out.print(Text("next: ").append(command, style="bold").append(f"  ({why})", style="dim"))
