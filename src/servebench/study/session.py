"""A study while its runs are executed: outcomes so far, the study's stored state, and how it ends."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from servebench.contracts.results import RunOutcome
from servebench.report.terminal.display import Display
from servebench.store.layout import StudyFolder
from servebench.store.state import StudyState, write_study
from servebench.study.tracking import StudyTracker
from servebench.util.errors import FailureKind


@dataclass(kw_only=True)
class StudySession:
    """The runs of a study that this process executes or dispatches.

    `other_code` is the exit code of runs that earlier commands left failed and that are not executed again; 0 if none.
    """

    folder: StudyFolder
    state: StudyState
    display: Display
    tracker: StudyTracker
    other_code: int = 0
    outcomes: list[tuple[str, RunOutcome]] = field(default_factory=list)

    def add_outcome(self, name: str, outcome: RunOutcome) -> None:
        """Keep the outcome of a run that has ended and is on disk, and send it to the tracking server."""
        self.outcomes.append((name, outcome))
        self.tracker.sync()

    def finish(self, order: Sequence[str], *, interrupted: bool) -> int:
        """Store how the study ended, print its results in this order of runs, and return the exit code."""
        self.outcomes.sort(key=lambda item: order.index(item[0]))
        outcomes = [outcome for _, outcome in self.outcomes]
        code = FailureKind.INTERRUPTED.exit_code if interrupted else study_exit_code(outcomes, self.other_code)
        cut_off = interrupted or any(outcome.status == "interrupted" for outcome in outcomes)
        self.store_status("interrupted" if cut_off else "finished" if code == 0 else "failed")
        self.tracker.conclude(self.state)
        if len(self.outcomes) > 1:
            self.display.study(self.outcomes)
        self.display.where(self.folder.path)
        self.tracker.print_location()
        return code

    def store_status(self, status: str) -> None:
        """Store how the study ended."""
        self.state = replace(self.state, status=status, ended_s=time.time())
        write_study(self.folder, self.state)


def study_exit_code(outcomes: Sequence[RunOutcome], other_code: int) -> int:
    """Return the exit code of the first run that is not finished, else that of runs that were not executed."""
    return next((code for outcome in outcomes if (code := outcome.exit_code)), other_code)
