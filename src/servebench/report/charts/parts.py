"""Vega-Lite specs of where TTFT and E2E go: for each run a stacked bar for each level, and one for its slowest requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servebench.analysis.time_parts import FIRST, METRICS, PARTS, REST, Metric, TimeParts
from servebench.report.charts.model import Chart, ChartSet, Spec, nominal, quantitative
from servebench.report.parts import NOT_REPORTED, RunTimes, bar_name, part_text, part_title
from servebench.util.figures import number

COLOURS = {
    "client": "#4D4D4D",
    "network": "#A6DDFF",
    "queue": "#D55E00",
    "prefill": "#F0D060",
    "KV transfer": "#882255",
    FIRST: "#F5F5F5",
    "decode": "#0072B2",
    "delivery": "#8FD9B6",
    REST: "#B0B0B0",
}
"""Dark and light in turn, so that neighbours differ without colours, too; grey where the engine says nothing."""
DARK = ("client", "KV transfer", "decode")
STEP = 26
LETTER_WIDTH = 6.4
"""In pixels, at most. A part has its name and figure in it where these fit, else its figure."""
PANELS_MAX = 12
NOTE = "Each bar is the mean of its requests, from the schedule on. A negative part is taken from its neighbour."


def time_charts(runs: Sequence[RunTimes]) -> list[ChartSet]:
    """Return where TTFT and where E2E goes, a panel for each of the first PANELS_MAX runs that have parts."""
    shown = [one for one in runs if one.parts]
    return [
        ChartSet(
            name=f"{metric.lower()}_parts",
            title=f"Where {metric} goes",
            charts=[
                _panel(run.name, metric, [one for one in run.parts if one.metric == metric])
                for run in shown[:PANELS_MAX]
            ],
        )
        for metric in METRICS
        if shown
    ]


def time_note(runs: Sequence[RunTimes]) -> str:
    """Return what to know of the bars of these runs."""
    shown = [one for one in runs if one.parts]
    left = [f"The first {PANELS_MAX} of {len(shown)} runs are drawn."] if len(shown) > PANELS_MAX else []
    silent = dict.fromkeys(run.engine for run in shown for one in run.parts if not one.reported)
    return " ".join([NOTE, *left, *(NOT_REPORTED.format(engine=engine) for engine in silent)])


def _panel(name: str, metric: Metric, found: Sequence[TimeParts]) -> Chart:
    parts = {part: part_title(found, part) for part in PARTS if any(part in one.parts for one in found)}
    rows = [_row(one, parts) for one in found]
    # wide enough for viewers whose font is wider than the one it is drawn with
    extent = min(150.0, LETTER_WIDTH * max(len(row["bar"]) for row in rows))
    axis = {"labelLimit": 150, "ticks": False, "minExtent": extent}
    y = nominal("bar", title=None, sort=None, axis=axis)
    total = {"y": y, "x": {"value": "width"}, "text": nominal("total")}
    spec: Spec = {
        "data": {"values": rows},
        "height": {"step": STEP},
        "layer": [
            {"transform": _transform([*parts.values()]), "layer": _bars(metric, parts, y)},
            {"mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 10.5}, "encoding": total},
        ],
    }
    return Chart(title=name, spec=spec, words=_in_words(name, metric, found))


def _transform(parts: Sequence[str]) -> list[Spec]:
    """Return the steps from bars to their parts: the order of each, its figure, and what of both fits into it."""
    label = (
        "datum.room >= length(datum.part) + 4 ? datum.part + ' ' + datum.figure : datum.room > 4 ? datum.figure : ''"
    )
    return [
        {"fold": parts, "as": ["part", "share"]},
        {"calculate": f"indexof({_listed(parts)}, datum.part)", "as": "order"},
        {"calculate": "format(datum.share, '.0%')", "as": "figure"},
        {"calculate": f"datum.share * width / {LETTER_WIDTH}", "as": "room"},
        {"calculate": label, "as": "label"},
    ]


def _bars(metric: Metric, parts: Mapping[str, str], y: Spec) -> list[Spec]:
    """Return the layers of the stacked parts: the rectangles, and the texts in them."""
    tooltip = [nominal("bar", title=metric), nominal("total", title="mean")]
    tooltip += [nominal(f"t{index}", title=part) for index, part in enumerate(parts.values())]
    x = quantitative("share", stack="zero", scale={"domain": [0, 1]})
    axis = {"format": "%", "values": [0, 0.5, 1], "grid": False}
    legend = {"title": None, "orient": "top", "columns": 2, "symbolStrokeColor": "#777777", "symbolType": "square"}
    colour = nominal(
        "part", scale={"domain": [*parts.values()], "range": [COLOURS[part] for part in parts]}, legend=legend
    )
    place: Spec = {"y": y, "order": quantitative("order"), "detail": nominal("part")}
    dark = {"test": f"indexof({_listed(DARK)}, datum.part) >= 0", "value": "#ffffff"}
    white = {"condition": dark, "value": "#000000"}
    text = {**place, "x": {**x, "bandPosition": 0.5}, "text": nominal("label"), "color": white}
    bars = {**place, "x": {**x, "title": f"share of {metric}", "axis": axis}, "color": colour, "tooltip": tooltip}
    return [
        {"mark": {"type": "bar", "stroke": "#555555", "strokeWidth": 0.6}, "encoding": bars},
        {"mark": {"type": "text", "fontSize": 10}, "encoding": text},
    ]


def _listed(names: Sequence[str]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in names) + "]"


def _row(one: TimeParts, parts: Mapping[str, str]) -> dict[str, Any]:
    """Return a bar: the lengths of its parts, and what each is."""
    texts = {f"t{index}": part_text(one, part) for index, part in enumerate(parts) if part in one.parts}
    lengths = {title: round(one.shares.get(part, 0.0), 4) for part, title in parts.items()}
    return {"bar": f"{one.level.words}, {bar_name(one)}", "total": f"{number(one.total_ms)} ms", **lengths, **texts}


def _in_words(name: str, metric: Metric, found: Sequence[TimeParts]) -> str:
    def bar(one: TimeParts) -> str:
        parts = (f"{part_title([one], part)} {part_text(one, part)}" for part in one.parts)
        return f"{one.level.words}, {bar_name(one)}: {', '.join(parts)}"

    return f"Where {metric} goes, {name}: {'; '.join(map(bar, found))}."
