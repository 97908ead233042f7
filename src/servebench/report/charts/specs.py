"""Vega-Lite specs of the charts that compare runs: a panel for each workload, a colour, mark and dash for each engine.

The specs are plain data: importing a library that builds them takes longer than drawing. The parameter `stat` chooses the
percentile, `hidden` names the series that the reader switched off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from servebench.analysis.estimate import estimate_level, levels_of, mean_of
from servebench.analysis.statistics import is_weak_percentile, values_needed
from servebench.contracts.level import Level
from servebench.contracts.point_row import POINT_COLUMNS, PointRow, columns_shown
from servebench.report.charts.model import METRICS, Chart, ChartMetric, ChartSet, Series, Spec, nominal, quantitative
from servebench.report.trust import point_trust, reason_of_code
from servebench.util.arrays import Floats
from servebench.util.figures import number, rough, with_interval

COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A6D00", "#56B4E9"),
    *("#000000", "#7A7A7A", "#882255", "#332288", "#117733", "#AA4499"),
)
"""Those of Okabe and Ito (2008) and of Tol, distinct for the colour-blind. Marks and dashes repeat at other intervals."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
GLYPHS = ("●", "■", "▲", "◆", "▼", "✚", "▶", "◀")
"""The shapes as text, for legends."""
DASHES: tuple[list[int], ...] = ([], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4])
LIMIT_COLOUR = "#a00000"
LOG_FROM = 20.0
"""A metric is drawn on a logarithmic axis if its largest value is more than this many times its smallest."""
LIMIT_SHOWN = 2.5
"""An SLO that is more than this many times the largest value is named and not drawn: it would flatten the lines."""
CURVE_POINTS = 800
"""Of all curves of a panel together."""
CURVE_POINTS_MAX = 80
DRAWN_FROM_MS = 0.01
"""Gaps of 0 between tokens of one event are not drawn: a log axis would have no room for the others."""
HEIGHT = 210
NAMED_MAX = 6
"""More runs have no room for their names below an axis."""
INTERVALS = ({"type": "area", "opacity": 0.13}, {"type": "rule", "opacity": 0.7})
VISIBLE = {"filter": "indexof(hidden, datum.run) < 0"}
SHOWN = columns_shown("chart")
TIPS = {**{name: name for name in ("run", "load", "trust", "warnings")}, **{one.name: one.labelled for one in SHOWN}}
"""What a point says under the mouse, with its heading."""


def panels_of(series: Sequence[Series]) -> dict[str, list[Series]]:
    """Return the series of each panel, in order."""
    found: dict[str, list[Series]] = {}
    for one in series:
        found.setdefault(one.panel, []).append(one)
    return found


def by_level(rows: Iterable[PointRow]) -> dict[Level, list[PointRow]]:
    """Return the rows that are drawn by ascending load; several where a level was repeated."""
    return levels_of(row for row in rows if row.verdict != "void" and row.level.load > 0)


def _interval(rows: Sequence[PointRow], column: str) -> tuple[float | None, float | None]:
    found = estimate_level(rows, column)
    interval = found.interval if found is not None else None
    return interval if interval and np.isfinite(interval).all() else (None, None)


def tips_of(name: str, rows: Sequence[PointRow]) -> dict[str, str]:
    """Return what a point says under the mouse: every value with its interval, the mean over the repeats of a level."""
    row = rows[0]
    trust = [point_trust(one.verdict, one.doubts) for one in rows]
    why = dict.fromkeys(code for _, codes in trust for code in codes)
    found = {
        "run": name,
        "load": row.level.words + (f", mean of {len(rows)} repeats" if len(rows) > 1 else ""),
        "trust": "; ".join(dict.fromkeys(word for word, _ in trust)),
        "warnings": "; ".join(map(reason_of_code, why)) or "none",
    }
    for column in (one.name for one in SHOWN):
        if row.get(column) is not None:
            alone = f"{row[column]:,}" if isinstance(row[column], int) else with_interval(row, column)
            if is_weak_percentile(row, column):
                alone = f"~{rough(row[column])}, of too few requests"
            found[column] = alone if len(rows) == 1 else number(mean_of(rows, column))
    valid = all(one.verdict == "valid" for one in rows)
    return {**found, "verdict": "valid" if valid else "doubtful"}


def _tooltip(rows: Iterable[Mapping[str, Any]]) -> list[Spec]:
    known = {key for row in rows for key in row}
    return [nominal(field, title=title) for field, title in TIPS.items() if field in known]


def colour_scales(series: Sequence[Series], *, legend: bool = False) -> dict[str, Spec]:
    """Return the colour, shape and dash of each series as encodings."""
    index = {one.name: one.colour for one in series}
    ranges = (("color", COLOURS), ("shape", SHAPES), ("strokeDash", DASHES))
    return {
        channel: nominal(
            "run",
            scale={"domain": list(index), "range": [values[i % len(values)] for i in index.values()]},
            legend={"title": None, "orient": "top", "columns": 4, "labelLimit": 260} if legend else None,
        )
        for channel, values in ranges
    }


def legend_of(series: Sequence[Series]) -> list[dict[str, str]]:
    """Return the name, colour and mark of each series that has points, once."""
    first = {one.name: one.colour for one in series if one.rows}
    return [
        {"name": name, "colour": COLOURS[index % len(COLOURS)], "mark": GLYPHS[index % len(GLYPHS)]}
        for name, index in first.items()
    ]


def weak_note(series: Sequence[Series]) -> str:
    """Return that some of the p99 that charts show are of too few requests; empty where none are."""
    columns = ("ttft_ms_p99", "tpot_ms_p99", "e2e_ms_p99")
    weak = any(is_weak_percentile(row, column) for one in series for row in one.rows for column in columns)
    return f"A p99 of fewer than {values_needed(99)} requests has no interval." if weak else ""


def _load_axis(rows: Sequence[Mapping[str, Any]], *, rate: bool) -> Spec:
    """Return the axis of load levels, with a tick at each; of runs where all have the same one level."""
    levels = sorted({row["x"] for row in rows})
    if len(levels) < 2:
        few = len({row["run"] for row in rows}) <= NAMED_MAX
        names = {"labelAngle": 0, "labelLimit": 110} if few else {"labels": False, "ticks": False}
        return nominal("run", title=None if few else "runs", sort=None, axis=names)
    scale = {"type": "log", "domain": [levels[0] / 1.15, levels[-1] * 1.15], "nice": False}
    axis = {"values": levels, "labelOverlap": True, "format": ",.12~g", "grid": False}
    return quantitative("x", title="requests per second" if rate else "users at once", scale=scale, axis=axis)


def _values(rows: Sequence[Mapping[str, Any]], stats: Sequence[str]) -> list[float]:
    keys = [f"{name}{stat}" for stat in (stats or ("",)) for name in ("y", "low", "high")]
    return [row[key] for row in rows for key in keys if row.get(key) is not None]


def _is_wide(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) > LOG_FROM * min(values)


def lines(
    rows: Sequence[Mapping[str, Any]],
    series: Sequence[Series],
    x: Spec,
    y: str,
    *,
    stats: Sequence[str] = (),
    limit: float | None = None,
    labelled: bool = False,
    wide: bool | None = None,
) -> Spec:
    """Return lines of points with interval bands. Rows have run, x, verdict, and y, low, high, each with the percentile behind it
    where there are several; `limit` is an SLO on the y axis, which is logarithmic if it is `wide` (None: as its values ask)."""
    values = _values(rows, stats)
    wide = _is_wide(values) if wide is None else wide
    up = {
        "type": "quantitative",
        "title": y,
        "scale": {"type": "log", "nice": False} if wide else {"type": "linear", "zero": True},
        "axis": {"format": ",.12~g", "tickCount": 5},
    }
    scales = colour_scales(series)
    across = {"x": x, "color": scales["color"]}
    pick = [{"calculate": f"datum['{key}' + stat]", "as": key} for key in ("y", "low", "high")] if stats else []
    ends = {**across, "y": {**up, "field": "low"}, "y2": {"field": "high"}}
    known = [{"filter": "isValid(datum.low) && isValid(datum.high)"}]
    at = {**across, "y": {**up, "field": "y"}}
    dot = {
        **at,
        "shape": scales["shape"],
        "fill": scales["color"],
        "fillOpacity": {"condition": {"test": "datum.verdict === 'valid'", "value": 1}, "value": 0},
    }
    layers: list[Spec] = []
    if any(row.get(f"low{stat}") is not None for row in rows for stat in stats or ("",)):
        layers = [{"mark": mark, "transform": known, "encoding": ends} for mark in INTERVALS]
    if x["type"] == "quantitative":
        dash = {"strokeDash": scales["strokeDash"], "order": quantitative("order")}
        layers.append({"mark": "line", "encoding": {**at, **dash}})
    else:
        layers = layers[1:]
    layers.append({"mark": {"type": "point", "size": 60, "strokeWidth": 1.8}, "encoding": dot})
    if labelled:
        mark = {"type": "text", "dy": -11, "fontSize": 10}
        layers.append({"mark": mark, "encoding": {**at, "text": nominal("label")}})
    layers.append(tips(at, _tooltip(rows), size=500))
    if limit:
        layers += _limit(limit, up, drawn=limit <= LIMIT_SHOWN * max(values, default=0.0))
    return {
        "data": {"values": list(rows)},
        "transform": [VISIBLE, *pick, {"filter": "isValid(datum.y)"}],
        "layer": layers,
    }


def tips(at: Spec, tooltip: Sequence[Spec], *, size: int) -> Spec:
    """Return the layer of wide invisible marks that say what a point is."""
    return {"mark": {"type": "point", "size": size, "opacity": 0}, "encoding": {**at, "tooltip": tooltip}}


def _limit(limit: float, up: Spec, *, drawn: bool) -> list[Spec]:
    """Return the line of an SLO; a note in the corner where it is far above all values."""
    text = {"type": "text", "align": "right", "baseline": "bottom", "dy": -2, "color": LIMIT_COLOUR}
    data = {"values": [{"limit": limit, "text": f"SLO {limit:g}" + ("" if drawn else " is far above")}]}
    y = {**up, "field": "limit"} if drawn else {"value": 0}
    place = {"y": y, "x": {"value": "width"}, "text": nominal("text")}
    note = {"data": data, "mark": text, "encoding": place}
    rule = {"data": data, "mark": {"type": "rule", "color": LIMIT_COLOUR, "strokeDash": [7, 4]}, "encoding": {"y": y}}
    return [rule, note] if drawn else [note]


def against_load(series: Sequence[Series], metric: ChartMetric, limit: float | None = None) -> ChartSet | None:
    """Return a metric by load, a panel for each workload; None when no run has it."""
    stats = tuple(stat for stat in metric.columns if stat)
    panels = {
        panel: (own, rows)
        for panel, own in panels_of(series).items()
        if (rows := [row for one in own for row in _level_rows(one, metric)])
    }
    # panels side by side are read with one kind of axis
    values = [_values(rows, stats) for _, rows in panels.values()]
    wide = any(map(_is_wide, values)) and all(min(own, default=0.0) > 0 for own in values)
    charts = []
    for panel, (own, rows) in panels.items():
        axis = _load_axis(rows, rate=any(row.level.open_loop for one in own for row in one.rows))
        drawn = lines(rows, own, axis, metric.axis, stats=stats, limit=limit, wide=wide)
        title = metric.title + (" p50" if stats else "")
        charts.append(Chart(title=panel, spec={**drawn, "height": HEIGHT}, words=_in_words(title, rows, metric.axis)))
    return ChartSet(name=metric.name, title=metric.title, charts=charts, stats=stats) if charts else None


def _level_rows(one: Series, metric: ChartMetric) -> list[dict[str, Any]]:
    found = []
    for level, rows in by_level(one.rows).items():
        values: dict[str, Any] = {}
        for stat, column in metric.columns.items():
            low, high = _interval(rows, column)
            values |= {f"y{stat}": mean_of(rows, column), f"low{stat}": low, f"high{stat}": high}
        if any(value is not None for value in values.values()):
            found.append({**tips_of(one.name, rows), **values, "x": level.load, "order": level.load})
    return found


def _in_words(title: str, rows: Sequence[Mapping[str, Any]], axis: str) -> str:
    """Return a chart in a sentence for those who do not see it."""
    parts: dict[str, list[str]] = {}
    for row in rows:
        value = row.get("y", row.get("yp50"))
        parts.setdefault(str(row["run"]), []).append(f"{number(value)} at {row['load']}")
    return f"{title} ({axis}): " + "; ".join(f"{run} {', '.join(values)}" for run, values in parts.items()) + "."


def user_speed(series: Sequence[Series]) -> ChartSet | None:
    """Return tokens per second of one user against those of one GPU (of the machine without GPUs), the points of a run joined by
    ascending load."""
    title, up = "Speed of one user against throughput", POINT_COLUMNS["output_throughput_tok_s"].labelled
    charts = []
    for panel, own in panels_of(series).items():
        rows = []
        for one in own:
            for level, points in by_level(one.rows).items():
                tpot, throughput = mean_of(points, "tpot_ms_mean"), mean_of(points, "output_throughput_tok_s")
                if tpot and throughput:
                    place = {"x": 1000 / tpot, "y": throughput / max(one.gpu_count, 1)}
                    order = {"order": level.load, "label": level.number}
                    rows.append({**tips_of(one.name, points), **place, **order})
        if rows:
            per = " per GPU" if any(one.gpu_count for one in own) else ""
            across = quantitative("x", title="tok/s of one user (1 / TPOT)", axis={"tickCount": 5})
            drawn = lines(rows, own, across, up + per, labelled=True)
            charts.append(Chart(title=panel, spec={**drawn, "height": HEIGHT}, words=_in_words(title, rows, up)))
    note = "Up and to the right is better; the number at a point is its load."
    found = ChartSet(name="user_speed_against_throughput", title=title, charts=charts, note=note)
    return found if charts else None


LATENCIES = {f"{one.name}_ms": one.axis for one in METRICS if one.name in ("ttft", "itl", "e2e")}


def distributions(series: Sequence[Series], at: Level) -> ChartSet | None:
    """Return the cumulative distributions of the latencies of one load level; None without values."""
    charts = []
    for panel, own in panels_of(series).items():
        for name, axis in LATENCIES.items():
            points = min(CURVE_POINTS_MAX, CURVE_POINTS // len(own) + 2)
            rows = [
                {"run": one.name, "x": float(f"{x:.4g}"), "y": round(float(y), 1)}
                for one in own
                for x, y in _curve(one.latencies.get(at, {}).get(name), points)
            ]
            if rows:
                title = f"{panel}: {axis}" if panel else axis
                charts.append(Chart(title=title, spec=_curves(rows, own, axis), words=_medians(rows, axis)))
    note = f"The share of requests (for ITL: of gaps) that took no longer, at {at.words}."
    return ChartSet(name="distributions", title="Latency distributions", charts=charts, note=note) if charts else None


def _curve(values: Floats | None, points: int) -> list[tuple[float, float]]:
    if values is None or values.size < 2:
        return []
    shares = np.linspace(0, 100, min(points, values.size))
    return [(v, s) for v, s in zip(np.percentile(values, shares), shares, strict=True) if v > DRAWN_FROM_MS]


def _curves(rows: list[dict[str, Any]], own: Sequence[Series], axis: str) -> Spec:
    scales = colour_scales(own)
    ticks = {"tickCount": 4, "format": ",.12~g"}
    x = quantitative("x", title=axis, scale={"type": "log", "nice": False}, axis=ticks)
    y = quantitative("y", title="% of values", scale={"domain": [0, 100]})
    at = {"x": x, "y": y, "color": scales["color"]}
    dash = {"strokeDash": scales["strokeDash"], "order": quantitative("y")}
    tooltip = [
        nominal("run", title="run"),
        quantitative("x", title=f"up to {axis}", format=",.3~r"),
        quantitative("y", title="% of values", format=".0f"),
    ]
    return {
        "data": {"values": rows},
        "transform": [VISIBLE],
        "height": HEIGHT,
        "layer": [{"mark": "line", "encoding": {**at, **dash}}, tips(at, tooltip, size=200)],
    }


def _medians(rows: Sequence[Mapping[str, Any]], axis: str) -> str:
    runs = dict.fromkeys(str(row["run"]) for row in rows)
    middle = {run: min((row for row in rows if row["run"] == run), key=lambda row: abs(row["y"] - 50)) for run in runs}
    medians = "; ".join(f"{run} {number(row['x'])}" for run, row in middle.items())
    return f"Distribution of {axis}; median: {medians}."


def comparing(series: Sequence[Series], limits: Mapping[str, float]) -> list[ChartSet]:
    """Return the charts that compare runs over the load, without those that have no values."""
    over = [against_load(series, metric, limits.get(metric.slo)) for metric in METRICS]
    return [one for one in (*over, user_speed(series)) if one is not None]
