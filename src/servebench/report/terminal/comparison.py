"""A comparison in the terminal."""

from dataclasses import replace

from rich.console import Console
from rich.text import Text

from servebench.analysis.answer import Answer
from servebench.analysis.run_comparison import RunComparison
from servebench.report.terminal.answer import print_answer
from servebench.report.terminal.tables import new_table
from servebench.report.wording.comparison import (
    HEADINGS,
    cells_of,
    reason_numbers,
    reason_of,
    starts_note,
    summary_of,
)

STYLES = {"faster": "green", "slower": "red", "no difference": "cyan", "unequal_settings": "yellow"}
AGREEMENT_STYLES = {"different": "red", "not different": "cyan", "too small to tell": "yellow"}
PARITY_STYLES = {"the same": "green", "no more than itself": "cyan", "more than itself": "red"}

NAMED_MAX = 3
"""More pairs without a verdict are only counted."""


def print_comparison(found: RunComparison, out: Console) -> None:
    """Print the rows, the unequal settings, the verdict, and the comparison of the answers."""
    comparison = found.comparison
    out.print(Text(f"{comparison.candidate}  vs  {comparison.baseline}", style="bold"))
    table = new_table(narrow=True)
    for name in HEADINGS[:-1]:
        left = name == "metric"
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    table.add_column(HEADINGS[-1], overflow="fold")
    notes = reason_numbers(comparison)
    for row in comparison.rows:
        *cells, verdict = cells_of(row)
        mark = f" ({notes[reason]})" if (reason := reason_of(row)) else ""
        table.add_row(*map(Text, cells), Text(verdict, style=STYLES.get(row.result, "dim")).append(mark, style="dim"))
    out.print(table)
    for reason, number in notes.items():
        out.print(f"({number}) {reason}", style="dim")
    if note := starts_note(comparison):
        out.print(note, style="dim")
    for one in comparison.unequal:
        if one.matters:
            text = f"different setting: {one.name}: {one.candidate} vs {one.baseline} ({one.reason})"
            out.print(text, style="yellow")
    if minor := [one.key for one in comparison.unequal if not one.matters]:
        out.print(f"intended or harmless differences: {', '.join(minor)}", style="dim")
    out.print(Text(f"verdict: {summary_of(comparison)}", style=f"bold {STYLES.get(comparison.result, '')}".strip()))
    for agreement in found.agreements:
        style = AGREEMENT_STYLES.get(agreement.finding, "dim")
        out.print(Text(f"quality: {agreement.swapped().sentence}", style=style))
    for parity in found.parities:
        out.print(Text(f"parity at {parity.at}: {parity.sentence}", style=PARITY_STYLES.get(parity.finding, "yellow")))


def print_pairs(answer: Answer, out: Console) -> None:
    """Print several pairs in brief: the table and the answer of each workload, and the verdicts of pairs that have one."""
    print_answer(replace(answer, remarks=(), next_steps=()), out)
    for one in answer.comparisons:
        if one.result == "not enough data":
            continue
        out.print(Text(f"{one.candidate} vs {one.baseline}: {summary_of(one)}", style=STYLES.get(one.result, "dim")))
    if undecided := [
        f"{one.candidate} vs {one.baseline}" for one in answer.comparisons if one.result == "not enough data"
    ]:
        more = f", and {len(undecided) - NAMED_MAX} more pairs" if len(undecided) > NAMED_MAX else ""
        out.print(f"not decided: {', '.join(undecided[:NAMED_MAX])}{more}", style="dim")
    out.print("all metrics of each pair: -v", style="dim")
