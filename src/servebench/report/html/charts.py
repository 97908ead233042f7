"""The charts of a report, from rows of points and plain arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from servebench.contracts.point_row import PointRow
from servebench.report.html.svg import Axis, Bar, Dot, Mark, Series, Span, bars, chart, timeline
from servebench.util.figures import number

Floats = NDArray[np.float64]
Row = PointRow
CURVE_POINTS = 160
DRAWN_FROM_MS = 0.01
"""Gaps of 0 between tokens of one event are not drawn: a log axis would have no room for the others."""


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run as the charts show it. `latencies` maps a load level to arrays of ok requests by name (ttft_ms, itl_ms, e2e_ms)."""

    name: str
    index: int
    rows: Sequence[Row]
    gpu_count: int = 0
    latencies: Mapping[str, Mapping[str, Floats]] = field(default_factory=dict)


def load_of(row: Row) -> float | None:
    """Return the load level as a number: requests in flight, or per second."""
    value = row.rate if row.rate is not None else row.concurrency
    return None if value is None else float(value)


def load_axis(rows: Sequence[Row]) -> Axis:
    """Return the logarithmic axis of load levels, with a tick at each level."""
    rate = any(row.rate is not None for row in rows)
    levels = sorted({load for row in rows if (load := load_of(row)) is not None})
    title = "requests per second" if rate else "concurrency (requests in flight)"
    return Axis(title=title, log=True, ticks=levels)


def by_level(rows: Sequence[Row]) -> dict[float, list[Row]]:
    """Return the rows that are drawn by ascending load; several where a level was repeated."""
    found: dict[float, list[Row]] = {}
    for row in rows:
        load = load_of(row)
        if load is not None and load > 0 and row.verdict != "void":
            found.setdefault(load, []).append(row)
    return dict(sorted(found.items()))


def mean_of(rows: Sequence[Row], column: str) -> float | None:
    """Return the mean over the repeats of a level; None where none has a finite number."""
    values = [float(row[column]) for row in rows if row.get(column) is not None and np.isfinite(row[column])]
    return sum(values) / len(values) if values else None


def _dots(view: RunView, column: str, unit: str) -> list[Dot]:
    """One dot per level. Its bar is the interval, or the range of the repeats where there are several."""
    found = []
    for load, rows in by_level(view.rows).items():
        own = [row for row in rows if row.get(column) is not None and np.isfinite(row[column])]
        value = mean_of(own, column)
        if value is None:
            continue
        low, high = own[0].get(f"{column}_low"), own[0].get(f"{column}_high")
        repeats = ""
        if len(own) > 1:
            low, high = (float(f(row[column] for row in own)) for f in (min, max))
            repeats = f", mean of {len(own)} repeats"
        verdicts = ", ".join(dict.fromkeys(str(row.verdict) for row in own))
        tip = f"{view.name}, {own[0].level_label}: {number(value)} {unit}{repeats}, {verdicts}"
        hollow = any(row.verdict != "valid" for row in own)
        found.append(Dot(x=load, y=value, low=low, high=high, hollow=hollow, tip=tip))
    return found


def against_load(
    views: Sequence[RunView], column: str, axis: Axis, *, title: str, unit: str, marks: Sequence[Mark] = ()
) -> str | None:
    """Draw a metric by load level, one line per run; None when no run has it."""
    rows = [row for view in views for row in view.rows]
    series = [Series(name=view.name, dots=_dots(view, column, unit), index=view.index) for view in views]
    return chart(series, load_axis(rows), axis, title=title, marks=marks)


def pareto(views: Sequence[RunView], *, title: str) -> str | None:
    """Draw tokens per second of one user against tokens per second of one GPU (of the machine without GPUs)."""
    series = []
    for view in views:
        dots = []
        for rows in by_level(view.rows).values():
            tpot, throughput = mean_of(rows, "tpot_ms_mean"), mean_of(rows, "output_throughput_tok_s")
            if not tpot or not throughput:
                continue
            share = throughput / max(view.gpu_count, 1)
            dots.append(
                Dot(
                    x=1000 / tpot,
                    y=share,
                    hollow=any(row.verdict != "valid" for row in rows),
                    tip=f"{view.name}, {rows[0].level_label}: {number(1000 / tpot)} tok/s per user, {number(share)} per GPU",
                )
            )
        series.append(Series(name=view.name, dots=dots, index=view.index))
    per = "GPU" if any(view.gpu_count for view in views) else "machine"
    return chart(
        series,
        Axis(title="tokens per second of one user (1 / TPOT)", zero=True),
        Axis(title=f"output tokens/s per {per}", zero=True),
        title=title,
    )


def tradeoff(views: Sequence[RunView], *, title: str) -> str | None:
    """Draw TTFT against throughput; the larger the mark, the higher the load."""
    loads = [load for view in views for row in view.rows if (load := load_of(row))]
    if not loads:
        return None
    series = []
    for view in views:
        dots = [
            Dot(
                x=float(row.output_throughput_tok_s),
                y=float(row.ttft_ms_p50),
                size=3 + 7 * (np.log1p(load_of(row) or 0) / np.log1p(max(loads))),
                hollow=row.verdict != "valid",
                tip=f"{view.name}, {row.level_label}",
            )
            for row in view.rows
            if row.output_throughput_tok_s and row.ttft_ms_p50 and row.verdict != "void"
        ]
        series.append(Series(name=view.name, dots=dots, index=view.index, line=False))
    return chart(
        series, Axis(title="output throughput, tok/s", zero=True), Axis(title="TTFT p50, ms", log=True), title=title
    )


def distribution(views: Sequence[RunView], at: str, name: str, words: str, *, title: str) -> str | None:
    """Draw the cumulative distribution of a latency, one curve per run; None without values."""
    series = []
    for view in views:
        values = view.latencies.get(at, {}).get(name)
        if values is None or values.size < 2:
            continue
        shares = np.linspace(0, 100, min(CURVE_POINTS, values.size))
        curve = np.percentile(values, shares)
        dots = [Dot(x=float(v), y=float(s)) for v, s in zip(curve, shares, strict=True) if v > DRAWN_FROM_MS]
        series.append(Series(name=view.name, dots=dots, index=view.index, plain=True))
    return chart(
        series,
        Axis(title=words, log=True),
        Axis(title="share of values up to this, %", ticks=(0, 25, 50, 75, 100), zero=True),
        title=title,
    )


PHASES = {
    **dict.fromkeys(("spawned", "process_up"), "process starts"),
    **dict.fromkeys(("weights_loading", "weights_loaded"), "weights"),
    **dict.fromkeys(("compiled", "engine_built", "autotuned"), "build, compile"),
    "graphs_captured": "graphs",
    "first_token": "first token",
}
"""The kind of each phase, so that engines with different phases can be compared."""
OTHER_PHASE = "server starts"


def cold_start(starts: Sequence[tuple[str, Sequence[tuple[str, float]]]], *, title: str) -> str | None:
    """Draw the seconds of each kind of phase, one bar per start. Phases are (name, seconds from the start to its end)."""
    rows = []
    for name, phases in starts:
        parts: dict[str, float] = {}
        before = 0.0
        for phase, seconds in phases:
            kind = PHASES.get(phase, OTHER_PHASE)
            parts[kind] = parts.get(kind, 0.0) + max(0.0, seconds - before)
            before = max(before, seconds)
        rows.append(Bar(name=name, parts=list(parts.items())))
    return bars(rows, Axis(title="seconds", zero=True), title=title, text=lambda s: f"{s:.3g} s")


def quality(rows: Sequence[tuple[str, float, float, float]], *, title: str, measure: str = "right") -> str | None:
    """Draw quality scores with their intervals: (name, share, low, high). `measure` says what the share means."""
    return bars(
        [
            Bar(name=name, parts=[(measure, 100 * share)], low=100 * low, high=100 * high)
            for name, share, low, high in rows
        ],
        Axis(title=f"% {measure}, with its 95% interval", zero=True),
        title=title,
        text=lambda v: f"{v:.3g}%",
    )


def quality_against_load(
    rows: Sequence[tuple[str, float | None, float, float, float, float | None]], name: str, measure: str = "right"
) -> tuple[str | None, str | None]:
    """Draw the share right, and right answers per second, by load: (run, load, share, low, high, right answers per second)."""
    runs = list(dict.fromkeys(run for run, *_ in rows))
    loads = sorted({load for _, load, *_ in rows if load is not None})
    shares, speeds = [], []
    for index, run in enumerate(runs):
        at, fast = [], []
        for one, load, share, low, high, speed in rows:
            if one != run or not load:
                continue
            tip = f"{run}: {100 * share:.1f}% {measure}"
            at.append(Dot(x=load, y=100 * share, low=100 * low, high=100 * high, tip=tip))
            if speed is not None:
                fast.append(Dot(x=load, y=speed, tip=f"{run}: {number(speed)} right answers/s"))
        shares.append(Series(name=run, dots=at, index=index))
        speeds.append(Series(name=run, dots=fast, index=index))
    across = Axis(title="load during the questions", log=True, ticks=loads)
    drawn = (
        (shares, f"% {measure}, with its 95% interval", f"{name} by load"),
        (speeds, "right answers/s", f"right answers per second on {name}"),
    )
    right, fast_right = (
        chart(series, across, Axis(title=words, zero=True), title=title) for series, words, title in drawn
    )
    return right, fast_right


def requests_timeline(
    spans: Sequence[Span],
    panels: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    window: tuple[float, float] | None,
    *,
    disturbed: Sequence[tuple[float, float, str]] = (),
    title: str,
) -> str | None:
    """Draw the requests of a point over panels of server and machine metrics; None when nothing was sent."""
    return timeline(spans, panels, window=window, disturbed=disturbed, title=title) if spans else None
