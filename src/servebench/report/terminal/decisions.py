"""What a study with `study.until=decided` has decided, in the terminal."""

from rich.console import Console
from rich.text import Text

from servebench.analysis.decided import StudyDecision
from servebench.report.terminal.tables import new_table
from servebench.report.wording.decisions import HEADINGS, NOTE, cells_of, levels_line, notes_of, title_of

STYLES = {"faster": "green", "slower": "red", "equal": "cyan", "mixed": "yellow"}


def print_decisions(found: StudyDecision, out: Console) -> None:
    """Print a table for each pair of runs, what is still open, and how much starts differ."""
    for pair in found.pairs:
        out.print(Text(title_of(pair, found), style="bold"))
        table = new_table()
        for name in HEADINGS:
            table.add_column(name, justify="left" if name in ("metric", "verdict") else "right", no_wrap=True)
        for one in pair.rows:
            load, metric, verdict, *rest = cells_of(one, pair, found)
            table.add_row(load, metric, Text(verdict, style=STYLES.get(one.verdict, "dim")), *rest)
        out.print(table)
        out.print(Text(levels_line(pair, found), style="bold"))
    for line in notes_of(found):
        out.print(line)
    out.print(NOTE, style="dim")
