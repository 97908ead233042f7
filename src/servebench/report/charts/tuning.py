"""Charts of a tune: the gain of each candidate over stock, and TTFT against throughput."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from servebench.analysis.tuning.answer import Tried
from servebench.contracts.point_row import POINT_COLUMNS
from servebench.report.charts.model import Chart, ChartSet, Spec
from servebench.report.charts.parts import LETTER_WIDTH

LABEL_PIXELS = 170.0
KINDS = {
    "best": ("#009E73", "diamond"),
    "front": ("#0072B2", "triangle-up"),
    "stock": ("#D55E00", "square"),
    "other": ("#999999", "circle"),
}
"""The colour and mark of each kind of candidate, distinct for the colour-blind."""


def tune_charts(tried: Sequence[Tried]) -> Iterator[ChartSet]:
    """Yield the charts that have values."""
    for name, title, spec in (
        ("gains", "All candidates against stock", gains_spec(tried)),
        ("front", "TTFT against throughput", front_spec(tried)),
    ):
        if spec is not None:
            words = f"{title}: the table of candidates has the values."
            yield ChartSet(name=name, title=title, charts=[Chart(title="", spec=spec, words=words)])


def gains_spec(tried: Sequence[Tried]) -> Spec | None:
    """Return the chart of all candidates' differences from stock with their intervals; None without one."""
    values = [
        {
            "name": one.name,
            "value": 100 * one.from_stock.effect,
            "low": 100 * one.from_stock.low,
            "high": 100 * one.from_stock.high,
        }
        for one in tried
        if one.from_stock is not None
    ]
    if not values:
        return None
    order = [one["name"] for one in values]
    x = {"title": "difference from stock, % (95% interval)", "scale": {"zero": True}}
    # wide enough for viewers whose font is wider than the one it is drawn with
    axis = {
        "labelLimit": LABEL_PIXELS,
        "minExtent": min(LABEL_PIXELS, LETTER_WIDTH * max(len(one.name) for one in tried)),
    }
    y = {"field": "name", "type": "nominal", "sort": order, "title": None, "axis": axis}
    return {
        "data": {"values": values},
        "layer": [
            {"mark": {"type": "rule", "color": "#999999"}, "encoding": {"x": {"datum": 0, "type": "quantitative"}}},
            {
                "mark": {"type": "rule", "color": "#0072B2"},
                "encoding": {"y": y, "x": {"field": "low", "type": "quantitative", **x}, "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60, "color": "#0072B2"},
                "encoding": {"y": y, "x": {"field": "value", "type": "quantitative", **x}},
            },
        ],
    }


def front_spec(tried: Sequence[Tried]) -> Spec | None:
    """Return the chart of TTFT against throughput; None without one."""
    values = [
        {
            "name": one.name,
            "throughput": one.figures.throughput,
            "ttft": one.figures.ttft_ms,
            "kind": _kind(one),
        }
        for one in tried
        if one.figures.throughput is not None and one.figures.ttft_ms is not None
    ]
    if not values:
        return None
    x = {
        "field": "throughput",
        "type": "quantitative",
        "title": POINT_COLUMNS["output_throughput_tok_s"].labelled,
        "scale": {"zero": False},
    }
    y = {
        "field": "ttft",
        "type": "quantitative",
        "title": POINT_COLUMNS["ttft_ms_p50"].labelled,
        "scale": {"zero": False},
    }
    colour = {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(KINDS), "range": [colour for colour, _ in KINDS.values()]},
    }
    shape = {**colour, "scale": {"domain": list(KINDS), "range": [mark for _, mark in KINDS.values()]}}
    shown = {"filter": "datum.kind != 'other'"}
    return {
        "height": 260,
        "data": {"values": values},
        "layer": [
            {
                "mark": {"type": "point", "filled": True, "size": 80},
                "encoding": {"x": x, "y": y, "color": colour, "shape": shape},
            },
            {
                "transform": [shown],
                "mark": {"type": "text", "dy": -10, "fontSize": 11},
                "encoding": {"x": x, "y": y, "text": {"field": "name", "type": "nominal"}},
            },
        ],
    }


def _kind(one: Tried) -> str:
    if one.status == "best":
        return "best"
    return "stock" if one.origin == "stock" else "front" if one.on_front else "other"
