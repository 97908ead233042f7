"""The chart of a tune: the gain of each candidate over stock."""

from __future__ import annotations

from collections.abc import Sequence

from servebench.analysis.tuning.answer import Tried
from servebench.report.charts.model import Chart, ChartSet, Spec
from servebench.report.charts.parts import LETTER_WIDTH

LABEL_PIXELS = 170.0


def gains(tried: Sequence[Tried]) -> ChartSet | None:
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
    spec: Spec = {
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
    title = "All candidates against stock"
    chart = Chart(title="", spec=spec, words=f"{title}: the table of candidates has the values.")
    return ChartSet(name="gains", title=title, charts=[chart])
