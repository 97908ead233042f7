"""Tracking of a study while it runs: results go to MLflow after each run, and a summary at the end."""

from servebench.contracts.settings import TrackingSettings
from servebench.report.terminal.display import Display
from servebench.store import StudyFolder, StudyState, sync_study, tracking_uri
from servebench.study.summary import write_summary
from servebench.util.errors import ServebenchError


class StudyTracker:
    """Sends a study to its tracking server. After a failure the server is not tried again before `conclude`."""

    def __init__(self, folder: StudyFolder, settings: TrackingSettings, display: Display) -> None:
        """With `tracking=none` nothing is sent."""
        self._folder = folder
        self._settings = settings
        self._display = display
        self._down = False

    def sync(self) -> None:
        """Send what is on disk so far."""
        if self._settings.name == "none" or self._down:
            return
        self._display.status("logging to MLflow")
        settings = self._settings
        report = sync_study(self._folder, uri=self._uri(), experiment=settings.experiment, timeout_s=settings.timeout_s)
        if report.error is not None:
            self._down = True
            self._display.problem(
                f"{report.error}; no results are lost: 'servebench sync {self._folder.name}' sends them later"
            )

    def conclude(self, state: StudyState) -> None:
        """Write the summary and send everything, also when the server was down before."""
        if self._settings.name == "none":
            return
        if any(self._folder.run(name).points.exists() for name in state.runs):
            self._display.status("writing the summary")
            try:
                write_summary(self._folder.path)
            except (ServebenchError, OSError) as error:
                self._display.problem(f"no summary of the study for MLflow: {error}")
        self._down = False
        self.sync()

    def print_location(self) -> None:
        """Print where MLflow shows the study, if it was sent."""
        if self._settings.name != "none" and not self._down:
            self._display.tracked(self._uri(), self._settings.experiment)

    def _uri(self) -> str:
        return tracking_uri(self._settings.uri, self._folder.path.parent)
