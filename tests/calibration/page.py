"""The page of a calibration: what is promised, what was measured, and whether the promise is kept."""

from __future__ import annotations

from collections.abc import Sequence

from calibration.cells import Line, Promise
from servebench.report.export.markdown import table

HEAD = """# How often the conclusions are right

Written by `python -m calibration --repetitions {repetitions} --seed {seed}{only}`; do not edit. servebench measures simulated
engines ([`launch=simulated`](emulated.md#simulated-engines)) whose truth is known, and judges them by the code of real runs:
the same windows, intervals, comparisons, recommendations, gate and searches. Unless a cell says otherwise, the speed of an engine
wanders by 2% over 5 s and its steps vary by 3%.

A share is shown with its 95% Wilson interval, a bias with Student's, a width with that of
the standard deviation that it is divided by. *Met*: the whole interval keeps the promise. *Not met*: the whole
interval breaks it. *Open*: only more repetitions can tell. A simulated engine is simpler
than a real one: what is kept here may still be broken there, and what is broken here is broken.

**{met} of {all} lines are met, {open} are open, {unmet} are not met**{silent}.
"""


FORMS = {"share": "{:.1%}", "bias": "{:+.1%}", "width": "{:.1f}"}


def page(lines: Sequence[Line], *, repetitions: int, seed: int, only: Sequence[str] = (), cell: str = "") -> str:
    """Return the page as Markdown, with the options that chose its cells."""
    verdicts = [line.verdict for line in lines]
    nothing = verdicts.count("no data")
    head = HEAD.format(
        repetitions=repetitions,
        seed=seed,
        only="".join(f" --only {pattern}" for pattern in only) + (f" --cell '{cell}'" if cell else ""),
        met=verdicts.count("met"),
        all=len(lines),
        open=verdicts.count("open"),
        unmet=verdicts.count("not met"),
        silent=f", {nothing} have no data" if nothing else "",
    )
    promises = list(dict.fromkeys(line.promise for line in lines))
    return "\n".join([head, *(_section(one, [line for line in lines if line.promise == one]) for one in promises)])


def _section(promise: Promise, lines: Sequence[Line]) -> str:
    rows = [_row(line) for line in lines]
    columns = ["cell", "repetitions", "measured", "95% interval", "bar", "verdict"]
    return "\n".join([f"## {promise.name}", "", f"Promise: {promise.text}.", "", *table(columns, rows), ""])


def measured_text(line: Line) -> str:
    """Return what was measured, in the form of its promise; "-" without data."""
    return "-" if line.measured is None else FORMS[line.promise.kind].format(line.measured)


def _row(line: Line) -> list[str]:
    promise = line.promise
    sign = "±" if promise.kind == "bias" else "≤ " if promise.at_most else "≥ "
    bar = f"{sign}{promise.bar:g}" if promise.kind == "width" else f"{sign}{promise.bar:.0%}"
    trials = f"{line.trials}" + (f" ({line.silent} without an answer)" if line.silent else "")
    if line.measured is None or line.low is None or line.high is None:
        return [line.cell, trials, "-", "-", bar, line.verdict]
    form = FORMS[promise.kind]
    interval = f"{form.format(line.low)} to {form.format(line.high)}"
    return [line.cell, trials, measured_text(line), interval, bar, line.verdict]
