"""Tracking of a study while it runs: results go to MLflow after each run, and a summary at the end."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servebench.analysis.estimate import best_level, levels_of, mean_of
from servebench.contracts.events import Doing, Events, Notice, Tracked
from servebench.contracts.point_row import columns_shown
from servebench.contracts.settings import TrackingSettings
from servebench.contracts.stored import RunData, StudyData
from servebench.store.layout import StudyFolder
from servebench.store.state import StudyState
from servebench.store.tracking import SUMMARY_FACTS, Estimators, sync_study, tracking_uri
from servebench.util.errors import ServebenchError
from servebench.util.short_id import short_id

if TYPE_CHECKING:
    from servebench.analysis.recommendation.model import Recommendation
    from servebench.report.screens.page import Page


FOLDER = "summary"
WHOLE = "summary.json"
NOTE_WIDTH = 100
ESTIMATORS = Estimators(levels_of=levels_of, mean_of=mean_of, best_level=best_level)


@dataclass
class StudyTracker:
    """Sends a study to its tracking server. After a failure the server is not tried again before `conclude`."""

    folder: StudyFolder
    settings: TrackingSettings
    """With `tracking=none` nothing is sent."""
    events: Events
    _down: bool = field(default=False, init=False)
    _said: str = field(default="", init=False)

    def sync(self) -> None:
        """Send what is on disk so far."""
        if self.settings.name == "none" or self._down:
            return
        self.events(Doing("tracking"))
        settings = self.settings
        report = sync_study(
            self.folder,
            uri=self._uri(),
            experiment=settings.experiment,
            timeout_s=settings.timeout_s,
            estimators=ESTIMATORS,
        )
        if report.error is not None:
            self._down = True
            # the last attempt of `conclude` mostly fails for the reason of the first
            if report.error != self._said:
                self._said = report.error
                self.events(Notice("tracking_failed", short_id(self.folder.name), report.error))

    def conclude(self, state: StudyState) -> None:
        """Write the summary and send everything, also when the server was down before."""
        if self.settings.name == "none":
            return
        if any(self.folder.run(name).points.exists() for name in state.runs):
            self.events(Doing("summary"))
            try:
                write_summary(self.folder.path)
            except (ServebenchError, OSError) as error:
                self.events(Notice("summary_failed", note=str(error)))
        self._down = False
        self.sync()

    def say_where(self) -> None:
        """Emit where MLflow shows the study, if it was sent."""
        if self.settings.name != "none" and not self._down:
            self.events(Tracked(self._uri(), self.settings.experiment))

    def _uri(self) -> str:
        return tracking_uri(self.settings.uri, self.folder.path.parent)


def write_summary(path: Path) -> Path:
    """Write the summary of the study in this folder, replace an earlier one, and return the summary's folder.

    It is for other tools, above all MLflow: `report.html` is the page of `servebench report`, `comparison.md` the verdicts,
    `points.csv` all points, the SVG and PNG files are the charts of the report, and `summary.json` holds what MLflow's parent run
    shows (a note in Markdown, metrics per engine, tags).

    Raises ConfigError, StoreError, OSError.
    """
    from servebench.analysis.recommendation.rules import load_rules
    from servebench.report.charts import draw
    from servebench.report.charts.specs import comparing
    from servebench.report.export.markdown import to_markdown
    from servebench.report.export.runs import to_csv
    from servebench.report.html.page import page
    from servebench.report.screens.comparison import comparison_blocks
    from servebench.report.screens.page import page_of
    from servebench.store import studies as read
    from servebench.store.files import write_file

    study = read.load_study(path)
    data = page_of(study, load_rules())
    folder = path / FOLDER
    folder.mkdir(exist_ok=True)
    # it is the last file: a summary without it was cut off
    (folder / WHOLE).unlink(missing_ok=True)
    write_file(folder / "report.html", page(data))
    if data.conclusions.comparisons:
        blocks = chain.from_iterable(map(comparison_blocks, data.conclusions.comparisons))
        write_file(folder / "comparison.md", to_markdown(blocks))
    if any(one.rows for one in data.runs):
        write_file(folder / "points.csv", to_csv(study.runs))
    for chart in comparing(data.runs, data.limits):
        spec = draw.composed(chart, data.runs)
        write_file(folder / f"{chart.name}.svg", draw.svg(spec))
        write_file(folder / f"{chart.name}.png", draw.png(spec))
    shown = {"note": note(study, data.answers), "metrics": metrics(data), "tags": tags(study.runs)}
    write_file(folder / WHOLE, json.dumps(shown, indent=1) + "\n")
    return folder


def label(name: str) -> str:
    """Return a run's short name in a form that is valid in a metric's name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-")


def metrics(data: Page) -> list[dict[str, Any]]:
    """Return `metric/engine` for each level with a point that is not void, with the load and the time of its last point."""
    return [
        {
            "name": f"{column.name}/{label(one.label)}",
            "value": value,
            **{key: own[-1].get(key) for key in ("concurrency", "rate", "window_end_ns")},
        }
        for one in data.runs
        for own in levels_of(row for row in one.rows if row.verdict != "void").values()
        for column in columns_shown("mlflow")
        if (value := mean_of(own, column.name)) is not None
    ]


def tags(runs: Sequence[RunData]) -> dict[str, str]:
    """Return tags to filter studies by: each fact of the runs with all its values."""
    found = {
        f"servebench.{name}": ",".join(dict.fromkeys(str(value) for run in runs if (value := run.fact(name))))
        for name in SUMMARY_FACTS
    }
    found["servebench.emulated"] = str(any(run.emulated for run in runs)).lower()
    return found


def note(study: StudyData, uses: Sequence[Recommendation]) -> str:
    """Return the study in Markdown: the last screen of the terminal, which run to take for which use, and the command."""
    from servebench.report.export.markdown import to_markdown
    from servebench.report.screens.answer import answer_blocks
    from servebench.report.screens.recommendation import recommendation_blocks
    from servebench.study.outlook import study_conclusions
    from servebench.util.safe_text import markdown_code

    best = recommendation_blocks([one for one in uses if one.ranking], verbose=False, hint=False)
    lines = [to_markdown([*answer_blocks(study_conclusions(study.path).answer, width=NOTE_WIDTH), *best])]
    if study.words:
        lines += [markdown_code(f"servebench {shlex.join(study.words)}"), ""]
    lines.append(f"Artifacts: `{FOLDER}/report.html`, `{FOLDER}/comparison.md`, the charts.")
    return "\n".join(lines)
