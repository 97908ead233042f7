"""`tune.html`: the answer of `servebench tune` on one page, without network and without scripts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from servebench.analysis.tuning.answer import Contribution, Tried, TuneAnswer
from servebench.contracts.point_row import POINT_COLUMNS
from servebench.report.charts import draw
from servebench.report.charts.parts import LETTER_WIDTH
from servebench.report.html.elements import Table
from servebench.report.html.page import environment, policy
from servebench.report.wording.tuning import (
    FRONT_NOTE,
    HEADINGS,
    NOT_MEASURED,
    asked_line,
    change_lines,
    doubt_line,
    gain_text,
    headline,
    imitation_line,
    rows,
    spent_line,
    untried_line,
    value_line,
)
from servebench.util.safe_text import clean_html

VERDICTS = {
    "better": ("good", "proven", "the interval of the gain over stock, from fresh starts in the finals, leaves out 0"),
    "open": ("warn", "not proven", "the gain over stock may be chance"),
    "as good": ("plain", "no gain", "what the best other settings gain is too little to matter, and may be chance"),
    "stock": ("plain", "no gain", "no candidate was better than stock"),
    "too little": ("warn", "not measured", "the budget did not suffice for a comparison"),
    "none": ("bad", "no winner", "no candidate could be measured or met the limits"),
}
"""How far to trust each verdict: a look, a word, and why."""
LABEL_PIXELS = 170.0
UNSET = "the engine's default"
KINDS = {
    "winner": ("#009E73", "diamond"),
    "front": ("#0072B2", "triangle-up"),
    "stock": ("#D55E00", "square"),
    "other": ("#999999", "circle"),
}
"""The colour and mark of each kind of candidate, distinct for the colour-blind."""


def tune_page(answer: TuneAnswer) -> str:
    """Return the page as HTML."""
    refused: dict[str, list[str]] = {}
    for name, why in answer.refused:
        refused.setdefault(why, []).append(name)
    text = (
        environment()
        .get_template("tune.html")
        .render(
            answer=answer,
            policy=policy([]),
            headline=headline(answer),
            value=value_line(answer),
            asked=asked_line(answer),
            spent=spent_line(answer),
            trust=_trust(answer),
            contributions=_contributions(answer.contributions),
            tried=Table("What was tried", HEADINGS, [list(row) for row in rows(answer)], left=(0, 1, 6), prose=(1, 6)),
            changes=change_lines(answer),
            note=FRONT_NOTE,
            refused=refused,
            gains=_picture(gains_spec(answer.tried)),
            front=_picture(front_spec(answer.tried)),
        )
    )
    return clean_html(text.lstrip())


def _trust(answer: TuneAnswer) -> list[tuple[str, str, str]]:
    """Return how far to trust the answer: the look of a word, the word, and what it is about."""
    look, word, text = VERDICTS[answer.verdict]
    found = [] if answer.finished else [("warn", "so far", "the race is not over")]
    found.append((look, word, text))
    if doubt := doubt_line(answer):
        found.append(("warn", "points in doubt", doubt))
    if imitation := imitation_line(answer):
        found.append(("warn", "not real", imitation))
    if untried := untried_line(answer):
        found.append(("plain", "not tried", untried))
    return found


def _contributions(found: Sequence[Contribution]) -> Table:
    cells = [
        [
            one.key,
            UNSET if one.before == "null" else one.before,
            one.after,
            gain_text(one.gain) or NOT_MEASURED,
        ]
        for one in found
    ]
    head = ("setting", "stock", "winner", "contributes [95%]")
    return Table("What each setting contributes", head, cells, left=(0, 1, 2), prose=(0,))


def gains_spec(tried: Sequence[Tried]) -> dict[str, Any] | None:
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
        "width": 460,
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
        "width": 460,
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
    if one.status == "winner":
        return "winner"
    return "stock" if one.origin == "stock" else "front" if one.on_front else "other"


def _picture(spec: dict[str, Any] | None) -> str:
    """Return a chart as a data URL; empty without one."""
    if spec is None:
        return ""
    picture = draw.svg({**spec, "config": draw.CONFIG})
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()}"
