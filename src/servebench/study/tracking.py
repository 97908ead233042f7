"""Tracking of a study while it runs: results go to MLflow after each run, and a summary at the end."""

from dataclasses import dataclass, field

from servebench.analysis.estimate import best_level, levels_of, mean_of
from servebench.contracts.settings import TrackingSettings
from servebench.report.terminal.display import Display
from servebench.store.layout import StudyFolder
from servebench.store.state import StudyState
from servebench.store.tracking import Estimators, sync_study, tracking_uri
from servebench.study.summary import write_summary
from servebench.util.errors import ServebenchError
from servebench.util.short_id import short_id

ESTIMATORS = Estimators(levels_of=levels_of, mean_of=mean_of, best_level=best_level)


@dataclass
class StudyTracker:
    """Sends a study to its tracking server. After a failure the server is not tried again before `conclude`."""

    folder: StudyFolder
    settings: TrackingSettings
    """With `tracking=none` nothing is sent."""
    display: Display
    _down: bool = field(default=False, init=False)
    _said: str = field(default="", init=False)

    def sync(self) -> None:
        """Send what is on disk so far."""
        if self.settings.name == "none" or self._down:
            return
        self.display.status("logging to MLflow")
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
                self.display.problem(
                    f"{report.error}; no results are lost: 'servebench sync {short_id(self.folder.name)}' sends them later"
                )

    def conclude(self, state: StudyState) -> None:
        """Write the summary and send everything, also when the server was down before."""
        if self.settings.name == "none":
            return
        if any(self.folder.run(name).points.exists() for name in state.runs):
            self.display.status("writing the summary")
            try:
                write_summary(self.folder.path)
            except (ServebenchError, OSError) as error:
                self.display.problem(f"no summary of the study for MLflow: {error}")
        self._down = False
        self.sync()

    def print_location(self) -> None:
        """Print where MLflow shows the study, if it was sent."""
        if self.settings.name != "none" and not self._down:
            self.display.tracked(self._uri(), self.settings.experiment)

    def _uri(self) -> str:
        return tracking_uri(self.settings.uri, self.folder.path.parent)
