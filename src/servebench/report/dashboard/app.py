"""The dashboard as Streamlit runs it: `streamlit run app.py -- OUTPUTS`. Start it with `servebench dashboard`.

Every view reads from disk and caches until the folder changes. Names from files are shown only in tables, charts
and code, never as Markdown, which could load images from elsewhere.
"""

from __future__ import annotations

import sys
from html import escape
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from servebench.analysis.recommendation.rules import load_rules
from servebench.analysis.statistics import values_needed
from servebench.contracts.emulation import imitated
from servebench.contracts.labels import run_labels
from servebench.contracts.point_row import columns_shown
from servebench.report.blocks import Charts, Fold
from servebench.report.charts import draw
from servebench.report.charts.model import STATS, ChartSet
from servebench.report.charts.specs import comparing, legend_of, weak_note
from servebench.report.dashboard import serve as warm
from servebench.report.export.runs import to_csv
from servebench.report.html.page import SECTIONS, part
from servebench.report.screens.comparison import comparison_blocks
from servebench.report.screens.page import page_of, run_page
from servebench.report.screens.sections import CHARTS_NOTE
from servebench.store import studies as read
from servebench.util.safe_text import clean_line
from servebench.util.short_id import short_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd

    from servebench.analysis.verdict.model import Comparison
    from servebench.contracts.stored import RunData
    from servebench.report.blocks import Block
    from servebench.report.screens.page import Page

VIEWS = ("Runs", "Study", "Charts", "Compare", "Raw table")
FILTERS = ("study", "engine", "model", "gpu", "workload")
LINES_MAX = 40
"""More runs are unreadable in one chart; the newest are drawn."""
COMPARED_MAX = 8
PANELS = 3
"""So many charts are beside each other."""
ROW_PIXELS = 35
"""The height of a row of a table, as Streamlit draws it."""
UNFINISHED_SHOWN = 4
"""So many runs that did not finish are shown at once; the others scroll."""
SCROLL_HINT = (
    "<style>.scrolls{display:none;margin:0;color:#5c5c5c;font-size:.85rem}@media(max-width:760px){.scrolls{display:block}}</style>"
    '<p class="scrolls" aria-hidden="true">The table goes on to the right: scroll it sideways. →</p>'
)
URL: Any = {"bind": "query-params"}
"""What makes a choice a part of the page's address, so that a link shows the same."""


@st.cache_resource(show_spinner="reading the requests", max_entries=32)
def load_run(outputs: str, key: str, changed: int) -> RunData:  # noqa: ARG001  part of the cache's key
    """Return one run."""
    return read.load_run(Path(outputs) / key)


def headings() -> dict[str, Any]:
    """Return the titles, units and precision of the overview's columns."""
    named = {"engine_version": "version", "verdict": "trust", "doubts": "warnings", "level": "load"}
    exact = {"tok/s": "%.1f", "ms": "%.2f"}
    metrics = {
        one.name: st.column_config.NumberColumn(one.labelled, format=exact.get(one.unit))
        for one in columns_shown("dashboard")
    }
    return {"page": st.column_config.LinkColumn("page", display_text="open"), **named, **metrics}


def filtered(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that pass the filters of the sidebar."""
    kept = runs
    for name in FILTERS:
        if runs[name].nunique(dropna=True) == 0:
            continue
        options = sorted(kept[name].dropna().unique(), reverse=name == "study")
        chosen = st.sidebar.multiselect(
            name, options, placeholder=f"all {len(options)}", key=name, format_func=clean_line, **URL
        )
        if chosen:
            kept = kept[kept[name].isin(chosen)]
    verdicts = st.sidebar.multiselect(
        "verdict", ["valid", "doubtful", "void"], default=["valid", "doubtful"], key="verdict", **URL
    )
    found: pd.DataFrame = kept[kept["verdict"].isin(verdicts)]
    return found


def percentile() -> str:
    """Return the percentile that the charts show."""
    return st.segmented_control("percentile", STATS, default=STATS[0], key="percentile", **URL) or STATS[0]


def draw_set(found: ChartSet, stat: str) -> None:
    """Draw the panels of a set beside each other, or below each other where they are wide."""
    st.text(clean_line(f"{found.title}{f', {stat}' if found.stats else ''}"))
    columns = st.columns(1 if found.wide else PANELS)
    for index, chart in enumerate(found.charts):
        place = columns[index % len(columns)]
        place.text(clean_line(chart.title))
        spec = {**draw.framed(chart, percentile=stat), "config": draw.CONFIG}
        place.vega_lite_chart(spec=spec, width="stretch", theme=None)
    if found.note:
        st.caption(found.note)


def legend(series: Iterable[Mapping[str, str]]) -> None:
    """Show the colour and mark of each series."""
    entry = '<span style="display:inline-block;margin-right:1.5em"><b style="color:{}">{}</b> {}</span>'
    st.html(" ".join(entry.format(one["colour"], one["mark"], escape(clean_line(one["name"]))) for one in series))


def runs_view(kept: pd.DataFrame, runs: pd.DataFrame) -> None:
    """Show how many runs there are, then each run with its best point."""
    unfinished(runs)
    counts = st.container(horizontal=True)
    counts.metric("runs with points", f"{len(kept):,}", width=120)
    counts.metric("points", f"{kept['points'].sum():,}", width=120)
    counts.metric("valid points", f"{100 * kept['valid'].sum() / kept['points'].sum():.0f}%", width=120)
    counts.metric("failed runs", f"{int((runs['status'] == 'failed').sum()):,}", width=120)
    metrics = [one.name for one in columns_shown("dashboard")]
    facts = ("engine", "workload", "engine_version", "model", "gpu")
    shown = ["page", "run", "level", metrics[0], "verdict", "study", "doubts", *metrics[1:], *facts]
    st.text(
        "The load of each run with the highest output throughput, by the means over its starts and repeats: of the loads with "
        "valid points, else of the others. A TTFT p99 of "
        f"fewer than {values_needed(99)} requests is left out"
    )
    kept = kept[[name for name in shown if not (name in metrics and kept[name].isna().all())]]
    grid(kept.iloc[::-1].round(6), column_config=headings())


def unfinished(runs: pd.DataFrame) -> None:
    """Show the runs that did not finish, if there are any, and why: in so few lines that the others stay in view."""
    import pandas as pd

    bad = runs[runs["status"] != "finished"]
    if not len(bad):
        return
    st.error(f"{len(bad):,} of {len(runs):,} runs did not finish:")
    started = pd.to_datetime(bad["started_s"], unit="s", errors="coerce")
    shown = bad[["study", "run", "status"]].assign(error=bad["error"].fillna("-"), **{"started, UTC": started})
    grid(shown.iloc[::-1], height=ROW_PIXELS * (1 + min(len(bad), UNFINISHED_SHOWN)) + 3)


def grid(table: Any, **options: Any) -> None:
    """Show a table; on a narrow screen with a word on how to see its other columns."""
    st.html(SCROLL_HINT)
    st.dataframe(table, hide_index=True, width="stretch", **options)


def study_view(outputs: str, names: Sequence[str], changed: int) -> None:
    """Show a section of a study's report: first its answer, then any other."""
    name = st.selectbox("study", names, format_func=clean_line, key="one-study", **URL)
    if name is None:
        return
    data = study_page(outputs, str(name), changed)
    titles = {title or "Answer": build for _, title, build in SECTIONS}
    section = st.segmented_control("section", titles, default="Answer", key="section", **URL) or "Answer"
    if blocks := list(titles[section](data)):
        show(blocks)
    else:
        st.info("There is nothing to show here.")
    if not data.with_earlier:
        st.caption("Of this study alone. 'servebench report' counts the starts of earlier studies too.")


def show(blocks: Iterable[Block]) -> None:
    """Show blocks of a report: charts as Streamlit draws them, all else as on a page, where all texts are escaped."""
    for drawn, some in groupby(blocks, key=_has_charts):
        if not drawn:
            st.html(part(some))
            continue
        for block in some:
            if isinstance(block, Fold):
                with st.expander(block.title):
                    show(block.blocks)
            elif isinstance(block, Charts):
                stat = percentile() if block.stats else st.session_state.get("percentile") or STATS[0]
                if block.legend:
                    legend(block.legend)
                for one in block.sets:
                    draw_set(one, stat)


def _has_charts(block: Block) -> bool:
    return isinstance(block, Charts) or (isinstance(block, Fold) and any(map(_has_charts, block.blocks)))


@st.cache_resource(show_spinner="reading the study", max_entries=16)
def study_page(outputs: str, name: str, changed: int) -> Page:  # noqa: ARG001  part of the cache's key
    """Return what the report of a study shows."""
    return page_of(read.load_study(Path(outputs) / name), load_rules(), with_earlier=False)


def charts_view(runs: Sequence[RunData]) -> None:
    """Show throughput, latencies and cost of the chosen runs over the load."""
    if len(runs) > LINES_MAX:
        st.caption(f"Only the newest {LINES_MAX} of {len(runs)} runs are drawn; use the filters to see others.")
    runs = runs[-LINES_MAX:]
    labels = run_labels(runs)
    series = [run_page(run, labels[run.run_id], with_latencies=False) for run in runs]
    stat = percentile()
    limit = st.number_input("TTFT limit, ms (0 for none)", min_value=0.0, value=0.0, step=50.0, key="ttft-limit", **URL)
    legend(legend_of(series))
    for found in comparing(series, {"ttft_ms": limit} if limit else {}):
        draw_set(found, stat)
    st.caption(f"{CHARTS_NOTE} {weak_note(series)}")


def raw_view(runs: Sequence[RunData]) -> None:
    """Show every column of every point, with a download as CSV."""
    import pandas as pd

    table = to_csv(runs)
    st.download_button("download as CSV", table, "servebench_points.csv", "text/csv")
    grid(pd.read_csv(StringIO(table), low_memory=False), height=600)


def alike(runs: Sequence[RunData]) -> list[str]:
    """Return the newest run and those of the same workload and model, newest first; all runs if there are none."""
    newest = [(run.run_id, run.fact("workload"), run.fact("model")) for run in reversed(runs)]
    same = [key for key, *setup in newest if setup == list(newest[0][1:])]
    return same if len(same) > 1 else [key for key, *_ in newest]


def run_name(key: str) -> str:
    """Return a run's key with the short id of its study: long names are cut on a narrow screen."""
    study, _, run = key.partition("/")
    return clean_line(f"{short_id(study)}/{run}")


def compare_view(outputs: str, runs: Sequence[RunData], changed: int) -> None:
    """Show the verdicts of `servebench compare`; the first run is the baseline."""
    keys = st.multiselect(
        "runs; the first is the baseline", [run.run_id for run in reversed(runs)],
        default=list(reversed(alike(runs)[:2])), max_selections=COMPARED_MAX, key="runs", format_func=run_name, **URL,
    )  # fmt: skip
    if len(keys) < 2:
        st.info("Choose two runs or more.")
        return
    with_doubtful = st.checkbox("include doubtful points", key="with-doubtful", **URL)
    for one in compared(outputs, tuple(map(str, keys)), changed, with_doubtful):
        st.html(part(comparison_blocks(one)))


@st.cache_resource(show_spinner="comparing", max_entries=32)
def compared(outputs: str, keys: tuple[str, ...], changed: int, with_doubtful: bool) -> Sequence[Comparison]:
    """Compare each run with the first."""
    from servebench.analysis.conclude import Options, conclude

    runs = [load_run(outputs, key, changed) for key in keys]
    pairs = [(runs[0], run) for run in runs[1:]]
    own = [read.load_study(runs[0].path.parent)] if any(a.study_id == b.study_id for a, b in pairs) else []
    options = Options(with_doubtful=with_doubtful, answers=True)
    return conclude(runs, own, options, pairs=pairs, earlier=read.runs_beside(runs[0])).comparisons


def main() -> None:
    """Show the page."""
    outputs = sys.argv[1] if len(sys.argv) > 1 else "outputs"
    st.set_page_config(page_title="servebench", layout="wide")
    st.title("servebench")
    state = warm.signature(Path(outputs))
    changed = hash(state)
    runs, by_id = warm.stored(outputs, state)
    studies = [name for name, _ in reversed(state)]
    if not studies:
        st.info("There are no points yet. Run a study, or choose a folder: servebench dashboard --outputs DIR")
        return
    view = st.segmented_control("view", VIEWS, default=VIEWS[0], label_visibility="collapsed", key="view", **URL)
    if view == "Study" or not any(run.point_rows for run in by_id.values()):
        study_view(outputs, studies, changed)
        return
    kept = filtered(runs)
    if kept.empty:
        st.info("No point matches: remove a filter.")
        return
    chosen = [by_id[key] for key in kept["id"]]
    if imitations := [run.fact("launch") for run in chosen if run.emulated]:
        how = imitated(imitations) or "emulated"
        st.warning(
            f"{len(imitations)} of these {len(kept)} runs are of {how} engines: they do not describe the real engines."
        )
    views = {
        "Runs": lambda: runs_view(kept, runs),
        "Charts": lambda: charts_view(chosen),
        "Raw table": lambda: raw_view(chosen),
        "Compare": lambda: compare_view(outputs, chosen, changed),
    }
    views[view or VIEWS[0]]()


if __name__ == "__main__":
    main()
