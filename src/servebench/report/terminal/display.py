"""The live terminal display of a study: progress, a row for each point, and the answer at the end.

Progress goes to standard error, results to standard output, so that they can be piped. Where standard error is not a terminal,
progress is one line per event. Where standard output is none, or with `Detail.verbose`, all tables are printed; otherwise
only the last screen.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from servebench.analysis.answer import Answer
from servebench.analysis.decided import StudyDecision
from servebench.analysis.repeats import RepeatSummary
from servebench.contracts.results import Point, QualitySummary, RunOutcome
from servebench.report.content import content_lines, quality_line, quality_lines
from servebench.report.terminal.answer import print_answer, to_json
from servebench.report.terminal.decisions import print_decisions
from servebench.report.terminal.results import (
    failure_lines,
    live_table,
    point_line,
    points_table,
    print_repeats,
    search_lines,
    warning_lines,
)
from servebench.report.terminal.tables import console
from servebench.util.figures import duration, number, seconds
from servebench.util.redaction import redact_text
from servebench.util.stdio import best_effort

if TYPE_CHECKING:
    from servebench.analysis.tuning.answer import TuneAnswer

CHARACTERS_MAX = 30_000
WAIT_SHOWN_S = 5.0
WAIT_SHOWN_FACTOR = 4.0
"""What is waited for is printed after WAIT_SHOWN_S, and again each time it has taken this many times longer."""


LIVE_POINTS = 12
"""How many finished points the live area shows."""


@dataclass(frozen=True, kw_only=True)
class Detail:
    """What is printed on standard output: all tables (`verbose`), or the answer as JSON."""

    verbose: bool = False
    as_json: bool = False


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What a study will do: the labels of its runs by name, its number of points (None: not known before), and how long that
    takes at most, in seconds (None: not known before)."""

    labels: Mapping[str, str] = field(default_factory=dict)
    points: int | None = None
    seconds: float | None = None

    @property
    def text(self) -> str:
        """The schedule in one line."""
        runs, points = len(self.labels), self.points
        parts = [f"{runs} run{'s' * (runs != 1)}"]
        parts += [f"{points} point{'s' * (points > 1)}"] if points else []
        takes = f"up to about {duration(self.seconds)}" if self.seconds else "the time is known after the first point"
        return ", ".join([*parts, takes])


class Display:
    """Everything that is printed while a study runs. Use it as a context manager."""

    def __init__(self, *, quiet: bool = False, detail: Detail | None = None) -> None:
        # a closed pipe, a full disk or a lost terminal must not abort a study
        self.out = console(best_effort(sys.stdout))
        self.err = console(best_effort(sys.stderr))
        self.quiet = quiet
        self.lively = self.err.is_terminal and not quiet
        self._live: Live | None = None
        self._options = detail or Detail()
        self.complete = self._options.verbose or not self.out.is_terminal
        self.detail_lines = self._options.verbose or not self.lively
        self._schedule = Schedule()
        self._run = ""
        self._points: list[tuple[str, Point]] = []
        self._done = 0
        self._study_began = time.monotonic()
        self._title = ""
        self._status = ""
        self._began = time.monotonic()
        self._waiting: tuple[str, float] | None = None
        self._said: set[str] = set()
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

    def plan(self, schedule: Schedule) -> None:
        """Print what the study will do, and count its runs and points from now on."""
        self._schedule, self._study_began, self._done = schedule, time.monotonic(), 0
        self.say(schedule.text)

    def begin(self, title: str, run: str = "") -> None:
        """Start the display of a run; `run` is its name in the schedule."""
        names = list(self._schedule.labels)
        place = f"run {names.index(run) + 1} of {len(names)}: " if run in names and len(names) > 1 else ""
        self._run, self._began = self._schedule.labels.get(run, ""), time.monotonic()
        self._title = place + (self._run if place else title)
        self.detail(title)

    def say(self, text: str) -> None:
        """Print a line that stays on screen."""
        if not self.quiet:
            self.err.print(Text(shown(text)))

    def say_once(self, text: str) -> None:
        """Print a line that stays on screen, unless an earlier run of the study has printed the same."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    def detail(self, text: str) -> None:
        """Print a line that stays on screen, unless the live area shows as much."""
        if self.detail_lines:
            self.say(text)

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
        ttft_ms: float | None = None,
    ) -> None:
        """Show the progress of a phase. `rate` is stream reads per second, close to tokens per second; `silent_s` is how
        long the engine has sent nothing although requests are in flight; `ttft_ms` is the median of the requests so far."""
        if silent_s > WAIT_SHOWN_S:
            self.status(f"{label}: the engine sends nothing for {in_flight} requests")
            return
        left = f" · {seconds(left_s)} left" if left_s is not None else ""
        wrong = f" · {failed} failed" if failed else ""
        ttft = f" · TTFT {number(ttft_ms)} ms" if ttft_ms is not None else ""
        self._waiting = None
        self._status = f"{label} · {done}/{planned} · {in_flight} in flight · {number(rate)} tok/s{ttft}{wrong}{left}"

    def point(self, point: Point) -> None:
        """Show a measured point."""
        self._points.append((self._run, point))
        self._done += 1
        if not self.lively:
            self.say("  " + point_line(point))

    def quality(self, summary: QualitySummary) -> None:
        """Show a graded benchmark."""
        if not self.lively:
            self.say("  " + quality_line(summary))

    def finish(self, outcome: RunOutcome, title: str, repeats: RepeatSummary | None = None) -> None:
        """Print the results of a finished run on standard output: all tables and warnings, or what is in no answer."""
        self._status, self._waiting = "", None
        if self._options.as_json:
            return
        self._pause()
        if outcome.points and self.complete:
            self.out.print(points_table(outcome.points, title))
            for line in content_lines(outcome.points, verbose=self._options.verbose):
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
        self.err.print(Text(f"servebench: {shown(text)}", style="red"))

    def answer(self, answer: Answer) -> None:
        """Print the last screen of a study on standard output."""
        self._points = []
        self._pause()
        if self._options.as_json:
            self.out.print(to_json(answer), soft_wrap=True, end="")
        else:
            print_answer(answer, self.out, complete=self.complete, verbose=self._options.verbose)
        self._resume()

    def decisions(self, found: StudyDecision) -> None:
        """Print what a study has decided on standard output, unless that is for JSON."""
        self._pause()
        print_decisions(found, self.err if self._options.as_json else self.out)
        self._resume()

    def tuning(self, answer: TuneAnswer, as_json: str) -> None:
        """Print the answer of a tune on standard output, or as JSON."""
        self._points = []
        self._pause()
        if self._options.as_json:
            self.out.print(as_json, soft_wrap=True)
        else:
            from servebench.report.terminal.tuning import print_tuning

            print_tuning(answer, self.out, complete=self.complete)
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
            parts.append(live_table(self._points[-LIVE_POINTS:]))
        spent = seconds(time.monotonic() - self._began)
        parts.append(Text(f"{self._title}{self._left()}", style="cyan", no_wrap=True, overflow="ellipsis"))
        parts.append(Text(f"{spent}  {self._status}", style="cyan"))
        return Group(*parts)

    def _left(self) -> str:
        """How many points are left, and about how long they take by those that are done."""
        planned = self._schedule.points
        if not planned:
            return ""
        spent_s, left_s = time.monotonic() - self._study_began, self._schedule.seconds
        if self._done:
            left_s = spent_s / self._done * max(0, planned - self._done)
        elif left_s is not None:
            left_s = max(0.0, left_s - spent_s)
        return f" · {self._done} of {planned} points" + (f" · about {duration(left_s)} left" if left_s else "")


def shown(text: str) -> str:
    """Return text without secrets, as much as a screen takes at once: wrapping a megabyte takes seconds."""
    clean = redact_text(text)
    return clean if len(clean) <= CHARACTERS_MAX else f"{clean[:CHARACTERS_MAX]} ..."


def redacted_uri(uri: str) -> str:
    """Return a tracking URI without user name and password."""
    return re.sub(r"(?<=://)[^/@]+@", "", uri)
