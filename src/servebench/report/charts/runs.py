"""Vega-Lite specs of what happened in a run: its requests over time, its cold start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from servebench.contracts.level import Level
from servebench.report.charts.model import Chart, ChartSet, Spec, nominal, quantitative
from servebench.report.charts.specs import COLOURS, HEIGHT
from servebench.util.figures import number

SPANS_MAX = 120
"""So many requests are drawn, evenly chosen."""
PARTS = {"waiting for the first token": "#E69F00", "generating": "#0072B2", "failed": "#000000"}
PANEL_HEIGHT = 64
PHASES = {
    **dict.fromkeys(("spawned", "process_up"), "process starts"),
    **dict.fromkeys(("weights_loading", "weights_loaded"), "weights"),
    **dict.fromkeys(("compiled", "engine_built", "autotuned"), "build, compile"),
    "graphs_captured": "graphs",
    "first_token": "first token",
}
"""The kind of each phase, so that engines with different phases can be compared."""
OTHER_PHASE = "server starts"
Panel = tuple[str, Sequence[tuple[float, float]]]
"""The name of a line with its unit, and its samples of (seconds, value)."""


class RequestSpan(NamedTuple):
    """A request on the timeline, in seconds from the start of the point."""

    sent_s: float
    first_s: float | None
    end_s: float
    failed: bool = False


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One point over time. `disturbed` says when others took the machine, in seconds, and who."""

    run: str
    level: Level
    spans: Sequence[RequestSpan]
    panels: Sequence[Panel] = ()
    window: tuple[float, float] | None = None
    disturbed: Sequence[tuple[float, float, str]] = ()


def timeline(found: Timeline) -> ChartSet | None:
    """Return the requests of a point above panels of server and machine metrics; None when nothing was sent."""
    if not found.spans:
        return None
    ends = [span.end_s for span in found.spans] + [t for _, samples in found.panels for t, _ in samples]
    x: Spec = {"type": "quantitative", "scale": {"domain": [0, max(ends)], "nice": False, "clamp": True}}
    ground = _ground(found, x)
    last = len(found.panels)
    requests = {"layer": [*ground, _spans(found, x, last=last == 0)], "height": HEIGHT}
    charts = [Chart(title=_shown(found), spec=requests, words=_in_words(found))]
    for index, (title, samples) in enumerate(found.panels, 1):
        spec = {"layer": [*ground, _line(samples, x, title, last=index == last)], "height": PANEL_HEIGHT}
        highest = max((v for _, v in samples), default=0.0)
        charts.append(Chart(title=title, spec=spec, words=f"{title}: at most {number(highest)}."))
    note = "Grey: the measurement window." + (" Red: others took the machine." if found.disturbed else "")
    name = f"timeline_{found.run}_{found.level}"
    return ChartSet(name=name, title=f"{found.run}, {found.level.words}", charts=charts, note=note, wide=True)


def _ground(found: Timeline, x: Spec) -> list[Spec]:
    """Return the measurement window and the disturbed stretches, behind the other marks."""
    stretches = [(*found.window, "measurement window", "#777777")] if found.window else []
    stretches += [(low, high, who, "#d00000") for low, high, who in found.disturbed]
    rows = [{"from": max(a, 0.0), "to": max(b, 0.0), "what": what, "colour": c} for a, b, what, c in stretches]
    place = {
        "x": {**x, "field": "from", "title": None},
        "x2": {"field": "to"},
        "color": nominal("colour", scale=None),
        "tooltip": nominal("what", title=" "),
    }
    ground = {"data": {"values": rows}, "mark": {"type": "rect", "fillOpacity": 0.13}, "encoding": place}
    return [ground] if rows else []


def _across(x: Spec, field: str, *, last: bool) -> Spec:
    title = "seconds from the first request" if last else None
    return {**x, "field": field, "title": title, "axis": {"labels": last, "ticks": last, "title": title}}


def _chosen(found: Timeline) -> Sequence[RequestSpan]:
    count = len(found.spans)
    return found.spans if count <= SPANS_MAX else [found.spans[i * count // SPANS_MAX] for i in range(SPANS_MAX)]


def _shown(found: Timeline) -> str:
    chosen, count = len(_chosen(found)), len(found.spans)
    return f"{chosen} of {count} requests" if chosen < count else f"{count} requests"


def _spans(found: Timeline, x: Spec, *, last: bool) -> Spec:
    waiting, generating, failed = PARTS
    rows = []
    for index, span in enumerate(_chosen(found)):
        first = span.end_s if span.first_s is None else span.first_s
        for begin, end, part in ((span.sent_s, first, waiting), (first, span.end_s, generating)):
            if end > begin:
                kind = failed if span.failed else part
                rows.append({"from": round(begin, 3), "to": round(end, 3), "part": kind, "i": index})
    plain = {"labels": False, "ticks": False, "minExtent": 46, "grid": False}
    place = {
        "x": _across(x, "from", last=last),
        "x2": {"field": "to"},
        "y": {"field": "i", "type": "ordinal", "title": None, "axis": plain},
        "color": _coloured(PARTS),
        "tooltip": [nominal("part"), nominal("took", title="took, s")],
    }
    took = [{"calculate": "format(datum.to - datum.from, '.3f')", "as": "took"}]
    return {"data": {"values": rows}, "transform": took, "mark": {"type": "bar"}, "encoding": place}


def _coloured(colours: Mapping[str, str], **legend: Any) -> Spec:
    """Return the encoding of parts by colour, with a legend that has room for viewers whose font is wider than the one that it is
    laid out with."""
    scale = {"domain": list(colours), "range": list(colours.values())}
    return nominal("part", scale=scale, legend={"title": None, "orient": "top", **legend, "columnPadding": 28})


def _line(samples: Sequence[tuple[float, float]], x: Spec, title: str, *, last: bool) -> Spec:
    rows = [{"t": round(t, 3), "value": float(f"{value:.4g}")} for t, value in samples]
    axis = {"minExtent": 46, "tickCount": 3, "format": ",.12~g"}
    tooltip = [quantitative("t", title="s", format=".3~f"), quantitative("value", title=title, format=".3~s")]
    y = quantitative("value", title=None, scale={"zero": True}, axis=axis)
    place = {"x": _across(x, "t", last=last), "y": y, "tooltip": tooltip}
    return {
        "data": {"values": rows},
        "mark": {"type": "line", "strokeWidth": 1.5, "color": COLOURS[0]},
        "encoding": place,
    }


def _in_words(found: Timeline) -> str:
    failed = sum(span.failed for span in found.spans)
    whole = f"Requests of {found.run} at {found.level.words} over time: {len(found.spans)}, {failed} failed."
    disturbed = (f"Disturbed from {low:.1f} to {high:.1f} s: {who}." for low, high, who in found.disturbed)
    return " ".join([whole, *disturbed])


def cold_start(starts: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> ChartSet | None:
    """Return the seconds of each kind of phase, one bar per start. Phases are (name, seconds from the start to its end)."""
    rows: list[dict[str, Any]] = []
    for name, phases in starts:
        parts: dict[str, float] = {}
        before = 0.0
        for phase, seconds in phases:
            kind = PHASES.get(phase, OTHER_PHASE)
            parts[kind] = parts.get(kind, 0.0) + max(0.0, seconds - before)
            before = max(before, seconds)
        rows += [
            {"run": name, "part": part, "s": round(s, 4), "took": f"{s:.3g} s", "order": i}
            for i, (part, s) in enumerate(parts.items())
        ]
    if not rows:
        return None
    kinds = dict.fromkeys(row["part"] for row in rows)
    place = {
        "y": nominal("run", title=None, sort=None, axis={"labelLimit": 150}),
        "x": quantitative("s", title="seconds"),
        "color": _coloured(dict(zip(kinds, COLOURS, strict=False)), columns=3),
        "order": quantitative("order"),
        "tooltip": [nominal("run"), nominal("part"), nominal("took")],
    }
    totals = {name: max(seconds for _, seconds in phases) for name, phases in starts if phases}
    words = "Cold start, seconds: " + "; ".join(f"{name} {number(total)}" for name, total in totals.items()) + "."
    bars = {"mark": {"type": "bar", "stroke": "#ffffff"}, "encoding": place, "height": {"step": 26}}
    chart = Chart(title="Seconds by phase", spec={"data": {"values": rows}, **bars}, words=words)
    note = "From the start of the command to the first real token."
    return ChartSet(name="cold_start", title="Cold start", charts=[chart], note=note, wide=True)
