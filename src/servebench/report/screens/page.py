"""What the report of a run or study shows, as it is collected."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from servebench.analysis.answer.model import Answer
from servebench.analysis.conclude import Conclusions, Options, conclude
from servebench.analysis.decided import study_settings
from servebench.analysis.quality.summary import summaries
from servebench.analysis.recommendation.model import Recommendation
from servebench.analysis.recommendation.rules import Rules
from servebench.analysis.stored_runs import of_quality, shared_limits
from servebench.contracts.labels import RunLabel, run_labels
from servebench.contracts.level import Level
from servebench.contracts.results import QualitySummary
from servebench.contracts.stored import RunData, StudyData, mapping
from servebench.measure.columns import gaps_ms, in_window, measured_rows, request_metrics
from servebench.report.charts.model import Series
from servebench.report.charts.timeline import Timeline, timeline_of
from servebench.report.screens.times import RunTimes, times_of
from servebench.store import studies as read
from servebench.util.errors import StoreError
from servebench.util.short_id import short_id

TIMELINES_MAX = 6


@dataclass(frozen=True, kw_only=True)
class RunPage(Series):
    """A run, by the text of its label, with its points as charts show them."""

    run: RunData
    label: str


@dataclass(frozen=True, kw_only=True)
class Page:
    """All that a report shows of a run or a study (`found`); `with_earlier`: starts of earlier studies were looked at, too."""

    found: RunData | StudyData
    runs: Sequence[RunPage]
    conclusions: Conclusions
    timelines: Sequence[Timeline] = ()
    times: Sequence[RunTimes] = ()
    quality: Sequence[tuple[str, QualitySummary]] = ()
    distribution_at: Level | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    with_earlier: bool = True

    @property
    def title(self) -> str:
        """The study, and of a run alone its title."""
        title = short_id(self.found.study_id)
        return title if isinstance(self.found, StudyData) else f"{title} · {self.found.title}"

    @property
    def folder(self) -> str:
        """The folder of the study or the run, below that of all studies."""
        return self.found.study_id if isinstance(self.found, StudyData) else self.found.run_id

    @property
    def answer(self) -> Answer:
        """What its runs say in a table and a sentence."""
        return self.conclusions.answer

    @property
    def answers(self) -> Sequence[Recommendation]:
        """The best run for each use."""
        return self.conclusions.recommendations or ()


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
    pages = [run_page(run, labels[run.run_id]) for run in runs]
    readable = [one for one in pages if one.rows]
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
        timelines=[one for own in readable[:TIMELINES_MAX] if (one := timeline_of(own.run, own.label)) is not None],
        times=_times(readable),
        quality=[row for own in pages for row in quality_rows(own.run, own.label)],
        distribution_at=common_level(pages),
        limits=shared_limits(runs),
        with_earlier=with_earlier,
    )


def _times(runs: Sequence[RunPage]) -> list[RunTimes]:
    """Return where the time of each run's requests goes, without runs whose requests cannot be read."""
    found = []
    for one in runs:
        with suppress(StoreError):
            found.append(times_of(one.run, one.label))
    return found


def quality_rows(run: RunData, name: str) -> list[tuple[str, QualitySummary]]:
    """Return the score of each benchmark at each load that has an interval, with the run's name."""
    return [(name, one) for one in of_quality(summaries, run) if None not in (one.value, one.low, one.high)]


def run_page(run: RunData, label: RunLabel, *, with_latencies: bool = True) -> RunPage:
    """Return a run as the page and its charts show it."""
    return RunPage(
        run=run,
        label=label.text,
        name=label.series,
        panel=label.workload,
        colour=label.colour,
        rows=run.point_rows,
        gpu_count=int(mapping(run.config.get("gpu")).get("count") or 0),
        latencies=_latencies(run) if with_latencies else {},
    )


def _latencies(run: RunData) -> dict[Level, dict[str, Any]]:
    """Return the latencies of a run's requests by level; none where its requests cannot be read."""
    found: dict[Level, dict[str, Any]] = {}
    with suppress(StoreError):
        requests = run.requests
        metrics = request_metrics(requests)
        for row in run.point_rows if not requests.empty else ():
            if row.window_ns is None or row.verdict == "void" or row.level in found:
                continue
            inside = in_window(metrics[metrics["point"] == row.point], row)
            ok = inside[inside["ok"]]
            own = requests[(requests["point"] == row.point) & requests["request_id"].isin(ok["request_id"])]
            found[row.level] = {
                "ttft_ms": ok["ttft_ms"].dropna().to_numpy(dtype=np.float64),
                "e2e_ms": ok["e2e_ms"].dropna().to_numpy(dtype=np.float64),
                "itl_ms": gaps_ms(measured_rows(own)),
            }
    return found


def common_level(pages: Sequence[RunPage]) -> Level | None:
    """Return the highest load level among those that most runs have latencies for."""
    counts = Counter(level for one in pages for level in one.latencies)
    return max(counts, key=lambda level: (counts[level], level), default=None)
