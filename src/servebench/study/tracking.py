"""Tracking of studies: results go to MLflow after each run, with a summary at the end; those of stored ones go later."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
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
from servebench.run.recovery import clean_logs, print_problem
from servebench.store.hold import holding
from servebench.store.layout import StudyFolder
from servebench.store.seal import sha256_of
from servebench.store.state import StudyState, read_signed_study
from servebench.store.tracking import SUMMARY_FACTS, Estimators, sent_before, sync_study, tracking_uri
from servebench.study.resume import running_process
from servebench.study.trust import confirm, visible
from servebench.util.errors import ServebenchError, StoreError
from servebench.util.secret_patterns import MARK
from servebench.util.short_id import short_id

if TYPE_CHECKING:
    from servebench.analysis.recommendation.model import Recommendation
    from servebench.report.screens.page import Page

FOLDER = "summary"
WHOLE = "summary.json"
NOTE_WIDTH = 100
ESTIMATORS = Estimators(levels_of=levels_of, mean_of=mean_of, best_level=best_level)
SYNC_TIMEOUT_S = 10.0


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


@dataclass(frozen=True, kw_only=True)
class _Sending:
    """A study and where it goes. `doubt`: why that needs to be confirmed; null for the user's own studies."""

    study: StudyFolder
    state: StudyState
    uri: str
    experiment: str
    doubt: str | None


def sync_studies(studies: Sequence[StudyFolder], *, uri: str | None = None, trusted: bool = False) -> int:
    """Send studies to MLflow: to `uri`, or to the server that each was configured with.

    Return the exit code: 0 if all were sent, else 1. One study that cannot be read does not stop the others, and a server
    that is down is tried once. Studies that are not this user's own are sent last, if they are `trusted` or confirmed. Raises
    ConfigError if they are not.
    """
    down: set[str] = set()
    code = 0
    doubtful = []
    for study in studies:
        try:
            sending = _sending(study, uri)
        except StoreError as error:
            print_problem(study, str(error))
            code = 1
            continue
        if sending is not None and sending.doubt is not None:
            doubtful.append(sending)
        elif sending is not None:
            code |= _send(sending, down)
    if doubtful:
        names = ", ".join(one.study.name for one in doubtful)
        effects = [visible(f"sends {one.study.path} to {one.uri} (experiment {one.experiment})") for one in doubtful]
        confirm(names, str(doubtful[0].doubt), effects, trusted=trusted)
    for sending in doubtful:
        code |= _send(sending, down)
    if not studies:
        sys.stdout.write("no studies to send\n")
    return code


def _sending(study: StudyFolder, chosen_uri: str | None) -> _Sending | None:
    """Return where a study goes; null if it is not tracked. Raises StoreError."""
    state, origin = read_signed_study(study, sha256_of(study.plan))
    if state.tracking.get("name") == "none" and chosen_uri is None:
        return None
    stored = state.tracking.get("uri")
    if chosen_uri is None and MARK in str(stored):
        raise StoreError(f"its tracking server {stored} was stored without its password; pass it with --uri URI")
    uri = tracking_uri(chosen_uri or stored, study.path.parent)
    experiment = str(state.tracking.get("experiment", "servebench"))
    doubt = None if sent_before(study, state, uri, experiment) else origin.doubt
    return _Sending(study=study, state=state, uri=uri, experiment=experiment, doubt=doubt)


def _send(sending: _Sending, down: set[str]) -> int:
    """Send one study and return the exit code. Adds a server that does not answer to `down`."""
    study, uri = sending.study, sending.uri
    if uri in down:
        print_problem(study, "not sent, because its tracking server is down")
        return 1
    clean = True
    if running_process(study, sending.state) is None:
        with holding(study) as ours:
            # a log that is not clean is not sent
            clean = not ours or clean_logs(study)[1]
    if sending.state.status == "finished" and not (study.summary / WHOLE).exists():
        # send the results even if their summary fails
        with contextlib.suppress(ServebenchError, OSError):
            write_summary(study.path)
    report = sync_study(study, uri=uri, experiment=sending.experiment, timeout_s=SYNC_TIMEOUT_S, estimators=ESTIMATORS)
    if report.tracker_down:
        down.add(uri)
    sys.stdout.write(f"{study.name}: {len(report.sent)} sent, {len(report.unchanged)} unchanged\n")
    if report.error is not None:
        print_problem(study, report.error)
    return int(report.error is not None or not clean)
