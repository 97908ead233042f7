"""`tune.html`: the answer of `servebench tune` on one page, without network and without scripts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from servebench.analysis.tuning.answer import Tried, TuneAnswer
from servebench.report.charts import draw
from servebench.report.html.page import environment, policy
from servebench.report.tuning import (
    FRONT_NOTE,
    HEADINGS,
    asked_line,
    contribution_lines,
    doubt_line,
    headline,
    rows,
    spent_line,
    value_line,
)
from servebench.util.clean import clean_html


def tune_page(answer: TuneAnswer) -> str:
    """Return the page as HTML."""
    style = (files("servebench.report.html") / "templates" / "style.css").read_text(encoding="utf-8")
    text = (
        environment()
        .get_template("tune.html")
        .render(
            answer=answer,
            style=style,
            policy=policy([]),
            headline=headline(answer),
            value=value_line(answer),
            asked=asked_line(answer),
            spent=spent_line(answer),
            doubt=doubt_line(answer),
            contributions=contribution_lines(answer),
            headings=HEADINGS,
            rows=rows(answer),
            note=FRONT_NOTE,
            gains=_picture(gains_spec(answer.tried)),
            front=_picture(front_spec(answer.tried)),
        )
    )
    return clean_html(text)


def gains_spec(tried: Sequence[Tried]) -> dict[str, Any] | None:
    """Return the chart of all candidates' differences from stock with their intervals; None without one."""
    values = [
        {
            "name": one.name,
            "value": 100 * one.from_stock.value,
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
    y = {"field": "name", "type": "nominal", "sort": order, "title": None, "axis": {"labelLimit": 260}}
    return {
        "width": 560,
        "data": {"values": values},
        "layer": [
            {"mark": {"type": "rule", "color": "#999999"}, "encoding": {"x": {"datum": 0, "type": "quantitative"}}},
            {
                "mark": {"type": "rule", "color": "#1f77b4"},
                "encoding": {"y": y, "x": {"field": "low", "type": "quantitative", **x}, "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60, "color": "#1f77b4"},
                "encoding": {"y": y, "x": {"field": "value", "type": "quantitative", **x}},
            },
        ],
    }


def front_spec(tried: Sequence[Tried]) -> dict[str, Any] | None:
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
    x = {"field": "throughput", "type": "quantitative", "title": "output tok/s", "scale": {"zero": False}}
    y = {"field": "ttft", "type": "quantitative", "title": "TTFT p50, ms", "scale": {"zero": False}}
    colour = {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "scale": {
            "domain": ["winner", "front", "stock", "other"],
            "range": ["#2ca02c", "#1f77b4", "#d62728", "#bbbbbb"],
        },
    }
    shown = {"filter": "datum.kind != 'other'"}
    return {
        "width": 560,
        "height": 280,
        "data": {"values": values},
        "layer": [
            {"mark": {"type": "point", "filled": True, "size": 80}, "encoding": {"x": x, "y": y, "color": colour}},
            {
                "transform": [shown],
                "mark": {"type": "text", "dy": -10, "fontSize": 11},
                "encoding": {"x": x, "y": y, "text": {"field": "name", "type": "nominal"}},
            },
        ],
    }


def _kind(one: Tried) -> str:
    if one.status == "winner":
        return "winner"
    return "stock" if one.origin == "stock" else "front" if one.on_front else "other"


def _picture(spec: dict[str, Any] | None) -> str:
    """Return a chart as a data URL; empty without one."""
    if spec is None:
        return ""
    picture = draw.svg({**spec, "config": draw.CONFIG})
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()}"
