"""The live terminal display of a study: progress, a row for each point, tables and warnings at the end.

Progress goes to standard error, the final tables to standard output, so that they can be piped. Where standard error is
no terminal, progress is one line per event.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from servebench.analysis.repeats import RepeatSummary
from servebench.contracts.results import Point, QualitySummary, RunOutcome
from servebench.report.content import content_lines, quality_line, quality_lines
from servebench.report.terminal.results import (
    failure_lines,
    point_line,
    points_table,
    print_repeats,
    search_lines,
    study_table,
    warning_lines,
)
from servebench.report.terminal.tables import console
from servebench.util.figures import number, seconds
from servebench.util.redaction import redact_text
from servebench.util.stdio import best_effort

WAIT_SHOWN_S = 5.0
WAIT_SHOWN_FACTOR = 4.0
"""What is waited for is printed after WAIT_SHOWN_S, and again each time it has taken this many times longer."""


class Display:
    """Everything that is printed while a study runs. Use it as a context manager."""

    def __init__(self, *, quiet: bool = False) -> None:
        # a closed pipe, a full disk or a lost terminal must not abort a study
        self.out = console(best_effort(sys.stdout))
        self.err = console(best_effort(sys.stderr))
        self.quiet = quiet
        self.lively = self.err.is_terminal and not quiet
        self._live: Live | None = None
        self._points: list[Point] = []
        self._title = ""
        self._status = ""
        self._began = time.monotonic()
        self._waiting: tuple[str, float] | None = None
        self._over = threading.Event()
        self._waits_thread: threading.Thread | None = None

    def __enter__(self) -> Display:
        if self._waits_thread is None:
            self._waits_thread = threading.Thread(target=self._show_waits, name="waits", daemon=True)
            self._waits_thread.start()
        if self.lively:
            self._live = Live(console=self.err, refresh_per_second=4, transient=True, get_renderable=self._render)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._waiting = None
        self._pause()

    def begin(self, title: str) -> None:
        """Start the display of a run."""
        self._title, self._points, self._began = title, [], time.monotonic()
        self.say(title)

    def say(self, text: str) -> None:
        """Print a line that stays on screen."""
        if not self.quiet:
            self.err.print(Text(redact_text(text)))

    def status(self, text: str) -> None:
        """Show what is being waited for: in the live line, or without one in a line of its own when it takes long."""
        if self._waiting is None or self._waiting[0] != text:
            self._waiting = (text, time.monotonic())
            self._status = text

    def _show_waits(self) -> None:
        """Print what is waited for after 5 s, 20 s, 80 s and so on."""
        shown: tuple[tuple[str, float], float] | None = None
        while not self._over.wait(1.0):
            waiting = self._waiting
            if waiting is None or not waiting[0]:
                continue
            spent_s = time.monotonic() - waiting[1]
            due_s = WAIT_SHOWN_S if shown is None or shown[0] is not waiting else shown[1]
            if spent_s >= due_s:
                shown = (waiting, due_s * WAIT_SHOWN_FACTOR)
                self._status = f"{waiting[0]} (for {seconds(spent_s)})"
                if not self.lively:
                    self.say(f"  waiting: {self._status}")

    def progress(
        self,
        *,
        label: str,
        done: int,
        planned: int,
        failed: int,
        in_flight: int,
        rate: float,
        left_s: float | None,
        silent_s: float = 0.0,
    ) -> None:
        """Show the progress of a phase. `rate` is stream reads per second, close to tokens per second; `silent_s` is how
        long the engine has sent nothing although requests are in flight."""
        if silent_s > WAIT_SHOWN_S:
            self.status(f"{label}: the engine sends nothing for {in_flight} requests")
            return
        left = f" · {seconds(left_s)} left" if left_s is not None else ""
        wrong = f" · {failed} failed" if failed else ""
        self._waiting = None
        self._status = (
            f"{label} · {done}/{planned} requests · {in_flight} in flight · {number(rate)} events/s{wrong}{left}"
        )

    def point(self, point: Point) -> None:
        """Show a measured point."""
        self._points.append(point)
        if not self.lively:
            self.say("  " + point_line(point))

    def quality(self, summary: QualitySummary) -> None:
        """Show a graded benchmark."""
        self.say("  " + quality_line(summary))

    def finish(self, outcome: RunOutcome, title: str, repeats: RepeatSummary | None = None) -> None:
        """Print the tables and warnings of a finished run on standard output."""
        self._pause()
        self._status, self._waiting = "", None
        self._points = []
        if outcome.points:
            self.out.print(points_table(outcome.points, title))
            for line in content_lines(outcome.points):
                self.out.print(line)
            for line in warning_lines(outcome.points):
                self.out.print(line)
            for line in failure_lines(outcome.points):
                self.out.print(line)
            print_repeats(repeats, self.out)
            for line in search_lines(outcome.search):
                self.out.print(line)
        for line in quality_lines(outcome.quality):
            self.out.print(line)
        self._resume()

    def problem(self, text: str) -> None:
        """Print an error, also when quiet."""
        self.err.print(Text(f"servebench: {redact_text(text)}", style="red"))

    def study(self, outcomes: Sequence[tuple[str, RunOutcome]]) -> None:
        """Print the runs of a study side by side on standard output."""
        self._pause()
        self.out.print(study_table(outcomes))
        self._resume()

    def where(self, folder: Path) -> None:
        """Print where the results are."""
        self.say(f"results: {folder}")

    def tracked(self, uri: str, experiment: str) -> None:
        """Print where to find the results in MLflow."""
        self.say(f"MLflow experiment '{experiment}': mlflow ui --backend-store-uri {redacted_uri(uri)}")

    def _pause(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _resume(self) -> None:
        if self.lively:
            self.__enter__()

    def _render(self) -> Group:
        parts: list[Table | Text] = []
        if self._points:
            parts.append(points_table(self._points, self._title))
        spent = seconds(time.monotonic() - self._began)
        parts.append(Text(f"{spent}  {self._status}", style="cyan", no_wrap=True, overflow="ellipsis"))
        return Group(*parts)


def redacted_uri(uri: str) -> str:
    """Return a tracking URI without user name and password."""
    return re.sub(r"(?<=://)[^/@]+@", "", uri)
