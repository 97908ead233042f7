"""The sections of a report on results: charts, points, repeats, timelines, cold start and quality."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import starmap

from servebench.contracts.results import QualitySummary
from servebench.contracts.stored import mapping
from servebench.report.blocks import Block, Charts, Fold, Line, table
from servebench.report.charts.model import STATS
from servebench.report.charts.specs import comparing, distributions, legend_of, weak_note
from servebench.report.charts.timeline import timeline_chart
from servebench.report.screens.page import Page
from servebench.report.screens.points import points_blocks, repeats_blocks
from servebench.report.screens.times import times_blocks
from servebench.report.trust import point_trust
from servebench.util.figures import number, percent

DOUBT_NOTE = (
    "Why a point is doubtful, wide or void stands beside its trust; Warnings and remedies, below, explains the codes."
)
DISTURBERS_MAX = 3
"""So many are named above a timeline."""
STILL_PANELS = 3
"""So many panels of a timeline are in its still picture: its requests, and the first ones below them."""
FIRST = ("output_throughput", "ttft", "tpot", "goodput", "user_speed_against_throughput")
"""The charts that are shown at once; the others are a click away."""
CHARTS_NOTE = "Bands and bars are 95% intervals. Hollow marks are doubtful points."
QUALITY_HEAD = (
    *("run", "benchmark", "at", "answers", "measure", "%", "95% interval"),
    *("failed", "latency p50 ms", "p99 ms", "right/s", "warnings"),
)


def load(data: Page) -> Iterator[Block]:
    """Yield the charts of throughput and latency against the load: those that decide first, then the others."""
    sets = comparing(data.runs, data.limits)
    if not sets:
        yield Line.of("No point was measured.")
        return
    void = sum(row.verdict == "void" for one in data.runs for row in one.rows)
    hidden = f"{void} void point{'s are' if void > 1 else ' is'} not drawn." if void else ""
    yield Line.of(" ".join(filter(None, (CHARTS_NOTE, hidden, weak_note(data.runs)))), tone="dim")
    yield Charts([one for one in sets if one.name in FIRST], legend_of(data.runs), STATS)
    if more := [one for one in sets if one.name not in FIRST]:
        yield Fold(f"more charts: {', '.join(one.title for one in more)}", [Charts(more)])


def distribution(data: Page) -> Iterator[Block]:
    """Yield the charts of latency distributions at the highest common load."""
    found = distributions(data.runs, data.distribution_at) if data.distribution_at else None
    if found is not None:
        yield Charts([found], legend_of(data.runs))


def where_time_goes(data: Page) -> Iterator[Block]:
    """Yield the mean parts of TTFT and E2E of each run, and what its slowest requests have in common."""
    return times_blocks(data.times)


def points(data: Page) -> Iterator[Block]:
    """Yield the table of all points, with the columns that have values."""
    rows = [(one.label, row) for one in data.runs for row in one.rows]
    if rows:
        yield from points_blocks(rows, "report")
        if any(point_trust(row.verdict, row.doubts)[1] for _, row in rows):
            yield Line.of(DOUBT_NOTE, tone="dim")


def repeats(data: Page) -> Iterator[Block]:
    """Yield the means of levels with several points."""
    return repeats_blocks([(one.label, one.rows) for one in data.runs])


def timeline(data: Page) -> Iterator[Block]:
    """Yield the requests of a point of each run over time, with who disturbed it."""
    for one in data.timelines:
        if (chart := timeline_chart(one)) is not None:
            printed = timeline_chart(replace(one, panels=one.panels[: STILL_PANELS - 1]))
            yield Charts([chart], printed=printed)
            yield from (Line.of(who, tone="dim") for _, _, who in one.disturbed[:DISTURBERS_MAX])


def cold_start(data: Page) -> Iterator[Block]:
    """Yield the phases of each cold start."""
    rows, shared = [], []
    for one in data.runs:
        start = mapping(one.run.manifest.get("cold_start"))
        phases = [
            (str(mapping(phase).get("name")), float(mapping(phase)["seconds"]))
            for phase in start.get("phases") or ()
            if isinstance(mapping(phase).get("seconds"), (int, float))
        ]
        if phases and start.get("shared"):
            shared.append(one.label)
        else:
            rows += [[one.label, phase, f"{at:.2f}"] for phase, at in phases]
    if rows:
        yield table(("run", "phase", "ended after, s"), rows, left=(0, 1), caption="Phases of each start")
    if shared:
        yield Line.of(f"Started by an earlier run: {', '.join(shared)}.", tone="dim")


def quality(data: Page) -> Iterator[Block]:
    """Yield the result of each benchmark; comparisons say how the runs compare."""
    if not data.quality:
        yield Line.of("Not measured: set quality= to measure it.", tone="dim")
        return
    if any(result.emulated for _, result in data.quality):
        yield Line.of("The answers of an emulated engine have no meaning.", tone="warn")
    yield table(QUALITY_HEAD, starmap(_quality_cells, data.quality), left=(0, 1, 2, 4, 11), caption="Quality")


def _quality_cells(run: str, result: QualitySummary) -> list[str]:
    share, low, high = (percent(one).removesuffix("%") for one in (result.value, result.low, result.high))
    return [
        *(run, result.benchmark, result.at, str(result.n), result.measure, share),
        *(f"{low} to {high}", str(result.unanswered), number(result.latency_ms_p50)),
        *(number(result.latency_ms_p99), number(result.right_per_s), ", ".join(doubt.code for doubt in result.doubts)),
    ]
