"""What is checked: promises, their cells, and how often a cell keeps its promise over repetitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

from servebench.util.proportions import wilson

Verdict = Literal["met", "not met", "open", "no data"]


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A promise of the docs. A share of repetitions is `at_most` or at least the `bar`; a bias is at most the bar in size."""

    name: str
    text: str
    bar: float
    at_most: bool = True
    kind: Literal["share", "bias"] = "share"


Outcome = Mapping[tuple[Promise, str], float | None]
"""The result of one repetition by promise and line of the cell: 1.0 or 0.0 for a share, a relative error for a bias, None
where nothing was said."""


@dataclass(frozen=True, kw_only=True)
class CalibrationCell:
    """A situation in which promises are tested.

    `trial` simulates one repetition from its seed and the truth, which `truth` finds once. Of the requested repetitions a
    cell makes this `share`: some cost more than others.
    """

    promises: tuple[Promise, ...]
    name: str
    trial: Callable[[int, Any], Outcome]
    truth: Callable[[], Any] | None = None
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the result: what was measured, with its 95% interval (Wilson's for a share, Student's for a bias)."""

    promise: Promise
    cell: str
    trials: int
    measured: float | None
    low: float | None
    high: float | None
    silent: int = 0
    """Repetitions in which the code said nothing, such as no interval."""

    @property
    def verdict(self) -> Verdict:
        """Whether the promise is kept: `met` if the measured share (of a bias: its whole interval) keeps it, `not met` if the
        whole interval breaks it, and `open` if only more repetitions can tell."""
        if self.measured is None or self.low is None or self.high is None:
            return "no data"
        bar = self.promise.bar
        if self.promise.kind == "bias":
            if -bar <= self.low and self.high <= bar:
                return "met"
            return "not met" if self.low > bar or self.high < -bar else "open"
        if self.promise.at_most:
            return "met" if self.measured <= bar else "open" if self.low <= bar else "not met"
        return "met" if self.measured >= bar else "open" if self.high >= bar else "not met"


def repetitions_of(cell: CalibrationCell, repetitions: int) -> int:
    """Return how many repetitions of a cell are made."""
    return max(2, round(cell.share * repetitions))


def lines_of(cell: CalibrationCell, outcomes: Iterable[Outcome]) -> list[Line]:
    """Return the lines of a cell from the outcomes of its repetitions, in the order in which they first appear."""
    values: dict[tuple[Promise, str], list[float | None]] = {}
    for outcome in outcomes:
        for key, value in outcome.items():
            values.setdefault(key, []).append(value)
    return [
        _line(promise, f"{cell.name}{f', {name}' if name else ''}", found) for (promise, name), found in values.items()
    ]


def _line(promise: Promise, cell: str, values: Sequence[float | None]) -> Line:
    known = [value for value in values if value is not None]
    silent = len(values) - len(known)
    if not known or (promise.kind == "bias" and len(known) < 2):
        return Line(promise=promise, cell=cell, trials=0, measured=None, low=None, high=None, silent=silent)
    if promise.kind == "share":
        low, high = wilson(round(sum(known)), len(known))
    else:
        half = _student(len(known)) * stdev(known) / math.sqrt(len(known))
        low, high = fmean(known) - half, fmean(known) + half
    return Line(promise=promise, cell=cell, trials=len(known), measured=fmean(known), low=low, high=high, silent=silent)


def _student(count: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.975))
