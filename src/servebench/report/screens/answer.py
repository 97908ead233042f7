"""The last screen of a study: tables, the answer, warnings, and what to run next."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from string import ascii_lowercase

from servebench.analysis.answer import model
from servebench.analysis.warnings.catalog import type_of
from servebench.contracts.level import Level
from servebench.report.blocks import Block, Heading, Line, NextCommand, Span, Table, TableColumn, row
from servebench.report.screens.points import WEAK_NOTE
from servebench.report.trust import VERDICTS
from servebench.report.wording.answer import caveat_text, failure_text, sentence_of, step_reason, title_of
from servebench.report.wording.budget import took_text
from servebench.report.wording.limits import limit_lines
from servebench.util.figures import MISSING, number

CELL_WIDTH = 15
"""The width that a column of throughputs takes at most, with its mark."""
LABEL_WIDTH = 22
FAILURES_MAX = 6
LIMITS_MAX = 1
REMARKS_MAX = 3
"""How many limits and warnings the screen of a terminal has."""
PLACES_WIDTH = 34
"""Longer lists of points are counted."""


def answer_blocks(
    answer: model.Answer, *, width: int, complete: bool = False, verbose: bool = False
) -> Iterator[Block]:
    """Yield the answer for a screen of this width. `complete` (for files and pipes) adds marks that change no verdict and the
    meanings of warnings; `verbose` adds settings that were varied on purpose or do not matter, too."""
    complete = complete or verbose
    remarks = answer.remarks if complete else [one for one in answer.remarks if one.first][:REMARKS_MAX]
    marks = footnotes(remarks)
    took = took_text(answer.expected_s, answer.took_s)
    for one in answer.workloads:
        yield Heading(title_of(one), note=took if one is answer.workloads[0] else "")
        if one.levels:
            yield _table(one, marks, width)
            if len(one.columns) == 1 and any(cell.few_for_p99 for cell in one.columns[0].cells.values()):
                yield Line.of(WEAK_NOTE, tone="dim")
        # a table of one row says what the sentence of a single run says
        if (sentence := sentence_of(one)) and (len(one.levels) * len(one.columns) > 1 or one.not_usable is not None):
            yield Line.of(sentence)
    if answer.caveats:
        yield Line.of(" ".join(map(caveat_text, answer.caveats)), tone="warn")
    for failure in answer.failures[: None if complete else FAILURES_MAX]:
        # the first part says what happened; the rest was printed when it did
        brief = replace(failure, error=failure.error.partition("; ")[0])
        yield Line.of(failure_text(failure if complete else brief), tone="bad")
    for unequal in answer.inequalities:
        if verbose or unequal.matters:
            reason = f"; {unequal.reason}" if complete else ""
            yield Line.of(f"Not equal: {unequal.text}{reason}", tone="warn" if unequal.matters else "dim")
    yield from (_remark(one, marks.get(one.code), verbose=complete) for one in remarks)
    yield from (Line.of(line) for line in limit_lines(answer.limits)[: None if complete else LIMITS_MAX])
    hidden = _hidden(answer, remarks, complete=complete, verbose=verbose)
    if hidden:
        yield Line.of(f"more with -v: {'; '.join(hidden)}", tone="dim")
    steps = answer.next_steps
    # the first matters most, and the last shows more
    accepts = [one for one in steps if model.Purpose.ACCEPT in one.purposes]
    yield from map(step_block, steps if complete else dict.fromkeys((*steps[:1], *accepts, *steps[-1:])))


def slow_starts_blocks(answer: model.Answer) -> list[Block]:
    """Return a line for each run whose engine has slow starts."""
    return [
        Line.of(caveat_text(one), tone="warn") for one in answer.caveats if one.kind is model.CaveatKind.SLOW_STARTS
    ]


def footnotes(remarks: Sequence[model.Remark]) -> dict[str, str]:
    """Return the footnote mark of each warning: letters, because numbers would look like counts."""
    codes = [remark.code for remark in remarks if not remark.mark]
    letters = (a + b for a in ("", *ascii_lowercase) for b in ascii_lowercase)
    return dict(zip(codes, letters, strict=False))


def step_block(step: model.NextStep) -> NextCommand:
    """Return a command to run next, with why and about how long it takes."""
    return NextCommand("next", step.command, step_reason(step))


def _hidden(answer: model.Answer, remarks: Sequence[model.Remark], *, complete: bool, verbose: bool) -> list[str]:
    marks = [one.code for one in answer.remarks if one not in remarks and not type_of(one.code).wide]
    purposely = 0 if verbose else sum(not one.matters for one in answer.inequalities)
    more = 0 if complete else len(limit_lines(answer.limits)) - LIMITS_MAX
    hidden = [f"{len(marks)} note{'s' * (len(marks) > 1)} ({', '.join(marks)})"] if marks else []
    hidden += [f"{purposely} intended or harmless difference{'s' * (purposely > 1)}"] if purposely else []
    return hidden + ([f"{more} limit{'s' * (more > 1)}"] if more > 0 else [])


def _remark(remark: model.Remark, mark: str | None, *, verbose: bool) -> Line:
    """A warning in a line: what it means, at which points, and its code; with its remedy where it is `verbose`."""
    few = verbose or len(remark.where) <= PLACES_WIDTH or not remark.points
    where = remark.where if few else f"{remark.points} of {remark.of} points"
    text = f"{remark.meaning if verbose else remark.brief}: {where} ({remark.code})"
    text += f"; {remark.remedy}" if verbose and remark.remedy else ""
    return Line.of(f"[{mark}] " * (mark is not None), text, tone="dim" if remark.mark else "warn")


def _table(one: model.WorkloadAnswer, marks: dict[str, str], width: int) -> Table:
    """Return runs against levels: the way round that fits the width, else a row for each pair of them."""
    if len(one.columns) == 1:
        return _list_table(one, marks, with_runs=False)
    if len(one.columns) * CELL_WIDTH + 9 <= width:
        return _by_level(one, marks)
    if len(one.levels) * CELL_WIDTH + LABEL_WIDTH + 16 <= width:
        return _by_run(one, marks, width - len(one.levels) * CELL_WIDTH - 16)
    return _list_table(one, marks, with_runs=True, with_ttft=width >= CELL_WIDTH + LABEL_WIDTH + 16)


def _by_level(one: model.WorkloadAnswer, marks: dict[str, str]) -> Table:
    columns = [TableColumn(column.label, wrap=True, width_max=CELL_WIDTH + 12) for column in one.columns]
    rows = [row(level.words, *(_cell(column.cells.get(level)) for column in one.columns)) for level in one.levels]
    rows.append(row("trust", *(_trust(column, marks) for column in one.columns)))
    return Table([TableColumn(one.unit, left=True), *columns], rows)


def _by_run(one: model.WorkloadAnswer, marks: dict[str, str], room: int) -> Table:
    columns = [TableColumn(one.unit, left=True, wrap=True, width_max=room)]
    columns += [TableColumn(level.words) for level in one.levels]
    rows = [
        row(column.label, *(_cell(column.cells.get(level)) for level in one.levels), _trust(column, marks))
        for column in one.columns
    ]
    return Table([*columns, TableColumn("trust", left=True, wrap=True, width_max=16)], rows)


def _list_table(one: model.WorkloadAnswer, marks: dict[str, str], *, with_runs: bool, with_ttft: bool = True) -> Table:
    columns = [TableColumn("run", left=True, wrap=True)] if with_runs else []
    streams = one.unit == "tok/s"
    ttft, own = (["TTFT p50 ms"] * with_ttft, ["p99", "ITL"]) if streams else ([], [])
    names = ("load", one.unit, *ttft, *([] if with_runs else [*own, "E2E p50"]), "trust")
    columns += [
        TableColumn(name, left=name in ("load", "trust"), wrap=name == "trust" and not with_ttft) for name in names
    ]
    rows = []
    for column in one.columns:
        for index, (level, cell) in enumerate(column.cells.items()):
            run = [column.label if index == 0 else ""] if with_runs else []
            trust = _trust_of({level: cell}, marks)
            p99 = "~" * cell.few_for_p99 + number(cell.ttft_ms_p99)
            times = [number(cell.ttft_ms)] if ttft else []
            if not with_runs:
                times += [*([p99, number(cell.itl_ms)] if streams else []), number(cell.e2e_ms)]
            if cell.verdict == "void":
                times = [MISSING] * len(times)
            rows.append(row(*run, level.words, _cell(cell), *times, trust))
        if not column.cells and with_runs:
            rows.append(row(column.label, *[MISSING] * (2 + len(ttft)), column.status))
    return Table(columns, rows)


def _cell(cell: model.AnswerCell | None) -> Line:
    if cell is not None and cell.verdict == "void":
        return Line.of("void", tone="bad")
    if cell is None or cell.value is None:
        return Line.of(MISSING, tone="dim")
    best = Span(" best", "strong good") if cell.best else ""
    return Line.of(cell.text, best, tone="" if cell.verdict == "valid" else "warn")


def _trust(column: model.AnswerColumn, marks: dict[str, str]) -> Line:
    if column.cells:
        return _trust_of(column.cells, marks)
    return Line.of(column.status, tone="bad" if column.status != "finished" else "dim")


def _trust_of(cells: Mapping[Level, model.AnswerCell], marks: dict[str, str]) -> Line:
    """How far the points of some levels may be trusted, worst first, with the footnotes of their warnings: `doubtful at 16 [a]`.

    The levels are named where they are not all of one kind; what is not named is valid."""
    kinds: dict[tuple[str, bool], dict[Level, model.AnswerCell]] = {}
    for level, cell in cells.items():
        kinds.setdefault((cell.verdict, cell.wide and cell.verdict != "void"), {})[level] = cell
    if len(kinds) > 1:
        kinds.pop(("valid", False), None)
    worst = sorted(kinds, key=lambda kind: -list(VERDICTS).index(kind[0]))
    parts = []
    for kind in worst:
        own = kinds[kind]
        at = f" at {', '.join(level.number for level in own)}" if len(own) < len(cells) else ""
        codes = {code for cell in own.values() for code in cell.codes}
        notes = ",".join(mark for code, mark in marks.items() if code in codes)
        verdict, wide = kind
        word = "wide" if wide and verdict == "valid" and len(kinds) > 1 else f"{verdict}, wide" if wide else verdict
        parts.append(f"{word}{at}" + (f" [{notes}]" if notes else ""))
    return Line.of("\n".join(parts), tone=VERDICTS.get(worst[0][0], ""))
