"""The last screen of a study: tables, the answer, warnings, and what to run next."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servebench.analysis.answer.model import Answer, AnswerCell, AnswerColumn, NextStep, Remark, WorkloadAnswer
from servebench.contracts.point_row import level_words
from servebench.report.terminal.tables import VERDICT_STYLES, new_table
from servebench.util.figures import MISSING, number

CELL_WIDTH = 15
"""The width that a column of throughputs takes at most, with its mark."""
LABEL_WIDTH = 22
FAILURES_MAX = 6
PLACES_MAX = 4


def print_answer(answer: Answer, out: Console, *, verbose: bool = False) -> None:
    """Print the answer; `verbose` adds marks that change no verdict, meanings of warnings, and settings varied on purpose."""
    numbers = {remark.code: number for number, remark in enumerate((r for r in answer.remarks if not r.mark), 1)}
    for one in answer.workloads:
        out.print(Text(one.title, style="bold"))
        if one.levels:
            out.print(_table(one, numbers, out.width))
        if one.sentence:
            out.print(Text(one.sentence))
    for caveat in answer.caveats:
        out.print(caveat, style="yellow")
    for failure in answer.failures[: None if verbose else FAILURES_MAX]:
        # the first part says what happened; the rest was printed when it did
        out.print(failure if verbose else failure.partition("; ")[0], style="red")
    for unequal in answer.inequalities:
        if verbose or unequal.matters:
            reason = f": {unequal.reason}" if verbose else ""
            out.print(f"Not equal: {unequal.text}{reason}", style="yellow" if unequal.matters else "dim")
    for remark in answer.remarks:
        if not remark.mark:
            out.print(_remark(remark, numbers[remark.code], verbose=verbose))
    _print_hidden(answer, out, verbose=verbose)
    for step in answer.next_steps:
        _print_step(step, out)


def _print_hidden(answer: Answer, out: Console, *, verbose: bool) -> None:
    """Print what changes no verdict, or that there is such."""
    marks = [remark for remark in answer.remarks if remark.mark]
    if verbose:
        for remark in marks:
            out.print(_remark(remark, None, verbose=True), style="dim")
        return
    purposely = sum(not one.matters for one in answer.inequalities)
    hidden = [f"{len(marks)} note{'s' * (len(marks) > 1)} ({', '.join(one.code for one in marks)})"] if marks else []
    hidden += [f"{purposely} setting{'s' * (purposely > 1)} chosen per engine or harmless"] if purposely else []
    if hidden:
        out.print(f"more with -v: {'; '.join(hidden)}", style="dim")


def _remark(remark: Remark, number: int | None, *, verbose: bool) -> Text:
    mark = f"({number}) " if number is not None else ""
    text = Text(f"{mark}{remark.meaning}", style="" if remark.mark else "yellow").append(
        f" [{remark.code}, {_some(remark.places, None if verbose else PLACES_MAX)}]"
    )
    return text.append(f"; {remark.remedy}") if verbose and remark.remedy else text


def _some(places: Sequence[str], most: int | None) -> str:
    rest = len(places) - len(places[:most])
    return "; ".join([*places[:most], *([f"and {rest} more"] if rest else [])])


def _print_step(step: NextStep, out: Console) -> None:
    takes = f", about {duration(step.seconds)}" if step.seconds else ""
    out.print(Text("next: ").append(step.command, style="bold").append(f"  ({step.why}{takes})", style="dim"))


def to_json(answer: Answer) -> str:
    """Return an answer as JSON, without the comparisons that it rests on: `compare --json` prints these."""
    return json.dumps(asdict(replace(answer, comparisons=())), indent=2, default=str)


def duration(seconds: float) -> str:
    """Return a duration in whole seconds, minutes or hours, as an estimate is given."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _table(one: WorkloadAnswer, numbers: dict[str, int], width: int) -> Table | Padding:
    """Return runs against levels: the way round that fits the width, else a row for each pair of them."""
    if len(one.columns) == 1:
        return _list_table(one, numbers, with_runs=False)
    if len(one.columns) * CELL_WIDTH + 9 <= width:
        return _by_level(one, numbers)
    if len(one.levels) * CELL_WIDTH + LABEL_WIDTH + 16 <= width:
        return _by_run(one, numbers)
    return _list_table(one, numbers, with_runs=True)


def _by_level(one: WorkloadAnswer, numbers: dict[str, int]) -> Table:
    """A column for each run, a row for each level."""
    table = new_table(narrow=True)
    table.add_column("tok/s", no_wrap=True)
    for column in one.columns:
        table.add_column(column.label, justify="right", overflow="fold", max_width=CELL_WIDTH + 8)
    for level in one.levels:
        table.add_row(level_words(level), *(_cell(column.cells.get(level)) for column in one.columns))
    table.add_row("trust", *(_trust(column, numbers) for column in one.columns))
    return table


def _by_run(one: WorkloadAnswer, numbers: dict[str, int]) -> Table:
    """A column for each level, a row for each run."""
    table = new_table(narrow=True)
    table.add_column("tok/s", max_width=LABEL_WIDTH, overflow="fold")
    for level in one.levels:
        table.add_column(level_words(level), justify="right", no_wrap=True)
    table.add_column("trust", max_width=16, overflow="fold")
    for column in one.columns:
        table.add_row(column.label, *(_cell(column.cells.get(level)) for level in one.levels), _trust(column, numbers))
    return table


def _list_table(one: WorkloadAnswer, numbers: dict[str, int], *, with_runs: bool) -> Table:
    """A row for each level of each run."""
    table = new_table(narrow=True)
    for name in (*(["run"] if with_runs else []), "load", "tok/s", "TTFT p50 ms", "trust"):
        left = name in ("run", "load", "trust")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "run", overflow="fold")
    for column in one.columns:
        for index, (level, cell) in enumerate(column.cells.items()):
            run = [column.label if index == 0 else ""] if with_runs else []
            table.add_row(*run, level_words(level), _cell(cell), number(cell.ttft_ms), _trust_of([cell], numbers))
        if not column.cells and with_runs:
            table.add_row(column.label, MISSING, MISSING, MISSING, column.status)
    return table


def _cell(cell: AnswerCell | None) -> Text:
    if cell is None or cell.value is None:
        return Text(MISSING, style="dim")
    if cell.verdict == "void":
        return Text("void", style="red")
    text = Text(cell.text, style="" if cell.verdict == "valid" else "yellow")
    return text.append(" best", style="bold green") if cell.best else text


def _trust(column: AnswerColumn, numbers: dict[str, int]) -> Text:
    if column.cells:
        return _trust_of(list(column.cells.values()), numbers)
    return Text(column.status, style="red" if column.status != "finished" else "dim")


def _trust_of(cells: Sequence[AnswerCell], numbers: dict[str, int]) -> Text:
    """How far some points may be trusted, with the numbers of their warnings."""
    verdicts = {cell.verdict for cell in cells}
    word = next(iter(verdicts)) if len(verdicts) == 1 else "doubtful"
    codes = dict.fromkeys(code for cell in cells for code in cell.codes)
    marks = ",".join(str(number) for number in sorted(numbers[code] for code in codes if code in numbers))
    return Text(f"{word} ({marks})" if marks else word, style=VERDICT_STYLES.get(word, ""))
