"""The terminal: one live line while load runs, a row for each point, a table and the doubts at the end.

Progress goes to standard error; the final tables go to standard output, so that they can be piped. When standard error
is no terminal, progress is a line for each thing that happened.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from servebench.contracts.point_row import PointRow
from servebench.contracts.results import SUMMED, Doubt, Point, QualitySummary, RunOutcome
from servebench.report.content import content_lines
from servebench.util.figures import MISSING, number, seconds, with_interval
from servebench.util.redaction import redact_text
from servebench.util.stdio import best_effort

VERDICT_STYLE = {"valid": "green", "doubtful": "yellow", "void": "red"}


PIPED_WIDTH = 160
STILL_S = 5.0
STILL_FACTOR = 4.0
"""What is waited for is told after so long, and again each time that it has taken so many times longer."""


def _console(file: TextIO) -> Console:
    """As wide as its terminal; where there is none, wide enough to cut nothing."""
    terminal = file.isatty()
    return Console(file=file, highlight=False, soft_wrap=not terminal, width=None if terminal else PIPED_WIDTH)


class Display:
    """Everything that is told while a study runs. Use as a context manager; safe when nothing is a terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        # a reader that has enough, a full disk or a terminal that is gone ends no study
        self.out = _console(best_effort(sys.stdout))
        self.err = _console(best_effort(sys.stderr))
        self.quiet = quiet
        self.lively = self.err.is_terminal and not quiet
        self._live: Live | None = None
        self._points: list[Point] = []
        self._title = ""
        self._status = ""
        self._began = time.monotonic()
        self._waiting: tuple[str, float] | None = None
        self._over = threading.Event()
        self._teller: threading.Thread | None = None

    def __enter__(self) -> Display:
        if self._teller is None:
            self._teller = threading.Thread(target=self._tell_waits, name="waits", daemon=True)
            self._teller.start()
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
        """A run begins; `title` says which."""
        self._title, self._points, self._began = title, [], time.monotonic()
        self.say(title)

    def say(self, text: str) -> None:
        """Something happened that stays on screen."""
        if not self.quiet:
            self.err.print(Text(redact_text(text)))

    def status(self, text: str) -> None:
        """What is being waited for, by name. Shown in the live line; without one, in a line of its own when it takes long."""
        self._wait_for(text)

    def _wait_for(self, text: str) -> None:
        if self._waiting is None or self._waiting[0] != text:
            self._waiting = (text, time.monotonic())
            self._status = text

    def _tell_waits(self) -> None:
        """Say what is waited for after 5 s, 20 s, 80 s and so on."""
        told: tuple[tuple[str, float], float] | None = None
        while not self._over.wait(1.0):
            waiting = self._waiting
            if waiting is None or not waiting[0]:
                continue
            spent_s = time.monotonic() - waiting[1]
            due_s = STILL_S if told is None or told[0] is not waiting else told[1]
            if spent_s >= due_s:
                told = (waiting, due_s * STILL_FACTOR)
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
        """How far a phase is. `rate` is stream reads a second, close to tokens a second while the load runs; `silent_s`
        is how long the engine has sent nothing though it was asked."""
        if silent_s > STILL_S:
            self._wait_for(f"{label}: {in_flight} answers, of which nothing comes")
            return
        left = f" · {seconds(left_s)} left" if left_s is not None else ""
        wrong = f" · {failed} failed" if failed else ""
        self._waiting = None
        self._status = (
            f"{label} · {done}/{planned} requests · {in_flight} in flight · {number(rate)} events/s{wrong}{left}"
        )

    def point(self, point: Point) -> None:
        """A point was measured."""
        self._points.append(point)
        if not self.lively:
            self.say("  " + point_line(point))

    def quality(self, summary: QualitySummary) -> None:
        """A benchmark was graded."""
        self.say("  " + quality_line(summary))

    def finish(self, outcome: RunOutcome, title: str, over_repeats: Any = None) -> None:
        """A run is over: its table and doubts, on standard output. `over_repeats` is what `score.repeats` found."""
        self._pause()
        self._status, self._waiting = "", None
        self._points = []
        if outcome.points:
            self.out.print(points_table(outcome.points, title))
            for line in content_lines(outcome.points):
                self.out.print(line)
            for line in doubt_lines(outcome.points):
                self.out.print(line)
            for line in failed_lines(outcome.points):
                self.out.print(line)
            print_repeats(over_repeats, self.out)
            for line in search_lines(outcome.search):
                self.out.print(line)
        for line in quality_lines(outcome.quality):
            self.out.print(line, markup=False)
        self._resume()

    def problem(self, text: str) -> None:
        """Something went wrong: told even when quiet."""
        self.err.print(Text(f"servebench: {redact_text(text)}", style="red"))

    def study(self, outcomes: Sequence[tuple[str, RunOutcome]]) -> None:
        """The runs of a study side by side, on standard output."""
        self._pause()
        self.out.print(study_table(outcomes))
        self._resume()

    def where(self, folder: Path) -> None:
        """Where the results are."""
        self.say(f"results: {folder}")

    def tracked(self, uri: str, experiment: str) -> None:
        """Where MLflow has them."""
        self.say(f"in MLflow, experiment '{experiment}'; to look: mlflow ui --backend-store-uri {redacted_uri(uri)}")

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
    """A tracking URI without user name and password."""
    return re.sub(r"(?<=://)[^/@]+@", "", uri)


def point_line(point: Point) -> str:
    """A point in one plain line."""
    row = point.row
    return (
        f"{'rate' if row.rate is not None else 'concurrency'} {row.level_label}: "
        f"{with_interval(row, 'output_throughput_tok_s')} tok/s, TTFT p50 {number(row.ttft_ms_p50)} ms, "
        f"ITL mean {number(row.itl_ms_mean)} ms, {row.requests_ok} ok, {row.requests_failed} failed, "
        f"{point.verdict}"
    )


def _table(title: str) -> Table:
    """Narrow: what is cut off on a terminal of 80 columns is not read."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )


COLUMNS = (
    ("ok", "requests_ok"),
    ("fail", "requests_failed"),
    ("output\ntok/s", "output_throughput_tok_s"),
    ("TTFT\np50", "ttft_ms_p50"),
    ("TTFT\np99", "ttft_ms_p99"),
    ("ITL\nmean", "itl_ms_mean"),
    ("ITL\np99", "itl_ms_p99"),
    ("TPOT\nmean", "tpot_ms_mean"),
    ("E2E\np50", "e2e_ms_p50"),
)
P99_REQUESTS_MIN = 100
NOTE = "times in ms; ± half of a 95 % interval"
P99_NOTE = f"{NOTE}; ~ little more than the slowest of under {P99_REQUESTS_MIN}"


def cell(row: PointRow, column: str) -> str:
    """A figure as the table shows it: throughput with its interval, a p99 that too few requests carry with a `~`."""
    if column == "output_throughput_tok_s":
        return with_interval(row, column)
    value = row.get(column)
    text = f"{value:,}" if isinstance(value, int) else number(value)
    weak = column == "ttft_ms_p99" and (row.ttft_ms_n or 0) < P99_REQUESTS_MIN and value is not None
    return f"~{text}" if weak else text


def points_table(points: Sequence[Point], title: str) -> Table:
    """The points of a run, a row each. Units stand in the header and below."""
    table = _table(title)
    rate = any(point.row.rate is not None for point in points)
    repeated = any(point.row.repeat > 0 for point in points)
    table.add_column("req/s" if rate else "con-\ncurr.", justify="right", no_wrap=True)
    if repeated:
        table.add_column("re-\npeat", justify="right", no_wrap=True)
    for name, _ in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for point in points:
        cells = [point.row.level_label]
        if repeated:
            cells.append(str(point.row.repeat))
        cells += [cell(point.row, column) for _, column in COLUMNS]
        table.add_row(*cells, Text(point.verdict, style=VERDICT_STYLE[point.verdict]))
    weak = any(cell(point.row, "ttft_ms_p99").startswith("~") for point in points)
    table.caption = P99_NOTE if weak else NOTE
    table.caption_justify = "left"
    return table


def doubt_lines(points: Iterable[Point]) -> list[str]:
    """Each doubt once, with the levels it is about, what it means and what to do."""
    about: dict[str, list[str]] = {}
    first: dict[str, Doubt] = {}
    for point in points:
        for doubt in point.doubts:
            about.setdefault(doubt.code, []).append(point.row.level_label)
            first.setdefault(doubt.code, doubt)
    lines = []
    for code, levels in about.items():
        doubt = first[code]
        where = ", ".join(dict.fromkeys(levels))
        lines.append(f"{code} (at {where}): {doubt.message}; {doubt.remedy}")
    return lines


def quality_line(summary: QualitySummary) -> str:
    """What a benchmark said, in one plain line."""
    if summary.value is None:
        return f"quality: {summary.benchmark} at {summary.at}: none of its answers could be judged"
    of = f"{summary.measure}, of {summary.n}" if summary.means != "right" else f"{summary.measure} of {summary.n}"
    reach = (
        f" [{100 * summary.low:.1f}, {100 * summary.high:.1f}]"
        if summary.low is not None and summary.high is not None
        else ""
    )
    # each answer of parity is asked twice, and it is the first that has a row
    alone = " of those alone" if summary.benchmark == "parity" else ""
    more = [
        f"{number(summary.right_per_s)} right answers/s" if summary.right_per_s is not None else "",
        f"latency p50 {number(summary.latency_ms_p50)} ms{alone}" if summary.latency_ms_p50 is not None else "",
        f"mean score {summary.score:.3f}" if summary.score is not None and summary.accuracy is not None else "",
        f"{summary.unanswered} not answered" if summary.unanswered else "",
    ]
    told = ", ".join(filter(None, more))
    figure = f"{100 * summary.value:.1f} % {of}{reach} at {summary.at}"
    return f"quality: {summary.benchmark} {figure}{': ' if told else ''}{told}"


def _amount(key: str, value: float) -> str:
    """Counts whole, all else with three digits."""
    return f"{value:,.0f}" if key.endswith("_tokens") else number(value)


def quality_lines(summaries: Sequence[QualitySummary]) -> list[str]:
    """A line for each benchmark and concurrency, then the doubts, each once."""
    lines = []
    for one in summaries:
        lines.append(quality_line(one))
        sums = {key: value for key, value in one.details.items() if key.endswith(SUMMED)}
        means = {key: value for key, value in one.details.items() if key not in sums}
        for title, numbers in (("on average", means), ("in all", sums)):
            said = ", ".join(
                f"{key.replace('_', ' ')} {_amount(key, value)}"
                for key, value in numbers.items()
                if value or title != "in all"
            )
            if said:
                lines.append(f"  {one.benchmark} {title}: {said}")
    if any(one.emulated for one in summaries):
        lines.append("  emulated: what an emulated engine answers means nothing; only that it was asked is shown")
    told = dict.fromkeys(
        f"  {doubt.code}: {doubt.message}; {doubt.remedy}" for one in summaries for doubt in one.doubts
    )
    return lines + list(told)


def failed_lines(points: Iterable[Point]) -> list[str]:
    """Where requests failed: what users waited when a failed one is worse than any latency."""
    return [
        f"with failed requests counted as infinitely slow (at {row.level_label}): TTFT p50 {number(row.ttft_ms_p50_all)} "
        f"and p99 {number(row.ttft_ms_p99_all)} ms, E2E p50 {number(row.e2e_ms_p50_all)} "
        f"and p99 {number(row.e2e_ms_p99_all)} ms"
        for row in (point.row for point in points)
        if row.requests_failed and row.ttft_ms_p50_all is not None
    ]


def print_repeats(found: Any, out: Console) -> None:
    """What the repeats of each level say together (of `score.repeats`); nothing where there are none."""
    if found is None or not found.rows:
        return
    table = _table("over repeats")
    metrics = list(dict.fromkeys((row.metric, f"{row.title}, {row.unit}") for row in found.rows))
    for name in ("at", "repeats", *(title for _, title in metrics)):
        table.add_column(name, justify="right", no_wrap=True)
    for at in dict.fromkeys(row.level for row in found.rows):
        own = {row.metric: row for row in found.rows if row.level == at}
        count = max(row.count for row in own.values())
        table.add_row(at, str(count), *(repeated(own.get(metric)) for metric, _ in metrics))
    table.caption = REPEATS_NOTE
    table.caption_justify = "left"
    out.print(table)
    for note in found.notes:
        out.print(f"repeats: {note}", markup=False)


REPEATS_NOTE = "mean over repeats with its 95 % interval, from three repeats on"


def repeated(row: Any) -> str:
    """A figure over repeats with its interval, or how much one repeat differs from another where there are too few."""
    if row is None:
        return MISSING
    if row.low is None:
        return f"{number(row.mean)} (one repeat ±{100 * row.spread:.1f} %)"
    return f"{number(row.mean)} [{number(row.low)}, {number(row.high)}]"


def search_lines(search: Mapping[str, Any] | None) -> list[str]:
    """What a search found, by what rule, and what stands against it."""
    if search is None:
        return []
    return [
        f"search: {search['said']}",
        f"  how: {search['how']}",
        *(f"  but: {caveat}" for caveat in search["caveats"]),
    ]


def study_table(rows: Sequence[tuple[str, RunOutcome]]) -> Table:
    """The runs of a study, a row each: how each ended and its best point that may be believed."""
    table = _table("study")
    for name, justify in (
        ("run", "left"),
        ("status", "left"),
        ("best output\ntok/s", "right"),
        ("at", "right"),
        ("TTFT p50 ms\nthere", "right"),
        ("verdict", "left"),
    ):
        table.add_column(name, justify=justify, no_wrap=name != "status")  # type: ignore[arg-type]
    for name, outcome in rows:
        best = best_point(outcome.points)
        row = best.row if best else PointRow()
        status = outcome.status if outcome.error is None else f"{outcome.status}: {outcome.failure or 'error'}"
        table.add_row(
            name,
            status,
            with_interval(row, "output_throughput_tok_s"),
            row.level_label if best else MISSING,
            number(row.ttft_ms_p50),
            best.verdict if best else MISSING,
        )
    return table


def best_point(points: Iterable[Point]) -> Point | None:
    """The point with the highest output throughput, of the best verdict that any point has; void ones never win."""
    for verdict in ("valid", "doubtful"):
        of_verdict = [p for p in points if p.verdict == verdict and p.row.output_throughput_tok_s is not None]
        if of_verdict:
            return max(of_verdict, key=lambda p: p.row.output_throughput_tok_s or 0.0)
    return None
