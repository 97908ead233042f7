"""The contents of the page's sections on results: charts, points, repeats, timelines, cold start and quality."""

from typing import Any

from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import mapping
from servebench.report.html import charts
from servebench.report.html.elements import Cells, Label, Table, figures_of
from servebench.report.html.model import Page, QualityRow
from servebench.report.html.svg import Axis, Mark
from servebench.report.terminal.results import REPEATS_NOTE, cell_text
from servebench.util.figures import MISSING, number, percent

Section = tuple[str, Any] | None

POINT_COLUMNS = (
    ("ok", "requests_ok"),
    ("failed", "requests_failed"),
    ("tok/s", "output_throughput_tok_s"),
    ("req/s", "request_throughput_req_s"),
    ("good req/s", "goodput_req_s"),
    ("TTFT p50", "ttft_ms_p50"),
    ("TTFT p99", "ttft_ms_p99"),
    ("with failed", "ttft_ms_p99_all"),
    ("ITL mean", "itl_ms_mean"),
    ("ITL p99", "itl_ms_p99"),
    ("TPOT mean", "tpot_ms_mean"),
    ("E2E p50", "e2e_ms_p50"),
    ("E2E p99", "e2e_ms_p99"),
    ("with failed", "e2e_ms_p99_all"),
    ("cache hits", "prefix_cache_hit_rate"),
    ("at best", "prefix_cache_hit_rate_ideal"),
    ("valid JSON", "json_compliance"),
    ("unconstrained", "json_compliance_unconstrained"),
    ("needles", "needle_recall"),
    ("J/token", "energy_j_per_token"),
    ("tok/s/W", "output_tok_s_per_w"),
    ("$/M tokens", "cost_usd_per_mtok"),
    ("$/M good req", "cost_usd_per_mgood"),
)
DISTURBERS_MAX = 3
"""So many are named above a timeline."""
SHARES = (
    *("prefix_cache_hit_rate", "prefix_cache_hit_rate_ideal"),
    *("json_compliance", "json_compliance_unconstrained", "needle_recall"),
)
DISTRIBUTIONS = (
    ("ttft_ms", "time to first token, ms", "Time to first token"),
    ("itl_ms", "gap between tokens, ms", "Gap between tokens (ITL)"),
    ("e2e_ms", "whole answer, ms", "Whole answer (E2E)"),
)
QUALITY_HEAD = (
    *("run", "benchmark", "at", "answers", "measure", "%", "95% interval"),
    *("failed", "latency p50 ms", "p99 ms", "right/s", "warnings"),
)


def load(data: Page) -> Section:
    """Return the charts of throughput and latency against the load."""
    views = data.views
    repeated = any(row.repeat for one in data.runs for row in one.rows)
    bars = f"bars: {'lowest to highest repeat' if repeated else '95% interval'}; hollow: doubtful"

    ttft, tpot = data.limits.get("ttft_ms"), data.limits.get("tpot_ms")
    columns = (
        (
            "output_throughput_tok_s",
            "Output throughput",
            Axis(title="output tokens per second", zero=True),
            "tok/s",
            None,
        ),
        ("ttft_ms_p50", "Time to first token, median", Axis(title="TTFT p50, ms", log=True), "ms", ttft),
        ("ttft_ms_p99", "Time to first token, 99th percentile", Axis(title="TTFT p99, ms", log=True), "ms", ttft),
        ("tpot_ms_mean", "Time per output token, mean", Axis(title="TPOT mean, ms", zero=True), "ms", tpot),
    )
    against_load = []
    for column, title, axis, unit, limit in columns:
        marks = [Mark(y=limit, text=f"SLO {limit:g} ms")] if limit else ()
        svg = charts.against_load(views, column, axis, title=f"{title} by load", unit=unit, marks=marks)
        against_load.append((svg, title, bars))
    figures = figures_of(
        *against_load,
        (
            charts.pareto(views, title="speed per user against throughput of a GPU"),
            "Speed per user against throughput of the machine",
            "up and to the right is better",
        ),
        (
            charts.tradeoff(views, title="TTFT against throughput"),
            "TTFT against throughput",
            "the larger the mark, the higher the load; down and to the right is better",
        ),
    )
    void = sum(row.verdict == "void" for one in data.runs for row in one.rows)
    note = f"{void} void points are not in the charts; see the warnings." if void and figures else ""
    return "figures", {"charts": figures, "note": note}


def distributions(data: Page) -> Section:
    """Return the charts of latency distributions at the highest common load."""
    at = data.distribution_at
    if at is None:
        return None
    titled = ((name, axis, f"{title} at load {at}") for name, axis, title in DISTRIBUTIONS)
    figures = figures_of(
        *((charts.distribution(data.views, at, name, axis, title=title), title) for name, axis, title in titled)
    )
    return ("figures", {"charts": figures, "note": ""}) if figures else None


def points(data: Page) -> Section:
    """Return the table of all points, with the columns that have values."""
    rows = [(one.view.name, row) for one in data.runs for row in one.rows]
    if not rows:
        return None
    failed = any(row.requests_failed for _, row in rows)
    columns = [
        (title, column)
        for title, column in POINT_COLUMNS
        if any(row.get(column) is not None for _, row in rows) and (failed or not column.endswith("_all"))
    ]
    body: list[Cells] = [
        [
            name,
            row.level_label + (f" ·{row.repeat}" if row.repeat else ""),
            *(_cell(row, column) for _, column in columns),
            Label.of(row.verdict or MISSING),
        ]
        for name, row in rows
    ]
    note = " With failed: failed requests count as infinitely slow (∞)." if failed else ""
    return "noted_table", {
        "boxes": (),
        "note": f"Times in ms; ± is half of the 95% interval.{note}",
        "table": Table(("run", "load", *(title for title, _ in columns), "verdict"), body),
    }


def _cell(row: PointRow, column: str) -> str:
    return percent(row.get(column)) if column in SHARES else cell_text(row, column)


def repeats(data: Page) -> Section:
    """Return what the repeats of each level show together."""
    if not data.repeats:
        return None
    titles = {name: title for _, found in data.repeats for name, title in found.titles.items()}
    rows = []
    for run, found in data.repeats:
        for at, metrics in found.levels.items():
            count = max(row.count for row in metrics.values())
            cells = (metrics[name].text if name in metrics else MISSING for name in titles)
            rows.append([run, at, str(count), *cells])
    return "noted_table", {
        "boxes": [(run, note) for run, found in data.repeats for note in found.notes],
        "note": f"{REPEATS_NOTE}.",
        "table": Table(("run", "load", "repeats", *titles.values()), rows),
    }


def timeline(data: Page) -> Section:
    """Return the requests of a point of each run over time."""
    drawn = [
        (
            "; ".join([f"{one.run}, load {one.level}", *(who for _, _, who in one.disturbed[:DISTURBERS_MAX])]),
            charts.requests_timeline(
                one.spans,
                one.panels,
                one.window,
                disturbed=one.disturbed,
                title=f"{one.run} at load {one.level} over time",
            ),
        )
        for one in data.timelines
    ]
    shown = [(title, svg) for title, svg in drawn if svg]
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
                starts.append((one.view.name + suffix, phases))
            elif phases and not suffix:
                shared.append(one.view.name)
    if not starts and not shared:
        return None
    svg = charts.cold_start(starts, title="cold start by phase")
    rows = [[name, phase, f"{at:.2f}"] for name, phases in starts for phase, at in phases]
    return "cold_start", {
        "charts": figures_of((svg, "Cold start by phase", "from the start of the command to the first real token")),
        "table": Table(("run", "phase", "ended after, s"), rows, left=(0, 1)),
        "shared": ", ".join(shared),
    }


def quality(data: Page) -> Section:
    """Return the result of each benchmark, and how the runs compare."""
    if not data.quality:
        return "faint", "Not measured: set quality= to measure it."
    return "quality", {
        "emulated": any(row.result.emulated for row in data.quality),
        "charts": figures_of(
            *(
                drawn
                for dataset in dict.fromkeys(row.result.benchmark for row in data.quality)
                for drawn in _quality_charts(dataset, [row for row in data.quality if row.result.benchmark == dataset])
            )
        ),
        "table": Table(QUALITY_HEAD, [_quality_cells(row) for row in data.quality], left=(0, 1, 2, 4, 11)),
        "agreements": [
            (Label.of(one.finding), f"{candidate} vs {baseline}: {one.swapped().sentence}")
            for baseline, candidate, one in data.agreements
        ],
    }


def _quality_charts(dataset: str, rows: list[QualityRow]) -> list[tuple[str | None, str]]:
    several = len({row.load for row in rows}) > 1
    bars = [
        (f"{row.run}{f', {row.result.at}' if several else ''} ({row.result.n} answers)", row.share, row.low, row.high)
        for row in rows
    ]
    measure = rows[0].result.measure
    drawn = [(charts.quality(bars, title=f"quality on {dataset}", measure=measure), f"Quality on {dataset}")]
    if several:
        dots = [(row.run, row.load, row.share, row.low, row.high, row.result.right_per_s) for row in rows]
        shares, speeds = charts.quality_against_load(dots, dataset, measure)
        drawn += [(shares, f"{dataset} by load"), (speeds, f"Right answers per second on {dataset}")]
    return drawn


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
