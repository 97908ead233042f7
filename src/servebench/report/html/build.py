"""Collects everything that the HTML report of a run or study shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from servebench.analysis.advice import recommend_runs
from servebench.analysis.comparison.model import Comparison
from servebench.analysis.published import compare_published
from servebench.analysis.quality.agreement import Agreement
from servebench.analysis.recommendation.rules import Rules
from servebench.analysis.run_comparison import compare_speed
from servebench.analysis.stored_runs import quality_agreements, quality_summaries, repeats_of, shared_limits
from servebench.contracts.stored import RunData, StudyData, mapping
from servebench.measure.columns import gaps_ms, in_window, request_metrics
from servebench.measure.in_flight import in_flight_at
from servebench.report.html.model import Page, QualityRow, RunPage, Timeline
from servebench.store import studies as read
from servebench.util.errors import StoreError
from servebench.util.units import NS_PER_S

TIMELINES_MAX = 6


COMPARISONS_MAX = 12


def page_of(
    found: RunData | StudyData, rules: Rules, *, with_doubtful: bool = False, varying: str | None = None
) -> Page:
    """Everything that the report of a run or study shows."""
    from servebench import __version__

    runs = read.runs_of(found)
    names = short_names(runs)
    pages = [run_page(run, names[run.run_id], index) for index, run in enumerate(runs)]
    readable = [run for run, one in zip(runs, pages, strict=True) if one.rows]
    comparisons, unjudged = _all_compared(readable, with_doubtful=with_doubtful, varying=varying)
    at = common_level(pages)
    over = [(one.view.name, repeats_of(one.run)) for one in pages]
    return Page(
        title=found.study_id if isinstance(found, StudyData) else found.title,
        words=found.words,
        runs=pages,
        version=__version__,
        answers=recommend_runs(readable, rules, with_doubtful=with_doubtful, varying=varying) if readable else (),
        comparisons=comparisons,
        agreements=_all_agreements(runs),
        unjudged=unjudged,
        timelines=[one for run in readable[:TIMELINES_MAX] if (one := timeline_of(run, names[run.run_id])) is not None],
        quality=[row for run in runs for row in quality_rows(run, names[run.run_id])],
        published=[one for page in pages for one in compare_published(page.view.name, page.rows)],
        faults=found.faults if isinstance(found, StudyData) else (),
        distribution_at=at,
        repeats=[(name, found) for name, found in over if found.rows],
        limits=shared_limits(runs),
    )


def _all_agreements(runs: Sequence[RunData]) -> list[tuple[str, str, Agreement]]:
    """Each run's answers against those of the first run of its model: (baseline, candidate, what came of it)."""
    groups: dict[str | None, list[RunData]] = {}
    for run in runs:
        groups.setdefault(run.fact("model"), []).append(run)
    pairs = [(group[0], other) for group in groups.values() for other in group[1:]][:COMPARISONS_MAX]
    return [(a.run_id, b.run_id, one) for a, b in pairs for one in quality_agreements(a, b)]


def _all_compared(runs: Sequence[RunData], *, with_doubtful: bool, varying: str | None) -> tuple[list[Comparison], str]:
    """Each run against the first of its set-up; and why nothing could be compared."""
    groups: dict[tuple[str | None, ...], list[RunData]] = {}
    for run in runs:
        groups.setdefault(tuple(run.fact(name) for name in ("model", "gpu", "workload")), []).append(run)
    pairs = [(group[0], other) for group in groups.values() for other in group[1:]][:COMPARISONS_MAX]
    if not pairs:
        return [], "one run a set-up: there is nothing to compare" if len(runs) > 1 else ""
    return compare_speed(pairs, with_doubtful=with_doubtful, varying=varying), ""


Panel = tuple[str, list[tuple[float, float]]]


PANELS: tuple[tuple[str, str, str], ...] = (
    ("requests_running", "level", "requests the engine works on"),
    ("requests_waiting", "level", "requests the engine has queued"),
    ("kv_cache_usage", "percent", "KV cache in use, %"),
    ("generation_tokens", "rate", "tokens generated, by the engine, per s"),
    ("gpu_utilization", "percent", "GPU busy, %"),
    ("gpu_power_w", "level", "GPU power, W"),
    ("gpu_memory_used_bytes", "gib", "GPU memory in use, GiB"),
    ("engine_cpu_s", "rate", "processor cores the engine uses"),
)
"""Telemetry that is drawn: its name, how it becomes a line, and what the line is called."""


FACTORS = {"level": 1.0, "percent": 100.0, "gib": 1 / 2**30, "rate": 1.0}


BINS = 160


MAXIMA = ("kv_cache_usage", "gpu_utilization")
"""What is not summed over several GPUs or ranks: the largest is shown."""


def panels_of(telemetry: pd.DataFrame, start_ns: int, end_ns: int) -> list[Panel]:
    """Lines over the seconds from `start_ns` of what was sampled until `end_ns`; none where nothing was."""
    if telemetry.empty or not {"t_ns", "name", "value"} <= set(telemetry.columns) or end_ns <= start_ns:
        return []
    inside = telemetry[(telemetry["t_ns"] >= start_ns) & (telemetry["t_ns"] <= end_ns) & telemetry["name"].notna()]
    found = []
    for name, kind, words in PANELS:
        own = inside[inside["name"] == name]
        line = _line(own, name, kind, start_ns, end_ns)
        if len(line) > 1 and any(value for _, value in line):
            found.append((words, line))
    return found


def _line(own: pd.DataFrame, name: str, kind: str, start_ns: int, end_ns: int) -> list[tuple[float, float]]:
    """One line of all series of a name: each averaged in bins of time, then joined."""
    if own.empty:
        return []
    keys = [column for column in ("source", "raw_name", "labels") if column in own.columns]
    width = max((end_ns - start_ns) / BINS, 1.0)
    joined: dict[int, list[float]] = {}
    for _, series in own.sort_values("t_ns").groupby(keys, dropna=False) if keys else [("", own.sort_values("t_ns"))]:
        at, values = series["t_ns"].to_numpy(dtype=np.float64), series["value"].to_numpy(dtype=np.float64)
        if kind == "rate":
            if at.size < 2:
                continue
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.diff(values) / (np.diff(at) / NS_PER_S)
            at = at[1:]
        # a counter that was set back, or two samples of one moment, tell nothing
        kept = np.isfinite(values) & (values >= 0)
        bins = ((at[kept] - start_ns) / width).astype(np.int64)
        for place in np.unique(bins):
            joined.setdefault(int(place), []).append(float(values[kept][bins == place].mean()))
    combine = max if name in MAXIMA else sum
    return [
        ((place + 0.5) * width / NS_PER_S, FACTORS[kind] * float(combine(values)))
        for place, values in sorted(joined.items())
    ]


def quality_rows(run: RunData, name: str) -> list[QualityRow]:
    """What a run was judged by: the share right (or mean score) of each benchmark at each load, with its interval."""
    found = []
    for one in quality_summaries(run):
        if one.value is not None and one.low is not None and one.high is not None:
            found.append(
                QualityRow(
                    run=name,
                    dataset=one.benchmark,
                    share=one.value,
                    low=one.low,
                    high=one.high,
                    count=one.n,
                    measure=one.measure,
                    at=one.at,
                    load=one.rate if one.rate is not None else one.concurrency,
                    right_per_s=one.right_per_s,
                    latency_ms_p50=one.latency_ms_p50,
                    latency_ms_p99=one.latency_ms_p99,
                    unanswered=one.unanswered,
                    emulated=one.emulated,
                    doubts=tuple(doubt.code for doubt in one.doubts),
                )
            )
    return found


def short_names(runs: Sequence[RunData]) -> dict[str, str]:
    """A short name for each run: its engine, with what tells it from the others."""
    names = {}
    for run in runs:
        engine = run.engine
        rivals = [other for other in runs if other.engine == engine]
        alike = [other for other in rivals if other.fact("workload") == run.fact("workload")]
        number = run.name.partition("_")[0]
        workload = f" {run.fact('workload')}" if len({other.fact("workload") for other in rivals}) > 1 else ""
        names[run.run_id] = engine + workload + (f" ({number})" if len(alike) > 1 else "")
    return names


def run_page(run: RunData, name: str, index: int) -> RunPage:
    """A run with its rows, and the latencies of its requests by level."""
    from servebench.report.html.charts import RunView

    rows = run.point_rows
    latencies: dict[str, dict[str, Any]] = {}
    try:
        requests = run.requests
    except StoreError:
        requests = None
    if requests is not None and not requests.empty:
        metrics = request_metrics(requests)
        for row in rows:
            if row.window_ns is None or row.verdict == "void" or row.level_label in latencies:
                continue
            inside = in_window(metrics[metrics["point"] == row.point], *row.window_ns)
            ok = inside[inside["ok"]]
            own = requests[(requests["point"] == row.point) & requests["request_id"].isin(ok["request_id"])]
            latencies[row.level_label] = {
                "ttft_ms": ok["ttft_ms"].dropna().to_numpy(dtype=np.float64),
                "e2e_ms": ok["e2e_ms"].dropna().to_numpy(dtype=np.float64),
                "itl_ms": gaps_ms(own[~own["warmup"].astype(bool)]),
            }
    gpus = int(mapping(run.config.get("gpu")).get("count") or 0)
    return RunPage(
        run=run, view=RunView(name=name, index=index, rows=rows, gpu_count=gpus, latencies=latencies), rows=rows
    )


def common_level(pages: Sequence[RunPage]) -> str | None:
    """The highest load level that most runs have latencies of."""
    counts: dict[str, tuple[int, float]] = {}
    for one in pages:
        for label in one.view.latencies:
            load = float(label.removesuffix("/s"))
            counts[label] = (counts.get(label, (0, load))[0] + 1, load)
    return max(counts, key=lambda label: counts[label]) if counts else None


def timeline_of(run: RunData, name: str) -> Timeline | None:
    """The highest point of a run that is not void, over time, with what was sampled meanwhile."""
    from servebench.report.html.charts import load_of
    from servebench.report.html.svg import Span

    rows = [row for row in run.point_rows if row.window_ns is not None]
    fit = [row for row in rows if row.verdict != "void"] or rows
    try:
        metrics = request_metrics(run.requests) if fit else None
    except StoreError:
        return None
    if metrics is None or metrics.empty:
        return None
    row = max(fit, key=lambda one: load_of(one) or 0)
    own = metrics[metrics["point"] == row.point]
    if own.empty:
        return None
    start = int(own["sent_ns"].min())
    sent_s = (own["sent_ns"].to_numpy(dtype=np.float64) - start) / NS_PER_S
    first_s = sent_s + own["ttft_ms"].to_numpy(dtype=np.float64) / 1000
    end_s = (own["ended_ns"].to_numpy(dtype=np.float64) - start) / NS_PER_S
    spans = [
        Span(sent_s=float(sent), first_s=None if np.isnan(first) else float(first), end_s=float(end), failed=not ok)
        for sent, first, end, ok in zip(sent_s, first_s, end_s, own["ok"], strict=True)
    ]
    end = int(own["ended_ns"].max())
    from_ns, to_ns = row.window_ns or (start, end)
    return Timeline(
        run=name,
        level=row.level_label,
        spans=spans,
        panels=[in_flight(own, start, end), *panels_of(run.telemetry, start, end)],
        window=((from_ns - start) / NS_PER_S, (to_ns - start) / NS_PER_S),
    )


def in_flight(own: pd.DataFrame, start_ns: int, end_ns: int, steps: int = 200) -> Panel:
    """Requests in flight over time."""
    at = np.linspace(start_ns, end_ns, steps)
    count = in_flight_at(at, own["sent_ns"].to_numpy(), own["ended_ns"].to_numpy())
    return "requests in flight", [((t - start_ns) / NS_PER_S, float(n)) for t, n in zip(at, count, strict=True)]
