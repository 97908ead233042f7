"""From stored runs to what is judged and shown: sides, entrants, pages, timelines, panels, shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from servebench.analysis.compare import Sample, Side
from servebench.analysis.recommend import Entrant, Level
from servebench.analysis.repeats import OverRepeats, over_repeats
from servebench.analysis.slo import Limits
from servebench.contracts.stored import RunData, mapping
from servebench.measure.columns import gaps_ms, in_window, request_metrics, token_slices
from servebench.util.errors import StoreError
from servebench.util.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

    from servebench.analysis.parity import Parity
    from servebench.analysis.rightness import Agreement
    from servebench.contracts.results import QualitySummary
    from servebench.report.html.page import QualityRow, RunPage, Timeline

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
    from servebench.report.html.page import QualityRow

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


def quality_summaries(run: RunData) -> list[QualitySummary]:
    """The figures of a run's quality table; none where there is no table, or one that cannot be read."""
    from servebench.analysis.rightness import summaries

    try:
        return summaries(run.quality)
    except (StoreError, KeyError):
        return []


def quality_agreements(a: RunData, b: RunData) -> list[Agreement]:
    """Two runs' answers compared, question by question; none where one has no table."""
    from servebench.analysis.rightness import agreements

    try:
        return agreements(a.quality, b.quality)
    except (StoreError, KeyError):
        return []


def quality_parities(a: RunData, b: RunData) -> list[Parity]:
    """Two runs' answers to the same prompts, set side by side; none where one has none."""
    from servebench.analysis.parity import parities

    try:
        return parities(a.quality, b.quality)
    except (StoreError, KeyError, ValueError):
        return []


def side_of(run: RunData) -> Side:
    """A run as one side of a comparison: its points with the requests in their windows."""
    from servebench.report.figures import level
    from servebench.report.terminal.listing import rows

    metrics = request_metrics(run.requests)
    samples = []
    for row in rows(run.points):
        of_point = metrics[metrics["point"] == row.get("point")]
        start, end = row.get("window_start_ns"), row.get("window_end_ns")
        facts: dict[str, Any] = {
            "level": level(row),
            "repeat": int(row.get("repeat") or 0),
            "verdict": str(row.get("verdict")),
            "doubts": tuple(row.get("doubts") or ()),
        }
        if start is None or end is None or of_point.empty:
            samples.append(Sample(**facts))
            continue
        inside = in_window(of_point, int(start), int(end))
        failed = ~inside["ok"].to_numpy(dtype=bool)
        own = run.requests[run.requests["point"] == row.get("point")]
        latencies: dict[str, Any] = {
            name: np.where(failed, np.inf, inside[name].to_numpy(dtype=np.float64))
            for name in ("ttft_ms", "tpot_ms", "e2e_ms")
        }
        samples.append(
            Sample(
                **facts,
                request_ids=tuple(inside["request_id"]),
                sizes=np.nan_to_num(
                    inside["planned_prompt_tokens"].to_numpy(dtype=np.float64, na_value=np.nan), nan=-1
                ),
                failed=failed,
                throughput_tok_s=token_slices(own, int(start), int(end)),
                **latencies,
            )
        )
    return Side(name=run.run_id, samples=tuple(samples))


def repeats_of(run: RunData) -> OverRepeats:
    """What the repeats of a run's levels say together."""
    from servebench.report.figures import level
    from servebench.report.terminal.listing import rows

    return over_repeats([(level(row), row) for row in rows(run.points)])


def entrant_of(run: RunData) -> Entrant:
    """A run as it takes part in a recommendation: its levels, repeats pooled."""
    from servebench.report.terminal.listing import rows

    side = side_of(run)
    levels: dict[str, list[tuple[dict[str, Any], Sample]]] = {}
    for row, sample in zip(rows(run.points), side.samples, strict=True):
        levels.setdefault(sample.level, []).append((row, sample))
    start = mapping(run.manifest.get("cold_start"))
    gpu = mapping(run.config.get("gpu"))
    return Entrant(
        name=run.run_id,
        engine=run.fact("engine") or "",
        model=run.fact("model") or "",
        gpu=run.fact("gpu") or "",
        workload=run.fact("workload") or "",
        levels=tuple(_level(label, parts) for label, parts in levels.items()),
        cold_start_s=None if start.get("shared") else start.get("seconds"),
        own_limits=own_limits(run),
        price_usd_per_hour=gpu.get("price_usd_per_hour"),
        gpu_count=int(gpu.get("count") or 0),
        manifest=run.manifest,
    )


def own_limits(run: RunData) -> Limits | None:
    """The SLO that a run was given; None when it set no limit."""
    slo = mapping(run.config.get("slo"))
    known = {
        name: float(slo[name]) for name in ("ttft_ms", "tpot_ms", "e2e_ms") if isinstance(slo.get(name), (int, float))
    }
    if not known:
        return None
    share = slo.get("attainment")
    return Limits(**known, **({"attainment": float(share)} if isinstance(share, (int, float)) else {}))


WORST_LAST = ("valid", "doubtful", "void")


def _level(label: str, parts: Sequence[tuple[dict[str, Any], Sample]]) -> Level:
    row = parts[0][0]
    # a verdict that is not known counts as the worst
    verdicts = [s.verdict if s.verdict in WORST_LAST else "void" for _, s in parts]
    load = row.get("rate") if row.get("rate") is not None else row.get("concurrency")
    return Level(
        row=row,
        label=label,
        load=float(load or 0),
        verdict=max(verdicts, key=WORST_LAST.index),
        doubts=tuple(dict.fromkeys(code for _, s in parts for code in s.doubts)),
        samples=tuple(s for _, s in parts),
    )


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
    from servebench.report.figures import level
    from servebench.report.html.charts import RunView
    from servebench.report.html.page import RunPage
    from servebench.report.terminal.listing import rows as rows_of

    rows = rows_of(run.points)
    latencies: dict[str, dict[str, Any]] = {}
    try:
        requests = run.requests
    except StoreError:
        requests = None
    if requests is not None and not requests.empty:
        metrics = request_metrics(requests)
        for row in rows:
            if row.get("window_start_ns") is None or row.get("verdict") == "void" or level(row) in latencies:
                continue
            inside = in_window(
                metrics[metrics["point"] == row.get("point")], row["window_start_ns"], row["window_end_ns"]
            )
            ok = inside[inside["ok"]]
            own = requests[(requests["point"] == row.get("point")) & requests["request_id"].isin(ok["request_id"])]
            latencies[level(row)] = {
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


def limits_of(runs: Sequence[RunData]) -> dict[str, float]:
    """The SLO of the runs, where they have one and the same."""
    found: dict[str, float] = {}
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        values = {mapping(run.config.get("slo")).get(name) for run in runs if run.config}
        value = values.pop() if len(values) == 1 else None
        if isinstance(value, (int, float)):
            found[name] = float(value)
    return found


def timeline_of(run: RunData, name: str) -> Timeline | None:
    """The highest point of a run that is not void, over time, with what was sampled meanwhile."""
    from servebench.report.figures import level
    from servebench.report.html.charts import load_of
    from servebench.report.html.page import Timeline
    from servebench.report.html.svg import Span
    from servebench.report.terminal.listing import rows as rows_of

    rows = [row for row in rows_of(run.points) if row.get("window_start_ns") is not None]
    fit = [row for row in rows if row.get("verdict") != "void"] or rows
    try:
        metrics = request_metrics(run.requests) if fit else None
    except StoreError:
        return None
    if metrics is None or metrics.empty:
        return None
    row = max(fit, key=lambda one: load_of(one) or 0)
    own = metrics[metrics["point"] == row.get("point")]
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
    return Timeline(
        run=name,
        level=level(row),
        spans=spans,
        panels=[in_flight(own, start, end), *panels_of(run.telemetry, start, end)],
        window=((row["window_start_ns"] - start) / NS_PER_S, (row["window_end_ns"] - start) / NS_PER_S),
    )


def in_flight(own: pd.DataFrame, start_ns: int, end_ns: int, steps: int = 200) -> Panel:
    """Requests in flight over time."""
    at = np.linspace(start_ns, end_ns, steps)
    sent, ended = np.sort(own["sent_ns"].to_numpy()), np.sort(own["ended_ns"].to_numpy())
    count = np.searchsorted(sent, at, side="right") - np.searchsorted(ended, at, side="right")
    return "requests in flight", [((t - start_ns) / NS_PER_S, float(n)) for t, n in zip(at, count, strict=True)]
