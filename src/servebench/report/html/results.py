"""The contents of the page's sections on results: charts, points, repeats, timelines, cold start and quality."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from servebench.analysis.statistics import is_weak_percentile, values_needed
from servebench.contracts.columns import SHARE
from servebench.contracts.point_row import POINT_COLUMNS, PointRow, columns_shown
from servebench.contracts.stored import mapping
from servebench.report.charts import runs
from servebench.report.charts.model import STATS, Series
from servebench.report.charts.parts import time_charts, time_note
from servebench.report.charts.runs import QualityRow
from servebench.report.charts.specs import COLOURS, GLYPHS, comparing, distributions
from servebench.report.content import shares_prefixes
from servebench.report.html.elements import Cells, Label, Table
from servebench.report.html.model import Page
from servebench.report.parts import FACTORS_NOTE
from servebench.report.points import point_trust
from servebench.report.terminal.results import REPEATS_NOTE, WEAK_NOTE, cell_text
from servebench.report.wording.quality import agreement_text
from servebench.report.wording.repeats import note_text, value_text
from servebench.util.figures import MISSING, number, percent

Section = tuple[str, Any] | None

DOUBT_NOTE = (
    " Why a point is doubtful, wide or void is below its trust; Warnings and remedies, below, has these words in full."
)
DISTURBERS_MAX = 3
"""So many are named above a timeline."""
STILL_PANELS = 3
"""So many panels of a timeline are in its still picture: its requests, and the first ones below them."""
FIRST = ("output_throughput", "ttft", "tpot", "goodput", "user_speed_against_throughput")
"""The charts that are shown at once; the others are a click away."""
QUALITY_HEAD = (
    *("run", "benchmark", "at", "answers", "measure", "%", "95% interval"),
    *("failed", "latency p50 ms", "p99 ms", "right/s", "warnings"),
)


def load(data: Page) -> Section:
    """Return the charts of throughput and latency against the load: those that decide first, then the others."""
    sets = comparing(data.series, data.limits)
    if not sets:
        return "text", "No point was measured."
    void = sum(row.verdict == "void" for one in data.runs for row in one.rows)
    repeated = any(row.repeat for one in data.runs for row in one.rows)
    spread = "lowest to highest repeat" if repeated else "95% interval"
    notes = [
        f"Bands and bars: {spread}. Hollow marks: doubtful points.",
        f"{void} void point{'s are' if void > 1 else ' is'} not drawn." if void else "",
        weak_note(data.series),
    ]
    return "load", {
        "legend": legend_of(data.series),
        "first": [one for one in sets if one.name in FIRST],
        "more": [one for one in sets if one.name not in FIRST],
        "note": " ".join(filter(None, notes)),
        "stats": STATS,
    }


def weak_note(series: Sequence[Series]) -> str:
    """Return that some of the p99 that charts show are of too few requests; empty where none are."""
    weak = any(
        is_weak_percentile(row, f"{name}_ms_p99")
        for one in series
        for row in one.rows
        for name in ("ttft", "tpot", "e2e")
    )
    return (
        f"A p99 of fewer than {values_needed(99)} requests has no interval: it rests on a few of them." if weak else ""
    )


def legend_of(series: Sequence[Series]) -> list[dict[str, str]]:
    """Return the name, colour and mark of each series that has points, once."""
    first = {one.name: one.colour for one in series if one.rows}
    return [
        {"name": name, "colour": COLOURS[index % len(COLOURS)], "mark": GLYPHS[index % len(GLYPHS)]}
        for name, index in first.items()
    ]


def distribution(data: Page) -> Section:
    """Return the charts of latency distributions at the highest common load."""
    found = distributions(data.series, data.distribution_at) if data.distribution_at else None
    return None if found is None else ("figures", {"legend": legend_of(data.series), "sets": [found]})


def where_time_goes(data: Page) -> Section:
    """Return the bars of TTFT and E2E of each run, and what its slowest requests have in common."""
    sets = time_charts(data.times)
    if not sets:
        return None
    rows: list[Cells] = [
        [
            run.name,
            tail.level.words,
            tail.metric,
            one.kind.title,
            number(one.slow),
            number(one.rest),
            f"{one.more_often:.0%}",
            f"{one.p:.2g}",
            Label("in common", "warn") if one.found else "",
        ]
        for run in data.times
        for tail in run.tails
        for one in tail.factors
    ]
    head = ("run", "load", "of", "median of", "slowest", "others", "more often", "p", "finding")
    return "where_time_goes", {
        "bars": time_note(data.times),
        "sets": sets,
        "runs": [(run.name, run.lines) for run in data.times],
        "table": Table("What the slowest requests have in common", head, rows, left=(0, 1, 2, 3, 8)) if rows else None,
        "note": FACTORS_NOTE,
    }


def points(data: Page) -> Section:
    """Return the table of all points, with the columns that have values."""
    rows = [(one.name, row) for one in data.runs for row in one.rows]
    if not rows:
        return None
    failed = any(row.requests_failed for _, row in rows)
    cached = any(shares_prefixes(row) for _, row in rows)
    columns = [
        one.name
        for one in columns_shown("report")
        if any(row.get(one.name) is not None for _, row in rows)
        and (failed or not one.name.endswith("_all"))
        and (cached or not one.name.startswith("prefix_cache"))
    ]
    body: list[Cells] = [
        [
            name,
            str(row.level) + (f" ·{row.repeat}" if row.repeat else ""),
            _point_label(row),
            *(_cell(row, column) for column in columns),
        ]
        for name, row in rows
    ]
    note = " With failed: failed requests count as infinitely slow (∞)." if failed else ""
    weak = any(is_weak_percentile(row, column) for _, row in rows for column in columns)
    doubtful = any(point_trust(row.verdict, row.doubts)[1] for _, row in rows)
    return "noted_table", {
        "boxes": (),
        "note": f"Times in ms; ± is half of the 95% interval.{f' {WEAK_NOTE}.' * weak}{note}{DOUBT_NOTE * doubtful}",
        "table": Table(
            "All points",
            ("run", "load", "trust", *(POINT_COLUMNS[column].heading for column in columns)),
            body,
            left=(0, 2),
        ),
    }


def _point_label(row: PointRow) -> Label:
    """Return how far to trust a point, and the codes that say why."""
    word, why = point_trust(row.verdict, row.doubts)
    return replace(Label.of(word), note=", ".join(why))


def _cell(row: PointRow, column: str) -> str:
    return percent(row.get(column)) if POINT_COLUMNS[column].unit == SHARE else cell_text(row, column)


def repeats(data: Page) -> Section:
    """Return what the repeats of each level show together."""
    if not data.repeats:
        return None
    titles = {name: title for _, found in data.repeats for name, title in found.titles.items()}
    rows = []
    for run, found in data.repeats:
        for at, metrics in found.levels.items():
            count = max(row.count for row in metrics.values())
            cells = (value_text(metrics[name]) if name in metrics else MISSING for name in titles)
            rows.append([run, str(at), str(count), *cells])
    return "noted_table", {
        "boxes": [(run, note_text(note)) for run, found in data.repeats for note in found.notes],
        "note": f"{REPEATS_NOTE}.",
        "table": Table("Over repeats", ("run", "load", "repeats", *titles.values()), rows),
    }


def timeline(data: Page) -> Section:
    """Return the requests of a point of each run over time, with who disturbed it."""
    shown = [
        {
            "chart": chart,
            "still": runs.timeline(replace(one, panels=one.panels[: STILL_PANELS - 1])),
            "disturbers": [who for _, _, who in one.disturbed[:DISTURBERS_MAX]],
        }
        for one in data.timelines
        if (chart := runs.timeline(one)) is not None
    ]
    return ("timeline", shown) if shown else None


def cold_start(data: Page) -> Section:
    """Return the phases of each cold start and warm restart."""
    starts, shared = [], []
    for one in data.runs:
        for kind, suffix in (("cold_start", ""), ("warm_restart", " (warm restart)")):
            start = mapping(one.run.manifest.get(kind))
            phases = [
                (str(mapping(phase).get("name")), float(mapping(phase)["seconds"]))
                for phase in start.get("phases") or ()
                if isinstance(mapping(phase).get("seconds"), (int, float))
            ]
            if phases and not start.get("shared"):
                starts.append((one.name + suffix, phases))
            elif phases and not suffix:
                shared.append(one.name)
    if not starts and not shared:
        return None
    rows = [[name, phase, f"{at:.2f}"] for name, phases in starts for phase, at in phases]
    return "cold_start", {
        "chart": runs.cold_start(starts),
        "table": Table("Phases of each start", ("run", "phase", "ended after, s"), rows, left=(0, 1)),
        "shared": ", ".join(shared),
    }


def quality(data: Page) -> Section:
    """Return the result of each benchmark, and how the runs compare."""
    if not data.quality:
        return "faint", "Not measured: set quality= to measure it."
    return "quality", {
        "emulated": any(row.result.emulated for row in data.quality),
        "charts": runs.quality(data.quality, [replace(one.series, name=one.name) for one in data.runs]),
        "table": Table("Quality", QUALITY_HEAD, [_quality_cells(row) for row in data.quality], left=(0, 1, 2, 4, 11)),
        "agreements": [
            (Label.of(one.finding), f"{candidate} vs {baseline}: {agreement_text(one.swapped())}")
            for baseline, candidate, one in data.agreements
        ],
    }


def _quality_cells(row: QualityRow) -> list[str]:
    result = row.result
    return [
        row.run,
        result.benchmark,
        result.at,
        str(result.n),
        result.measure,
        f"{100 * row.share:.1f}",
        f"{100 * row.low:.1f} to {100 * row.high:.1f}",
        str(result.unanswered),
        number(result.latency_ms_p50),
        number(result.latency_ms_p99),
        number(result.right_per_s),
        ", ".join(doubt.code for doubt in result.doubts),
    ]
