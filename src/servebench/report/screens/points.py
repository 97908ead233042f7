"""Points as tables: those of a run, those of all runs of a page, and the means of levels that have several."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Literal

from servebench.analysis.estimate import THROUGHPUT, estimate_level, levels_of
from servebench.analysis.statistics import is_weak_percentile, missing_interval, values_needed
from servebench.contracts.columns import SHARE
from servebench.contracts.level import Level
from servebench.contracts.point_row import POINT_COLUMNS, PointRow, columns_shown
from servebench.contracts.results import Doubt, Point
from servebench.report.blocks import Block, Heading, Items, Label, Line, Table, items, table
from servebench.report.content import shares_prefixes
from servebench.report.trust import VERDICTS, point_trust
from servebench.util.figures import MISSING, number, percent, rough, with_interval

Screen = Literal["run", "show", "report"]
POINTS_NOTE = "times in ms; ± is half of the 95% interval, of one start of the engine only"
WEAK_NOTE = f"~ is a percentile of too few requests for an interval (a p99 takes {values_needed(99)})"
FAILED_NOTE = "with failed: failed requests count as infinitely slow (∞)"
REPEATS_NOTE = "mean over starts and their repeats, with its 95% interval: over the starts, or of the only one"
LIVE = ("output_throughput_tok_s", "ttft_ms_p50", "requests_failed")
"""The columns of the live table, which fits a narrow terminal."""


def trust_label(row: PointRow) -> Label:
    """Return how far to trust a point, with the codes that say why."""
    word, why = point_trust(row.verdict, row.doubts)
    return Label(word, VERDICTS.get(row.verdict or "", ""), ", ".join(why))


def point_line(point: Point) -> str:
    """Return a point in one line."""
    row = point.row
    figures = (
        f"{with_interval(row, 'output_throughput_tok_s')} tok/s, TTFT p50 {number(row.ttft_ms_p50)} ms, "
        f"ITL mean {number(row.itl_ms_mean)} ms"
    )
    if row.input_throughput_texts_s is not None:
        figures = f"{number(row.input_throughput_texts_s)} texts/s, E2E p50 {number(row.e2e_ms_p50)} ms"
    level = f"{'rate' if row.rate is not None else 'concurrency'} {row.level}"
    return f"{level}: {figures}, {row.requests_ok:,} ok, {row.requests_failed:,} failed, {point.verdict}"


def cell_text(row: PointRow, column: str) -> str:
    """Return a column of a point as every table shows it: throughput with its interval, and `~` before a percentile that the
    point has too few requests for."""
    if column == "output_throughput_tok_s":
        return with_interval(row, column)
    if is_weak_percentile(row, column):
        return f"~{rough(row.get(column))}"
    value = row.get(column)
    if POINT_COLUMNS[column].unit == SHARE:
        return percent(value)
    return f"{value:,}" if isinstance(value, int) else number(value)


def points_blocks(found: Sequence[tuple[str, PointRow]], screen: Screen, title: str = "") -> Iterator[Block]:
    """Yield the points of runs by their labels, with the columns of this screen that have values, and what the signs mean."""
    rows = [row for _, row in found]
    failed = any(row.requests_failed for row in rows)
    cached = any(map(shares_prefixes, rows))
    names = [
        one.name
        for one in columns_shown(screen)
        if any(row.get(one.name) is not None for row in rows)
        and (failed or not one.name.endswith("_all"))
        and (cached or not one.name.startswith("prefix_cache"))
    ]
    if title:
        yield Heading(title)
    yield points_table(found, names, runs=len({run for run, _ in found}) > 1)
    yield Line.of("; ".join(_notes(rows, names, screen)), tone="dim")


def points_table(found: Sequence[tuple[str, PointRow]], names: Sequence[str], *, runs: bool) -> Table:
    """Return a row for each point, with its run if asked for; headings have a line for each word."""
    repeats = any(row.repeat for _, row in found)
    head = [*["run"] * runs, "load", *["re-\npeat"] * repeats]
    head += [*(POINT_COLUMNS[name].heading.replace(" ", "\n") for name in names), "trust"]
    rows: list[list[str | Label]] = []
    for run, one in found:
        cells = (cell_text(one, name) for name in names)
        rows.append([*[run] * runs, str(one.level), *[str(one.repeat)] * repeats, *cells, trust_label(one)])
    return table(head, rows, left=(len(head) - 1,), wrap=(0,) * runs, caption="Points")


def live_table(points: Sequence[tuple[str, Point]]) -> Table:
    """Return finished points with the labels of their runs."""
    # the first rows of a study with several runs may all be of one
    return points_table([(run, point.judged_row) for run, point in points], LIVE, runs=any(run for run, _ in points))


def _notes(rows: Sequence[PointRow], names: Sequence[str], screen: Screen) -> Iterator[str]:
    """What the signs of a table mean, and why throughputs of one run have no interval, with the levels."""
    yield POINTS_NOTE
    if any(is_weak_percentile(row, name) for row, name in product(rows, names)):
        yield WEAK_NOTE
    if any(name.endswith("_all") for name in names):
        yield FAILED_NOTE
    levels: dict[str, list[str]] = {}
    for one in rows if screen != "report" else ():
        if (why := missing_interval(one, "output_throughput_tok_s")) is not None:
            levels.setdefault(why, []).append(str(one.level))
    yield from (f"no ± at {', '.join(dict.fromkeys(labels))}: {why}" for why, labels in levels.items())


def repeats_blocks(found: Sequence[tuple[str, Sequence[PointRow]]], title: str = "") -> Iterator[Block]:
    """Yield the means of the levels of runs, by their labels, that have several points which are not void; nothing without any.
    In an open loop users wait from the schedule on."""
    levels = [
        (run, level, own)
        for run, rows in found
        for level, own in levels_of(rows).items()
        if len(own) > 1 and own[0].verdict != "void"
    ]
    if not levels:
        return
    open_loop = any(level.open_loop for _, level, _ in levels)
    names: tuple[str, ...] = (THROUGHPUT, "ttft_from_schedule_ms_p50" if open_loop else "ttft_ms_p50", "tpot_ms_p50")
    if all(row.input_throughput_texts_s is not None for _, _, own in levels for row in own):
        names = ("input_throughput_texts_s", "e2e_ms_p50")
    titles = [f"{POINT_COLUMNS[name].title}, {POINT_COLUMNS[name].unit}" for name in names]
    several = len(found) > 1
    head = [*["run"] * several, "load", "repeats", *titles]
    cells = [
        [*[run] * several, str(level), str(len(own)), *(_mean_text(own, name) for name in names)]
        for run, level, own in levels
    ]
    if title:
        yield Heading(title)
    yield table(head, cells, left=(), wrap=(0,) * several, caption="Over repeats")
    yield Line.of(REPEATS_NOTE, tone="dim")


def _mean_text(rows: Sequence[PointRow], column: str) -> str:
    found = estimate_level(rows, column)
    if found is None:
        return MISSING
    return number(found.value) + (f" [{number(found.low)}, {number(found.high)}]" if found.low is not None else "")


def warning_items(points: Iterable[Point]) -> Items:
    """Return each warning once, with its levels, cause and remedy."""
    every = list(points)
    counts = Counter(point.row.level for point in every)
    found: dict[str, list[tuple[PointRow, Doubt]]] = {}
    for point in every:
        for doubt in point.doubts:
            found.setdefault(doubt.code, []).append((point.row, doubt))
    return items(_warning_line(code, doubts, counts) for code, doubts in found.items())


def _warning_line(code: str, doubts: Sequence[tuple[PointRow, Doubt]], counts: Mapping[Level, int]) -> str:
    """A warning with its levels, which have `counts` points; it names the point of its figures where they differ."""
    levels = list(dict.fromkeys(row.level for row, _ in doubts))
    first_row, first = doubts[0]
    differ = len({doubt.message for _, doubt in doubts}) > 1
    one_of_several = counts[first_row.level] > 1 and (differ or len(doubts) == 1)
    repeat = f", repeat {first_row.repeat}" if one_of_several else ""
    begin = f"at {first_row.level}{repeat}, " if repeat or (differ and len(levels) > 1) else ""
    return f"{code} (at {', '.join(map(str, levels))}): {begin}{'; '.join(filter(None, (first.message, first.remedy)))}"
