"""Tracking of a study while it runs: results go to MLflow after each run, and a summary at the end."""

from dataclasses import dataclass, field

from servebench.analysis.estimate import best_level, levels_of, mean_of
from servebench.contracts.events import Doing, Events, StepFailed, Tracked, TrackingFailed
from servebench.contracts.settings import TrackingSettings
from servebench.store.layout import StudyFolder
from servebench.store.state import StudyState
from servebench.store.tracking import Estimators, sync_study, tracking_uri
from servebench.study.summary import write_summary
from servebench.util.errors import ServebenchError

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
                self.events(TrackingFailed(self.folder.name, report.error))

    def conclude(self, state: StudyState) -> None:
        """Write the summary and send everything, also when the server was down before."""
        if self.settings.name == "none":
            return
        if any(self.folder.run(name).points.exists() for name in state.runs):
            self.events(Doing("summary"))
            try:
                write_summary(self.folder.path)
            except (ServebenchError, OSError) as error:
                self.events(StepFailed("summary", str(error)))
        self._down = False
        self.sync()

    def say_where(self) -> None:
        """Emit where MLflow shows the study, if it was sent."""
        if self.settings.name != "none" and not self._down:
            self.events(Tracked(self._uri(), self.settings.experiment))

    def _uri(self) -> str:
        return tracking_uri(self.settings.uri, self.folder.path.parent)
