"""The dashboard's interactive charts, from frames of points. Colours, marks and order are those of the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servebench.report.html.svg import COLOURS

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "stroke")
HEIGHT = 360
LEGEND_MAX = 12
TIPS = ("study", "run", "engine", "engine_version", "model", "gpu", "workload", "level", "verdict", "doubts")


def _legend() -> Any:
    import altair as alt

    return alt.Legend(orient="top", title=None, columns=2, labelLimit=200)


def _colour(by: str) -> Any:
    import altair as alt

    return alt.Color(f"{by}:N", scale=alt.Scale(range=list(COLOURS)), legend=_legend())


def _shape(by: str) -> Any:
    import altair as alt

    return alt.Shape(f"{by}:N", scale=alt.Scale(range=list(SHAPES)), legend=_legend())


def _tips(frame: pd.DataFrame, *columns: str) -> list[str]:
    return [name for name in (*TIPS, *columns) if name in frame.columns]


def against_load(
    frame: pd.DataFrame, column: str, title: str, *, by: str, log: bool, limit: float | None = None
) -> alt.LayerChart:
    """Return a metric by load, one line per run, coloured by `by`; `limit` is a horizontal line. Doubtful points are pale."""
    import altair as alt

    y = alt.Y(f"{column}:Q", title=title, scale=alt.Scale(type="log" if log else "linear", zero=not log, nice=not log))
    x = alt.X(
        "load:Q",
        title="load (requests in flight, or per second)",
        scale=alt.Scale(type="log", nice=False, padding=12),
        axis=alt.Axis(values=sorted(frame["load"].dropna().unique().tolist()), labelOverlap=True),
    )
    base = alt.Chart(frame)
    lines = base.mark_line(strokeWidth=1.6, opacity=0.75).encode(x=x, y=y, color=_colour(by), detail="run_key:N")
    dots = base.mark_point(filled=True, size=55).encode(
        x=x,
        y=y,
        color=_colour(by),
        shape=_shape(by),
        opacity=alt.condition(alt.datum.verdict == "valid", alt.value(1.0), alt.value(0.35)),
        tooltip=_tips(frame, column),
    )
    layers = [lines, dots]
    low, high = f"{column}_low", f"{column}_high"
    if {low, high} <= set(frame.columns):
        layers.insert(1, base.mark_rule(opacity=0.5).encode(x=x, y=f"{low}:Q", y2=f"{high}:Q", color=_colour(by)))
    if limit is not None:
        rule = alt.Chart(alt.Data(values=[{"limit": limit}])).mark_rule(color="#a00000", strokeDash=[7, 4])
        layers.append(rule.encode(y="limit:Q"))
    return alt.layer(*layers).properties(height=HEIGHT).interactive()


def tradeoff(frame: pd.DataFrame, *, by: str) -> alt.Chart:
    """Return TTFT against throughput; the larger the bubble, the higher the load."""
    import altair as alt

    return (
        alt.Chart(frame)
        .mark_point(filled=True)
        .encode(
            opacity=alt.condition(alt.datum.verdict == "valid", alt.value(0.8), alt.value(0.35)),
            x=alt.X("output_throughput_tok_s:Q", title="output throughput, tok/s"),
            y=alt.Y("ttft_ms_p50:Q", title="TTFT p50, ms", scale=alt.Scale(type="log", nice=False, padding=20)),
            size=alt.Size(
                "load:Q",
                title="load",
                scale=alt.Scale(range=[30, 700]),
                legend=alt.Legend(values=sorted(frame["load"].dropna().unique().tolist())[:LEGEND_MAX]),
            ),
            color=_colour(by),
            shape=_shape(by),
            tooltip=_tips(frame, "output_throughput_tok_s", "ttft_ms_p50"),
        )
        .properties(height=460)
        .interactive()
    )


def quality_bars(frame: pd.DataFrame) -> alt.FacetChart:
    """Return the share right by data set and run. Columns: run, dataset, engine, share, low, high."""
    import altair as alt

    base = alt.Chart(frame)
    x = alt.X("share:Q", title="share right", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))
    y = alt.Y("run:N", title=None, axis=alt.Axis(labelLimit=420))
    bars = base.mark_bar(height=14).encode(x=x, y=y, color=_colour("engine"), tooltip=list(frame.columns))
    rules = base.mark_rule().encode(x="low:Q", x2="high:Q", y=y)
    parts = alt.layer(bars, rules).properties(width=520, height=alt.Step(20))
    header = alt.Header(labelOrient="top", labelAngle=0, labelAnchor="start", labelFontWeight="bold")
    return parts.facet(facet=alt.Facet("dataset:N", title=None, header=header), columns=1).resolve_scale(
        y="independent"
    )
