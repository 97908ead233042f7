"""Collects what the HTML report of a run or study shows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from servebench.analysis.conclude import Options, conclude
from servebench.analysis.decided import study_settings
from servebench.analysis.quality.summary import summaries
from servebench.analysis.recommendation.rules import Rules
from servebench.analysis.stored_runs import of_quality, shared_limits
from servebench.contracts.labels import RunLabel, run_labels
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import QualitySummary
from servebench.contracts.stored import RunData, StudyData, mapping
from servebench.measure.columns import gaps_ms, in_window, measured_rows, request_metrics
from servebench.report.charts.model import Series
from servebench.report.charts.timeline import timeline_of
from servebench.report.parts import RunTimes, times_of
from servebench.report.screens.page import Page, RunPage
from servebench.store import studies as read
from servebench.util.errors import StoreError

TIMELINES_MAX = 6


def page_of(
    found: RunData | StudyData,
    rules: Rules,
    *,
    with_doubtful: bool = False,
    varying: str | None = None,
    with_earlier: bool = True,
) -> Page:
    """Return everything that the report of a run or study shows; with what the starts of earlier studies say of how much starts
    differ, unless there is no time to read them. A study with `study.until=decided` has decided with them, so it always reads
    them."""
    runs, of_study = read.runs_of(found), isinstance(found, StudyData)
    labels = run_labels(runs)
    names = {key: label.text for key, label in labels.items()}
    pages = [run_page(run, labels[run.run_id]) for run in runs]
    readable = [one.run for one in pages if one.rows]
    with_earlier = with_earlier or any(study_settings(run) is not None for run in runs)
    earlier = read.runs_beside(found) if with_earlier else []
    options = Options(
        varying=varying,
        with_doubtful=with_doubtful,
        rules=rules,
        answers=True,
        limits=True,
        name=read.command_words(found.path if of_study else found.path.parent),
        words=found.words,
    )
    return Page(
        found=found,
        runs=pages,
        conclusions=conclude(runs, [found] if isinstance(found, StudyData) else [], options, earlier=earlier),
        timelines=[one for run in readable[:TIMELINES_MAX] if (one := timeline_of(run, names[run.run_id])) is not None],
        times=run_times(readable, names),
        quality=[row for run in runs for row in quality_rows(run, names[run.run_id])],
        distribution_at=common_level(pages),
        limits=shared_limits(runs),
        with_earlier=with_earlier,
    )


def run_times(runs: Sequence[RunData], names: Mapping[str, str]) -> list[RunTimes]:
    """Return where the time of each run's requests goes, by the run's name; without runs whose requests cannot be read."""
    found = []
    for run in runs:
        with suppress(StoreError):
            found.append(times_of(run, names[run.run_id]))
    return found


def quality_rows(run: RunData, name: str) -> list[tuple[str, QualitySummary]]:
    """Return the score of each benchmark at each load that has an interval, with the run's name."""
    return [(name, one) for one in of_quality(summaries, run) if None not in (one.value, one.low, one.high)]


def run_page(run: RunData, label: RunLabel) -> RunPage:
    """Return a run with its points, and the latencies of its requests by level; none of them where these cannot be read."""
    latencies: dict[Level, dict[str, Any]] = {}
    with suppress(StoreError):
        requests = run.requests
        metrics = request_metrics(requests)
        for row in run.point_rows if not requests.empty else ():
            if row.window_ns is None or row.verdict == "void" or row.level in latencies:
                continue
            inside = in_window(metrics[metrics["point"] == row.point], *row.window_ns, row.left_out)
            ok = inside[inside["ok"]]
            own = requests[(requests["point"] == row.point) & requests["request_id"].isin(ok["request_id"])]
            latencies[row.level] = {
                "ttft_ms": ok["ttft_ms"].dropna().to_numpy(dtype=np.float64),
                "e2e_ms": ok["e2e_ms"].dropna().to_numpy(dtype=np.float64),
                "itl_ms": gaps_ms(measured_rows(own)),
            }
    return RunPage(run=run, name=label.text, series=series_of(run, label, run.point_rows, latencies))


def series_of(
    run: RunData, label: RunLabel, rows: Sequence[PointRow], latencies: Mapping[Level, Mapping[str, Any]] | None = None
) -> Series:
    """Return a run as charts show it."""
    return Series(
        name=label.series,
        panel=label.workload,
        colour=label.colour,
        rows=rows,
        gpu_count=int(mapping(run.config.get("gpu")).get("count") or 0),
        latencies=latencies or {},
    )


def common_level(pages: Sequence[RunPage]) -> Level | None:
    """Return the highest load level among those that most runs have latencies for."""
    counts = Counter(level for one in pages for level in one.series.latencies)
    return max(counts, key=lambda level: (counts[level], level), default=None)
