"""The results of a run and a study as tables and lines."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from servebench.analysis.repeats import RepeatSummary
from servebench.analysis.statistics import is_weak_percentile, missing_interval, values_needed
from servebench.contracts.level import Level
from servebench.contracts.point_row import POINT_COLUMNS, PointRow, columns_shown
from servebench.contracts.results import Doubt, Point
from servebench.report.terminal.tables import POINTS_NOTE, new_table, verdict_text
from servebench.report.wording.repeats import note_text, value_text
from servebench.util.figures import MISSING, number, rough, with_interval

WEAK_NOTE = f"~ is a percentile of too few requests for an interval (a p99 takes {values_needed(99)})"
REPEATS_NOTE = "mean over starts and their repeats, with its 95% interval: over the starts, or of the only one"


def point_line(point: Point) -> str:
    """Return a point in one line."""
    row = point.row
    return (
        f"{'rate' if row.rate is not None else 'concurrency'} {row.level}: "
        f"{with_interval(row, 'output_throughput_tok_s')} tok/s, TTFT p50 {number(row.ttft_ms_p50)} ms, "
        f"ITL mean {number(row.itl_ms_mean)} ms, {row.requests_ok:,} ok, {row.requests_failed:,} failed, {point.verdict}"
    )


def cell_text(row: PointRow, column: str) -> str:
    """Return a column of a point as every table shows it: throughput with its interval, and `~` before a percentile that the
    point has too few requests for."""
    if column == "output_throughput_tok_s":
        return with_interval(row, column)
    if is_weak_percentile(row, column):
        return f"~{rough(row.get(column))}"
    value = row.get(column)
    return f"{value:,}" if isinstance(value, int) else number(value)


def points_note(rows: Iterable[PointRow], columns: Iterable[str]) -> str:
    """Return the note below a table of points with these columns."""
    weak = any(is_weak_percentile(row, column) for row, column in product(rows, tuple(columns)))
    return f"{POINTS_NOTE}; {WEAK_NOTE}" if weak else POINTS_NOTE


def points_table(points: Sequence[Point], title: str) -> Table:
    """Return the points of a run as a table, one row each."""
    table = new_table(title, narrow=True)
    repeated = any(point.row.repeat > 0 for point in points)
    is_rate = any(point.row.rate is not None for point in points)
    shown = columns_shown("run")
    names = [
        "req/s" if is_rate else "con-\ncurr.",
        *(["re-\npeat"] if repeated else []),
        *(one.heading.replace(" ", "\n") for one in shown),
    ]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for point in points:
        row = point.row
        cells = [str(row.level), *([str(row.repeat)] if repeated else [])]
        cells += [cell_text(row, one.name) for one in shown]
        table.add_row(*cells, verdict_text(point.verdict, row.doubts))
    note = points_note([point.row for point in points], [one.name for one in shown])
    table.caption = "; ".join([note, *_missing_notes(points)])
    return table


def _missing_notes(points: Sequence[Point]) -> list[str]:
    """Return why throughputs are shown without an interval, with the levels."""
    levels: dict[str, list[str]] = {}
    for point in points:
        if (why := missing_interval(point.row, "output_throughput_tok_s")) is not None:
            levels.setdefault(why, []).append(str(point.row.level))
    return [f"no ± at {', '.join(dict.fromkeys(labels))}: {why}" for why, labels in levels.items()]


def warning_lines(points: Iterable[Point]) -> list[str]:
    """Return each warning once, with its levels, cause and remedy."""
    every = list(points)
    counts = Counter(point.row.level for point in every)
    found: dict[str, list[tuple[PointRow, Doubt]]] = {}
    for point in every:
        for doubt in point.doubts:
            found.setdefault(doubt.code, []).append((point.row, doubt))
    return [_warning_line(code, doubts, counts) for code, doubts in found.items()]


def _warning_line(code: str, doubts: Sequence[tuple[PointRow, Doubt]], counts: Mapping[Level, int]) -> str:
    """Return a warning with its levels, which have `counts` points; it names the point of its figures where they differ."""
    levels = list(dict.fromkeys(row.level for row, _ in doubts))
    row, first = doubts[0]
    differ = len({doubt.message for _, doubt in doubts}) > 1
    one_of_several = counts[row.level] > 1 and (differ or len(doubts) == 1)
    repeat = f", repeat {row.repeat}" if one_of_several else ""
    begin = f"at {row.level}{repeat}, " if repeat or (differ and len(levels) > 1) else ""
    return f"{code} (at {', '.join(map(str, levels))}): {begin}{first.message}; {first.remedy}"


def failure_lines(points: Iterable[Point]) -> list[str]:
    """Return the latencies including failed requests, for the points that have any."""
    every = [point.row for point in points]
    counts = Counter(row.level for row in every)
    return [
        f"latency including failed requests as infinite (at {row.level}"
        f"{f', repeat {row.repeat}' if counts[row.level] > 1 else ''}): TTFT p50 {number(row.ttft_ms_p50_all)} ms, "
        f"p99 {cell_text(row, 'ttft_ms_p99_all')} ms; E2E p50 {number(row.e2e_ms_p50_all)} ms, "
        f"p99 {cell_text(row, 'e2e_ms_p99_all')} ms"
        for row in every
        if row.requests_failed and row.ttft_ms_p50_all is not None
    ]


def print_repeats(found: RepeatSummary | None, out: Console) -> None:
    """Print what the repeats of each level show together, if there are any."""
    if found is None or not found.rows:
        return
    table = new_table("over repeats", narrow=True)
    for name in ("at", "repeats", *found.titles.values()):
        table.add_column(name, justify="right", no_wrap=True)
    for at, metrics in found.levels.items():
        count = max(row.count for row in metrics.values())
        cells = (value_text(metrics[name]) if name in metrics else MISSING for name in found.titles)
        table.add_row(str(at), str(count), *map(Text, cells))
    table.caption = REPEATS_NOTE
    out.print(table)
    for note in found.notes:
        out.print(f"repeats: {note_text(note)}")


def search_lines(search: Mapping[str, Any] | None) -> list[str]:
    """Return what a search for a level found, how, and its caveats."""
    if search is None:
        return []
    return [
        f"search: {search['said']}",
        f"  method: {search['how']}",
        *(f"  but: {caveat}" for caveat in search["caveats"]),
    ]


def live_table(points: Sequence[tuple[str, Point]]) -> Table:
    """Return finished points with the labels of their runs as a table, one row each."""
    table = new_table(narrow=True)
    named = len({run for run, _ in points}) > 1
    headings = (
        POINT_COLUMNS["output_throughput_tok_s"].heading, POINT_COLUMNS["ttft_ms_p50"].labelled,
        POINT_COLUMNS["requests_failed"].heading,
    )  # fmt: skip
    for name in (*(["run"] if named else []), "load", *headings, "trust"):
        left = name in ("run", "load", "trust")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "run", overflow="fold")
    for run, point in points:
        row = point.row
        cells = (
            row.level.words,
            with_interval(row, "output_throughput_tok_s"),
            number(row.ttft_ms_p50),
            f"{row.requests_failed or 0:,}",
        )
        table.add_row(*([run] if named else []), *cells, verdict_text(point.verdict, row.doubts))
    return table
