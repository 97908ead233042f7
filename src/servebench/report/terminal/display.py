"""The live terminal display of a study: progress, a row for each point, and the answer at the end.

Progress goes to standard error, results to standard output, so that they can be piped. Where standard error is not a terminal,
progress is one line per event. Where standard output is none, or with `verbose`, all tables are printed; otherwise only the
last screen.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import TracebackType

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from servebench.analysis.events import StudyAnswered, TuneAnswered
from servebench.contracts import events as e
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Point, RunOutcome
from servebench.registry.registry import Registry
from servebench.report.blocks import items
from servebench.report.content import content_lines, quality_line, quality_lines, search_lines
from servebench.report.export.conclusions import as_plain
from servebench.report.screens.answer import answer_blocks
from servebench.report.screens.comparison import comparison_blocks, decision_blocks
from servebench.report.screens.points import live_table, point_line, points_blocks, repeats_blocks, warning_items
from servebench.report.terminal.console import commands_from_here, console, print_blocks, rich_table
from servebench.report.terminal.words import WORDS, is_detail, is_problem, line_of, once
from servebench.store.studies import load_run
from servebench.util.figures import duration, seconds
from servebench.util.plain_data import to_json
from servebench.util.redaction import redact_text
from servebench.util.stdio import best_effort

CHARACTERS_MAX = 30_000
WAIT_SHOWN_S = 5.0
WAIT_SHOWN_FACTOR = 4.0
"""What is waited for is printed after WAIT_SHOWN_S, and again each time it has taken this many times longer."""
LIVE_POINTS = 12
"""How many finished points the live area shows."""


class Display:
    """Everything that is printed while a study runs: with `verbose` all tables, with `as_json` JSON. A context manager."""

    def __init__(self, *, verbose: bool = False, as_json: bool = False) -> None:
        # a closed pipe, a full disk or a lost terminal must not abort a study
        self.out = console(best_effort(sys.stdout))
        self.err = console(best_effort(sys.stderr))
        self.lively = self.err.is_terminal
        self._live: Live | None = None
        self._verbose, self._as_json = verbose, as_json
        self.complete = verbose or not self.out.is_terminal
        self.detail_lines = verbose or not self.lively
        self._schedule = e.PlanReady()
        self._at_once = self._in_turns = False
        self._points: list[tuple[str, Point]] = []
        self._done = 0
        self._study_began = time.monotonic()
        self._title = self._heading = ""
        self._closing = False
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

    def __call__(self, event: e.Event) -> None:
        """Show an event."""
        match event:
            case e.PlanReady():
                self._schedule, self._study_began, self._done = event, time.monotonic(), 0
                self._print(line_of(event))
            case e.TurnStarted() if not self._closing:
                self._begin(event)
            case e.Doing() | e.JobsLeft():
                if self._in_turns:
                    # whose it is among the runs that are alive at once is not known
                    self._title = ""
                self._wait(line_of(event))
            case e.PhaseProgress():
                self._progress(event)
            case e.PointFinished():
                label = self._label(event.run_id.rpartition("/")[2])
                self._points.append((label, event.point))
                self._done += 1
                self._row(f"{label}, {point_line(event.point)}" if label else point_line(event.point))
            case e.Graded():
                self._row(quality_line(event.summary))
            case e.RunFinished():
                self._finish(event)
            case e.RunCollected():
                self._results(event.outcome, event.title)
            case e.RaceEnded():
                self._closing = True
            case StudyAnswered() | TuneAnswered():
                self._conclude(event)
            case _:
                self._line(event)

    def _line(self, event: e.Event) -> None:
        self._at_once |= isinstance(event, e.AtOnce)
        if type(event) not in WORDS or (self._closing and isinstance(event, e.TurnStarted)):
            return
        text = line_of(event)
        if is_problem(event):
            self._problem(text)
        elif self.detail_lines or not is_detail(event):
            if (key := once(event, text)) in self._said:
                return
            if key:
                self._said.add(key)
            self._print(text)

    def _begin(self, event: e.TurnStarted) -> None:
        self._began, self._in_turns = time.monotonic(), False
        self._heading = event.title
        self._title = self._place(event.run) or event.title
        if self.detail_lines:
            self._print(event.title)

    def _label(self, run: str) -> str:
        """The label of a run, where there are several."""
        return self._schedule.labels.get(run, "") if len(self._schedule.labels) > 1 else ""

    def _place(self, run: str) -> str:
        label, names = self._label(run), list(self._schedule.labels)
        return f"run {names.index(run) + 1} of {len(names)}: {label}" if label else ""

    def _print(self, text: str) -> None:
        self.err.print(Text(shown(text)))

    def _row(self, text: str) -> None:
        """Print a result, unless the live area shows it."""
        if not self.lively:
            self._print("  " + text)

    def _problem(self, text: str) -> None:
        self.err.print(Text(f"servebench: {shown(text)}", style="red"))

    def _wait(self, text: str) -> None:
        """Show what is being waited for: in the live line, or without one in a line of its own when it takes long."""
        if self._waiting is None or self._waiting[0] != text:
            self._waiting = (text, time.monotonic())
            self._status = text

    def _show_waits(self) -> None:
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
                    self._print(f"  waiting: {self._status}")

    def _progress(self, event: e.PhaseProgress) -> None:
        self._title = self._place(event.run) or self._title
        self._in_turns = self._at_once
        if event.stalled:
            self._wait(f"{event.label}: a load worker does nothing: it hangs or was stopped")
            return
        if event.silent_s > WAIT_SHOWN_S:
            self._wait(f"{event.label}: the engine sends nothing to open requests")
            return
        self._waiting = None
        self._status = line_of(event)

    def _finish(self, event: e.RunFinished) -> None:
        """Print the results of a finished run; the answer of a tune has those of its runs."""
        outcome = event.outcome
        if not self._closing:
            tables = outcome.points and self.complete and not self._as_json
            self._results(outcome, self._heading, load_run(event.folder).point_rows if tables else ())
        if outcome.error:
            self._problem(outcome.error)

    def _results(self, outcome: RunOutcome, title: str, stored: Sequence[PointRow] = ()) -> None:
        """Print the results of a run on standard output: all tables and warnings, with the means over what is `stored`; or what
        is in no answer."""
        self._status, self._waiting = "", None
        if self._as_json:
            return
        self._pause()
        if outcome.points and self.complete:
            points = outcome.points
            blocks = [
                *points_blocks([("", point.judged_row) for point in points], "run", title),
                items(content_lines(points, verbose=self._verbose)),
                warning_items(points),
                *repeats_blocks([("", stored)], "over repeats"),
            ]
            print_blocks(blocks, self.out)
        print_blocks([items(search_lines(outcome.search))], self.out)
        print_blocks([items(quality_lines(outcome.quality))], self.out)
        self._resume()

    def _conclude(self, event: StudyAnswered | TuneAnswered) -> None:
        """Print the answer of a study and what it has decided on standard output, as JSON if that is asked for."""
        as_json, out = self._as_json, self.out
        self._pause()
        match event:
            case StudyAnswered() if as_json:
                out.print(to_json(as_plain(event.found)), soft_wrap=True, end="")
            case StudyAnswered():
                for comparison in event.found.comparisons if event.found.decisions and self.complete else ():
                    print_blocks(comparison_blocks(comparison), out)
                for decision in event.found.decisions:
                    print_blocks(decision_blocks(decision), out)
                answer, complete = event.found.answer, self.complete
                print_blocks(answer_blocks(answer, width=out.width, complete=complete, verbose=self._verbose), out)
            case TuneAnswered() if as_json:
                out.print(to_json(asdict(event.answer)), soft_wrap=True, end="")
            case TuneAnswered():
                from servebench.report.screens.tuning import tune_blocks

                print_blocks(tune_blocks(event.answer, complete=self.complete), out)
        self._points = []
        self._resume()

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
            parts.append(rich_table(live_table(self._points[-LIVE_POINTS:])))
        spent = seconds(time.monotonic() - self._began)
        head = " · ".join(filter(None, (self._left(), self._title)))
        parts.append(Text(head, style="cyan", no_wrap=True, overflow="ellipsis"))
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
        return f"{self._done} of {planned} points" + (f" · about {duration(left_s)} left" if left_s else "")


def shown(text: str) -> str:
    """Return text without secrets, with commands from here, as much as a screen takes: wrapping a megabyte takes seconds."""
    clean = commands_from_here(redact_text(text))
    return clean if len(clean) <= CHARACTERS_MAX else f"{clean[:CHARACTERS_MAX]} ..."


def listeners(registry: Registry, *, verbose: bool = False, as_json: bool = False) -> e.Listen:
    """Return what opens the listeners of a study, with what the terminal prints. Faults of plugins are said once."""
    said: set[str] = set()

    @contextmanager
    def opened() -> Iterator[e.Events]:
        with Display(verbose=verbose, as_json=as_json) as display:

            def tell(event: e.Event) -> None:
                for fault in {*registry.faults, *registry.notify(event)} - said:
                    said.add(fault)
                    display(e.ErrorSaid(fault))

            yield e.Events((display, tell), live=display.lively)

    return opened
