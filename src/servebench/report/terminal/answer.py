"""The last screen of a study: tables, the answer, warnings, and what to run next."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from string import ascii_lowercase

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servebench.analysis.answer.model import (
    Answer,
    AnswerCell,
    AnswerColumn,
    Inequality,
    NextStep,
    Remark,
    WorkloadAnswer,
    labels_of_unequal,
)
from servebench.analysis.warnings.catalog import type_of
from servebench.contracts.point_row import level_words
from servebench.report.points import VERDICTS
from servebench.report.terminal.tables import VERDICT_STYLES, new_table
from servebench.report.wording.answer import caveat_text, failure_text, sentence_of, step_reason, title_of
from servebench.util.figures import MISSING, number

CELL_WIDTH = 15
"""The width that a column of throughputs takes at most, with its mark."""
LABEL_WIDTH = 22
FAILURES_MAX = 6
LIMITS_MAX = 4
"""A line for each of three runs, and one that names the others."""
PLACES_WIDTH = 34
"""Longer lists of points are counted."""


def print_answer(answer: Answer, out: Console, *, complete: bool = False, verbose: bool = False) -> None:
    """Print the answer. `complete` (for files and pipes) adds marks that change no verdict and the meanings of warnings;
    `verbose` adds settings that were varied on purpose or do not matter, too."""
    complete = complete or verbose
    marks = footnotes(answer)
    for one in answer.workloads:
        out.print(Text(title_of(one), style="bold"))
        if one.levels:
            out.print(_table(one, marks, out.width))
        if sentence := sentence_of(one):
            out.print(Text(sentence))
    if answer.caveats:
        out.print(" ".join(map(caveat_text, answer.caveats)), style="yellow")
    for failure in answer.failures[: None if complete else FAILURES_MAX]:
        # the first part says what happened; the rest was printed when it did
        brief = replace(failure, error=failure.error.partition("; ")[0])
        out.print(failure_text(failure if complete else brief), style="red")
    _print_unequal([one for one in answer.inequalities if verbose or one.matters], out, verbose=complete)
    for remark in answer.remarks:
        if remark.first or complete:
            out.print(_remark(remark, marks.get(remark.code), verbose=complete), style="dim" if remark.mark else "")
    for line in answer.limits[: None if complete else LIMITS_MAX]:
        out.print(line)
    _print_hidden(answer, out, complete=complete, verbose=verbose)
    for step in answer.next_steps:
        print_step(step, out)


def footnotes(answer: Answer) -> dict[str, str]:
    """Return the footnote mark of each warning: letters, because numbers would look like counts."""
    codes = [remark.code for remark in answer.remarks if not remark.mark]
    return dict(
        zip(codes, (*ascii_lowercase, *(f"{a}{b}" for a in ascii_lowercase for b in ascii_lowercase)), strict=False)
    )


def _print_unequal(found: Sequence[Inequality], out: Console, *, verbose: bool) -> None:
    """Print what is not equal: a row for each thing with the value of each run, or a line where that does not fit."""
    names = labels_of_unequal(found)
    widths = [max(len(name), *(len(one.value_of(name)) for one in found)) + 2 for name in names]
    if verbose or sum(widths) + max((len(one.name) for one in found), default=0) > out.width:
        for one in found:
            reason = f"; {one.reason}" if verbose else ""
            out.print(f"Not equal: {one.text}{reason}", style="yellow" if one.matters else "dim")
    elif found:
        table = _plain_table()
        table.add_column("Not equal")
        for name in names:
            table.add_column(name, justify="right")
        for one in found:
            table.add_row(one.name, *(one.value_of(name) or MISSING for name in names), style="yellow")
        out.print(table)


def _plain_table() -> Table:
    """An empty table without lines."""
    table = new_table(narrow=True)
    table.box, table.padding = None, (0, 2, 0, 0)
    return table


def _print_hidden(answer: Answer, out: Console, *, complete: bool, verbose: bool) -> None:
    """Print that there is more that changes no verdict."""
    marks = (
        [] if complete else [remark for remark in answer.remarks if not remark.first and not type_of(remark.code).wide]
    )
    purposely = 0 if verbose else sum(not one.matters for one in answer.inequalities)
    more = 0 if complete else len(answer.limits) - LIMITS_MAX
    hidden = [f"{len(marks)} note{'s' * (len(marks) > 1)} ({', '.join(one.code for one in marks)})"] if marks else []
    hidden += [f"{purposely} intended or harmless difference{'s' * (purposely > 1)}"] if purposely else []
    hidden += [f"{more} limit{'s' * (more > 1)}"] if more > 0 else []
    if hidden:
        out.print(f"more with -v: {'; '.join(hidden)}", style="dim")


def _remark(remark: Remark, mark: str | None, *, verbose: bool) -> Text:
    """A warning in a line: what it means, at which points, and its code; with its remedy where it is `verbose`."""
    few = verbose or len(remark.where) <= PLACES_WIDTH or not remark.points
    where = remark.where if few else f"{remark.points} of {remark.of} points"
    text = Text(f"[{mark}] " if mark is not None else "", style="" if remark.mark else "yellow")
    text.append(f"{remark.meaning if verbose else remark.brief}: {where} ({remark.code})")
    return text.append(f"; {remark.remedy}") if verbose and remark.remedy else text


def print_step(step: NextStep, out: Console) -> None:
    """Print a command to run next, why, and about how long it takes."""
    out.print(Text("next: ").append(step.command, style="bold").append(f"  ({step_reason(step)})", style="dim"))


def _table(one: WorkloadAnswer, marks: dict[str, str], width: int) -> Table | Padding:
    """Return runs against levels: the way round that fits the width, else a row for each pair of them."""
    if len(one.columns) == 1:
        return _list_table(one, marks, with_runs=False)
    if len(one.columns) * CELL_WIDTH + 9 <= width:
        return _by_level(one, marks)
    if len(one.levels) * CELL_WIDTH + LABEL_WIDTH + 16 <= width:
        return _by_run(one, marks, width - len(one.levels) * CELL_WIDTH - 16)
    return _list_table(one, marks, with_runs=True)


def _by_level(one: WorkloadAnswer, marks: dict[str, str]) -> Table:
    """A column for each run, a row for each level."""
    table = _plain_table()
    table.add_column("tok/s", no_wrap=True)
    for column in one.columns:
        table.add_column(column.label, justify="right", overflow="fold", max_width=CELL_WIDTH + 12)
    for level in one.levels:
        table.add_row(level_words(level), *(_cell(column.cells.get(level)) for column in one.columns))
    table.add_row("trust", *(_trust(column, marks) for column in one.columns))
    return table


def _by_run(one: WorkloadAnswer, marks: dict[str, str], room: int) -> Table:
    """A column for each level, a row for each run, whose label has so much room."""
    table = _plain_table()
    table.add_column("tok/s", max_width=room, overflow="fold")
    for level in one.levels:
        table.add_column(level_words(level), justify="right", no_wrap=True)
    table.add_column("trust", max_width=16, overflow="fold")
    for column in one.columns:
        table.add_row(column.label, *(_cell(column.cells.get(level)) for level in one.levels), _trust(column, marks))
    return table


def _list_table(one: WorkloadAnswer, marks: dict[str, str], *, with_runs: bool) -> Table:
    """A row for each level of each run."""
    table = _plain_table()
    for name in (*(["run"] if with_runs else []), "load", "tok/s", "TTFT p50 ms", "trust"):
        left = name in ("run", "load", "trust")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "run", overflow="fold")
    for column in one.columns:
        for index, (level, cell) in enumerate(column.cells.items()):
            run = [column.label if index == 0 else ""] if with_runs else []
            table.add_row(*run, level_words(level), _cell(cell), number(cell.ttft_ms), _trust_of({level: cell}, marks))
        if not column.cells and with_runs:
            table.add_row(column.label, MISSING, MISSING, MISSING, column.status)
    return table


def _cell(cell: AnswerCell | None) -> Text:
    if cell is not None and cell.verdict == "void":
        return Text("void", style="red")
    if cell is None or cell.value is None:
        return Text(MISSING, style="dim")
    text = Text(cell.text, style="" if cell.verdict == "valid" else "yellow")
    return text.append(" best", style="bold green") if cell.best else text


def _trust(column: AnswerColumn, marks: dict[str, str]) -> Text:
    if column.cells:
        return _trust_of(column.cells, marks)
    return Text(column.status, style="red" if column.status != "finished" else "dim")


def _trust_of(cells: Mapping[str, AnswerCell], marks: dict[str, str]) -> Text:
    """How far the points of some levels may be trusted, worst first, with the footnotes of their warnings: `doubtful at 16 [a]`.

    The levels are named where they are not all of one kind; what is not named is valid."""
    kinds: dict[tuple[str, bool], dict[str, AnswerCell]] = {}
    for level, cell in cells.items():
        kinds.setdefault((cell.verdict, cell.wide and cell.verdict != "void"), {})[level] = cell
    if len(kinds) > 1:
        kinds.pop(("valid", False), None)
    worst = sorted(kinds, key=lambda kind: -VERDICTS.index(kind[0]))
    parts = []
    for kind in worst:
        own = kinds[kind]
        at = f" at {', '.join(level_words(level, short=True) for level in own)}" if len(own) < len(cells) else ""
        codes = {code for cell in own.values() for code in cell.codes}
        notes = ",".join(mark for code, mark in marks.items() if code in codes)
        verdict, wide = kind
        word = "wide" if wide and verdict == "valid" and len(kinds) > 1 else f"{verdict}, wide" if wide else verdict
        parts.append(f"{word}{at}" + (f" [{notes}]" if notes else ""))
    return Text("\n".join(parts), style=VERDICT_STYLES.get(worst[0][0], ""))
