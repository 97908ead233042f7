"""The dashboard as Streamlit runs it: `streamlit run app.py -- OUTPUTS`. Start it with `servebench dashboard`.

Every view reads from disk and caches until the folder changes. Names from files are shown only in tables, charts
and code, never as Markdown, which could load images from elsewhere.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from servebench.analysis.fairness import unequal_settings
from servebench.report.dashboard import charts as drawn
from servebench.report.dashboard import serve as warm
from servebench.report.html import build
from servebench.report.html.timeline import timeline_of
from servebench.store import studies as read
from servebench.util.clean import clean_csv, clean_line, clean_markdown

if TYPE_CHECKING:
    import pandas as pd

    from servebench.contracts.stored import RunData

VIEWS = ("Overview", "Load", "Trade-off", "Quality", "Raw table", "Compare", "Timeline", "Fairness")
FILTERS = ("study", "engine", "model", "gpu", "workload")
LINES_MAX = 60  # more lines are unreadable; the newest are drawn
COMPARED_MAX = 8
SERIES = "series"
"""The column that joins whatever differs among engine, workload, model and GPU."""
COLOURS_MAX = 8
ALL = "all"
QUALITY_COLUMNS = ("n", "measure", "at", "right_per_s", "latency_ms_p50", "latency_ms_p99", "unanswered", "emulated")
MONEY = ("energy_j_per_token", "output_tok_s_per_w", "cost_usd_per_mtok", "cost_usd_per_mgood")
"""Shown if any run has them."""


@st.cache_resource(show_spinner="reading the requests", max_entries=32)
def load_run(outputs: str, key: str, changed: int) -> RunData:  # noqa: ARG001  part of the cache's key
    """Return one run."""
    return read.load_run(Path(outputs) / key)


def headings() -> dict[str, Any]:
    """Return the titles, units and precision of the overview's columns."""
    named = {
        "run_key": "run",
        "engine_version": "version",
        "level": "load",
        "output_throughput_tok_s": "output, tok/s",
        "ttft_ms_p50": "TTFT p50, ms",
        "ttft_ms_p99": "TTFT p99, ms",
        "tpot_ms_mean": "TPOT mean, ms",
        "energy_j_per_token": "J/token",
        "output_tok_s_per_w": "tok/s/W",
        "cost_usd_per_mtok": "$/M tokens",
        "cost_usd_per_mgood": "$/M good requests",
    }
    exact = {"output_throughput_tok_s": "%.1f", "ttft_ms_p50": "%.1f", "ttft_ms_p99": "%.1f", "tpot_ms_mean": "%.2f"}
    return {
        name: st.column_config.NumberColumn(label, format=exact[name]) if name in exact else label
        for name, label in named.items()
    }


def filtered(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points that pass the filters of the sidebar."""
    kept = points
    for name in FILTERS:
        if name not in points or points[name].nunique(dropna=True) == 0:
            continue
        options = sorted(kept[name].dropna().unique(), reverse=name == "study")
        chosen = st.sidebar.multiselect(
            name, options, placeholder=f"all {len(options)}", key=f"filter-{name}", format_func=clean_line
        )
        if chosen:
            kept = kept[kept[name].isin(chosen)]
    verdicts = st.sidebar.multiselect("verdict", ["valid", "doubtful", "void"], default=["valid", "doubtful"])
    found: pd.DataFrame = kept[kept["verdict"].isin(verdicts)]
    return found


def newest(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points of the newest runs, as many as a chart can show."""
    keys = points["run_key"].drop_duplicates()
    if len(keys) <= LINES_MAX:
        return points
    st.caption(f"Only the newest {LINES_MAX} of {len(keys)} runs are drawn; use the filters to see others.")
    found: pd.DataFrame = points[points["run_key"].isin(set(keys.tail(LINES_MAX)))]
    return found


def colour_by(points: pd.DataFrame) -> str:
    """Return the column that the user chose for the colours."""
    varying = [name for name in ("engine", "workload", "model", "gpu", "run_key") if points[name].nunique() > 1]
    options = [*([SERIES] if points[SERIES].nunique() <= COLOURS_MAX else []), *varying] or ["engine"]
    chosen = st.selectbox("colour by", options, index=0, key="colour-by")
    return str(chosen or options[0])


def of_one_workload(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points of one chosen workload if there are more series than colours."""
    names = sorted(points["workload"].dropna().unique())
    if len(names) < 2 or points[SERIES].nunique() <= COLOURS_MAX:
        return points
    latest = str(points["workload"].iloc[-1])
    chosen = _workload_control([*names, ALL], latest) or latest
    found: pd.DataFrame = points if chosen == ALL else points[points["workload"] == chosen]
    return found


def _clean_row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: clean_line(value) if isinstance(value, str) else value for name, value in row.items()}


def _workload_control(names: list[str], latest: str) -> str | None:
    """Return the chosen workload. Options of this control are Markdown, and names come from files."""
    return st.segmented_control("workload", names, default=latest, format_func=clean_markdown, key="one-workload")


def overview(points: pd.DataFrame, runs: pd.DataFrame) -> None:
    """Show key figures, then each run with its best point."""
    import pandas as pd

    keys = set(points["run_key"])
    best = points.dropna(subset=["output_throughput_tok_s"]).sort_values("output_throughput_tok_s")
    believed = best[best["verdict"] == "valid"]
    best = (believed if not believed.empty else best).groupby("run_key", sort=False).tail(1)
    columns = st.columns(4)
    columns[0].metric("runs with points", f"{len(keys):,}")
    columns[1].metric("points", f"{len(points):,}")
    columns[2].metric("valid points", f"{100 * (points['verdict'] == 'valid').mean():.0f}%" if len(points) else "-")
    columns[3].metric("failed runs", f"{int((runs['status'] == 'failed').sum()):,}" if len(runs) else "-")
    if best.empty:
        st.info("No point of these runs has a throughput.")
    else:
        top, quick = best.iloc[-1], points.dropna(subset=["ttft_ms_p50"]).sort_values("ttft_ms_p50").iloc[0]
        left, right = st.columns(2)
        left.metric("highest output throughput", f"{top['output_throughput_tok_s']:,.0f} tok/s")
        left.text(f"{top['run_key']} at load {top['level']}")
        right.metric("lowest TTFT p50", f"{quick['ttft_ms_p50']:,.1f} ms")
        right.text(f"{quick['run_key']} at load {quick['level']}")
    shown = ["run_key", "engine", "workload", "level", "output_throughput_tok_s", "ttft_ms_p50", "ttft_ms_p99",
             "tpot_ms_mean", *MONEY, "verdict", "doubts", "engine_version", "model", "gpu"]  # fmt: skip
    st.text("The best point of each run (highest output throughput)")
    kept = best[[name for name in shown if name in best and not (name in MONEY and best[name].isna().all())]]
    st.dataframe(kept.iloc[::-1].round(3), hide_index=True, width="stretch", column_config=headings())
    bad = runs[runs["status"] != "finished"] if len(runs) else runs
    if len(bad):
        st.text("Runs that did not finish")
        started = pd.to_datetime(bad["started_s"], unit="s", errors="coerce")
        shown_runs = bad.assign(error=bad["error"].fillna("-"), started=started)
        st.dataframe(shown_runs.drop(columns="started_s").rename(columns={"started": "started, UTC"}), hide_index=True)


def load_view(points: pd.DataFrame) -> None:
    """Show throughput and latencies by load."""
    points = of_one_workload(points)
    by = colour_by(points)
    limit = st.number_input("TTFT limit, ms (0 for none)", min_value=0.0, value=0.0, step=50.0)
    points = newest(points)
    columns = st.columns(2)
    charts: tuple[tuple[str, str, bool, float | None], ...] = (
        ("output_throughput_tok_s", "output throughput, tok/s", False, None),
        ("ttft_ms_p50", "TTFT p50, ms", True, limit or None),
        ("ttft_ms_p99", "TTFT p99, ms", True, limit or None),
        ("tpot_ms_mean", "TPOT mean, ms", False, None),
        ("goodput_req_s", "goodput, requests within the SLO per second", False, None),
        ("cost_usd_per_mtok", "cost, $ per million output tokens", True, None),
        ("cost_usd_per_mgood", "cost, $ per million good requests", True, None),
        ("energy_j_per_token", "energy, J per output token", True, None),
    )
    # latency and throughput are always shown, the others where they were measured
    always = charts[:4]
    charts = (*always, *(one for one in charts[4:] if one[0] in points and points[one[0]].notna().any()))
    for index, (column, title, log, line) in enumerate(charts):
        rows = points.dropna(subset=[column])
        if rows.empty:
            columns[index % 2].info(f"No point has {title}.")
        else:
            chart = drawn.against_load(rows, column, title, by=by, log=log, limit=line)
            columns[index % 2].altair_chart(chart, width="stretch")
    st.caption("Pale points are doubtful. Vertical lines are 95% intervals.")


def tradeoff_view(points: pd.DataFrame) -> None:
    """Show TTFT against throughput."""
    points = of_one_workload(points)
    by = colour_by(points)
    rows = newest(points).dropna(subset=["output_throughput_tok_s", "ttft_ms_p50"])
    if rows.empty:
        st.info("No point has both a throughput and a TTFT.")
        return
    st.altair_chart(drawn.tradeoff(rows, by=by), width="stretch")
    st.caption("Down and to the right is better; the larger the mark, the higher the load. Pale points are doubtful.")


def quality_view(outputs: str, points: pd.DataFrame, changed: int) -> None:
    """Show quality by data set."""
    import pandas as pd

    keys = [key for key in points["run_key"].drop_duplicates() if (Path(outputs) / key / "quality.parquet").is_file()]
    rows = [row for key in keys[-LINES_MAX:] for row in build.quality_rows(load_run(outputs, key, changed), key)]
    if not rows:
        st.info("None of these runs measured quality. Set quality= to measure it.")
        return
    # one bar each: bars of the same name would be stacked
    engines = dict(zip(points["run_key"], points["engine"], strict=True))
    named = [
        {
            "run": f"{row.run}, {row.result.at}",
            "dataset": row.result.benchmark,
            **{name: getattr(row, name) for name in ("share", "low", "high", "load")},
            **{name: getattr(row.result, name) for name in QUALITY_COLUMNS},
            "engine": engines.get(row.run, "-"),
            "doubts": ", ".join(doubt.code for doubt in row.result.doubts),
        }
        for row in rows
    ]
    frame = pd.DataFrame(named)
    st.altair_chart(drawn.quality_bars(frame), width="stretch")
    st.caption(
        "Lines in the bars are 95% intervals. Parity: answers under load that equal those of the same engine alone."
    )
    st.dataframe(frame, hide_index=True, width="stretch", column_config=quality_headings())


def quality_headings() -> dict[str, str]:
    """Return the titles and units of the quality table's columns."""
    return {
        "dataset": "data set",
        "share": "share right",
        "low": "low, 95%",
        "high": "high, 95%",
        "n": "questions",
        "right_per_s": "right answers/s",
        "latency_ms_p50": "latency p50, ms",
    }


def raw_view(points: pd.DataFrame) -> None:
    """Show every column, with a download as CSV."""
    table = points.map(clean_csv).rename(columns=clean_csv).to_csv(index=False)
    st.download_button("download as CSV", table, "servebench_points.csv", "text/csv")
    st.dataframe(points, hide_index=True, width="stretch", height=600)


def alike(points: pd.DataFrame, keys: list[str]) -> list[str]:
    """Return the newest run and those of the same workload and model; all runs if there are none."""
    first = points.drop_duplicates("run_key")
    setups = dict(zip(first["run_key"], zip(first["workload"], first["model"], strict=True), strict=True))
    same = [key for key in keys if setups[key] == setups[keys[0]]]
    return same if len(same) > 1 else keys


def pick_runs(points: pd.DataFrame, label: str, most: int, start: int) -> list[str]:
    """Return the runs that the user chose."""
    keys = list(points["run_key"].drop_duplicates())[::-1]
    default = list(reversed(alike(points, keys)[:start]))
    chosen = st.multiselect(
        label, keys, default=default, max_selections=most, key=f"pick-{label}", format_func=clean_line
    )
    return [str(key) for key in chosen]


def compare_view(outputs: str, points: pd.DataFrame, changed: int) -> None:
    """Show the verdicts of `servebench compare`; the first run is the baseline."""
    keys = pick_runs(points, "runs; the first is the baseline", COMPARED_MAX, 2)
    if len(keys) < 2:
        st.info("Choose two runs or more.")
        return
    with_doubtful = st.checkbox("include doubtful points")
    for one in compared(outputs, tuple(keys), changed, with_doubtful):
        st.code(f"{one['candidate']} vs {one['baseline']}", language=None)
        show = {"slower": st.error, "faster": st.success, "unequal_settings": st.warning}.get(one["verdict"], st.info)
        show(one["verdict"].replace("_", " "))
        st.text(one["summary"])
        st.dataframe(one["rows"], hide_index=True, width="stretch")
        if one["note"]:
            st.caption(one["note"])


@st.cache_data(show_spinner="comparing", max_entries=32)
def compared(outputs: str, keys: tuple[str, ...], changed: int, with_doubtful: bool) -> list[dict[str, Any]]:
    """Compare each run with the first, as plain tables."""
    from servebench.analysis.run_comparison import compare_speed
    from servebench.report import comparison as texts

    runs = [load_run(outputs, key, changed) for key in keys]
    pairs = [(runs[0], run) for run in runs[1:]]
    found = compare_speed(pairs, with_doubtful=with_doubtful, earlier=read.runs_beside(runs[0]))
    return [
        {
            "baseline": one.baseline,
            "candidate": one.candidate,
            "verdict": str(one.result),
            "summary": one.summary,
            "note": texts.starts_note(one),
            "rows": [
                {**dict(zip(texts.HEADINGS, texts.cells_of(row), strict=True)), "why": row.why} for row in one.rows
            ],
        }
        for one in found
    ]


def as_picture(svg: str) -> str:
    """Return a chart of the report as a standalone image, which cannot run anything."""
    box = re.search(r'viewBox="0 0 (\d+) (\d+)"', svg)
    size = f'width="{box[1]}" height="{box[2]}" ' if box else ""
    style = "<style>text{font:11px sans-serif;fill:#333}.grid{stroke:#e4e4e4}.window{opacity:.06}</style>"
    alone = svg.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" {size}', 1)
    return alone.replace("<title>", f"{style}<title>", 1)


def timeline_view(outputs: str, points: pd.DataFrame, changed: int) -> None:
    """Show the requests of a run over time, with its telemetry."""
    from servebench.report.html.charts import requests_timeline

    keys = list(points["run_key"].drop_duplicates())[::-1]
    key = st.selectbox("run", keys, format_func=clean_line)
    if key is None:
        return
    run = load_run(outputs, str(key), changed)
    found = timeline_of(run, run.name)
    if found is None:
        st.info("No requests of this run are stored.")
        return
    svg = requests_timeline(found.spans, found.panels, found.window, title=f"load {found.level}")
    st.text(f"load {found.level}")
    st.image(as_picture(svg or ""), width="stretch")


def fairness_view(outputs: str, points: pd.DataFrame, changed: int) -> None:
    """Show the settings that runs do not share."""
    keys = pick_runs(points, "runs; each is compared with the first", COMPARED_MAX, 2)
    if len(keys) < 2:
        st.info("Choose two runs or more.")
        return
    runs = [load_run(outputs, key, changed) for key in keys]
    for run in runs[1:]:
        found = unequal_settings(runs[0], run)
        st.code(f"{run.run_id} vs {runs[0].run_id}", language=None)
        if not found:
            st.success("same settings")
            continue
        mattering = sum(one.matters for one in found)
        (st.warning if mattering else st.info)(f"{len(found)} different settings, {mattering} of them matter")
        st.dataframe([_clean_row(vars(one)) for one in found], hide_index=True, width="stretch")


def main() -> None:
    """Show the page."""
    outputs = sys.argv[1] if len(sys.argv) > 1 else "outputs"
    st.set_page_config(page_title="servebench", layout="wide")
    st.title("servebench")
    state = warm.signature(Path(outputs))
    changed = hash(state)
    points, runs = warm.points_of(outputs, state)
    if points.empty:
        st.info("There are no points yet. Run a study, or choose a folder: servebench dashboard --outputs DIR")
        if len(runs):
            st.dataframe(runs, hide_index=True, width="stretch")
        return
    view = st.segmented_control("view", VIEWS, default=VIEWS[0], label_visibility="collapsed", key="view") or VIEWS[0]
    kept = filtered(points)
    if kept.empty:
        st.info("No point matches: remove a filter.")
        return
    if emulated := int(kept["emulated"].fillna(False).astype(bool).sum()) if "emulated" in kept else 0:
        st.warning(
            f"{emulated} of these {len(kept)} points are from emulated engines: they do not describe the real engines."
        )
    views = {
        "Overview": lambda: overview(kept, runs),
        "Load": lambda: load_view(kept),
        "Trade-off": lambda: tradeoff_view(kept),
        "Quality": lambda: quality_view(outputs, kept, changed),
        "Raw table": lambda: raw_view(kept),
        "Compare": lambda: compare_view(outputs, kept, changed),
        "Timeline": lambda: timeline_view(outputs, kept, changed),
        "Fairness": lambda: fairness_view(outputs, kept, changed),
    }
    views[view]()


if __name__ == "__main__":
    main()
