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
    """A promise of the docs. A share of repetitions is `at_most` or at least the `bar`; a bias is at most the bar in size; a
    width is that of intervals over the width that their values scatter by, and at most the bar."""

    name: str
    text: str
    bar: float
    at_most: bool = True
    kind: Literal["share", "bias", "width"] = "share"


Shown = tuple[float, float]
"""A value and half the width of its interval."""
Outcome = Mapping[tuple[Promise, str], float | Shown | None]
"""The result of one repetition by promise and line of the cell: 1.0 or 0.0 for a share, a relative error for a bias, what was
shown for a width, None where nothing was."""


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
        """Whether the promise is kept, by the whole interval."""
        if self.measured is None or self.low is None or self.high is None:
            return "no data"
        bar = self.promise.bar
        if self.promise.kind == "bias":
            # within the bar on both sides
            size = (0.0 if self.low < 0 < self.high else min(abs(self.low), abs(self.high))), max(-self.low, self.high)
            return judged(*size, bar, at_most=True)
        return judged(self.low, self.high, bar, at_most=self.promise.at_most)


def judged(low: float, high: float, bar: float, *, at_most: bool) -> Verdict:
    """Return whether a promise is kept: `met` if the whole interval keeps it, `not met` if the whole interval breaks it, and
    `open` if only more repetitions can tell."""
    if at_most:
        return "met" if high <= bar else "not met" if low > bar else "open"
    return "met" if low >= bar else "not met" if high < bar else "open"


def repetitions_of(cell: CalibrationCell, repetitions: int) -> int:
    """Return how many repetitions of a cell are made."""
    return max(2, round(cell.share * repetitions))


def lines_of(cell: CalibrationCell, outcomes: Iterable[Outcome]) -> list[Line]:
    """Return the lines of a cell from the outcomes of its repetitions, in the order in which they first appear."""
    values: dict[tuple[Promise, str], list[float | Shown | None]] = {}
    for outcome in outcomes:
        for key, value in outcome.items():
            values.setdefault(key, []).append(value)
    return [
        _line(promise, f"{cell.name}{f', {name}' if name else ''}", found) for (promise, name), found in values.items()
    ]


def _line(promise: Promise, cell: str, values: Sequence[float | Shown | None]) -> Line:
    known = [value for value in values if value is not None]
    facts: dict[str, Any] = {"promise": promise, "cell": cell, "silent": len(values) - len(known)}
    if not known or (promise.kind != "share" and len(known) < 2):
        return Line(trials=0, measured=None, low=None, high=None, **facts)
    measured, low, high = _MEASURES[promise.kind](known)
    return Line(trials=len(known), measured=measured, low=low, high=high, **facts)


Estimate = tuple[float, float, float]
"""A measured value and its 95% interval."""


def _share(values: Sequence[Any]) -> Estimate:
    return fmean(values), *wilson(round(sum(values)), len(values))


def _bias(values: Sequence[Any]) -> Estimate:
    from scipy.special import stdtrit

    middle, half = fmean(values), float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))
    return middle, middle - half, middle + half


def _width(values: Sequence[Any]) -> Estimate:
    """Return the mean half-width over 1.96 standard deviations of the values, with the interval of that deviation (from the
    chi-squared distribution of its square)."""
    from scipy.special import chdtri

    freedom = len(values) - 1
    measured = fmean(half for _, half in values) / (Z_95 * max(stdev(value for value, _ in values), TINY))
    # a large deviation makes a small ratio
    low, high = (measured * math.sqrt(float(chdtri(freedom, tail)) / freedom) for tail in (0.975, 0.025))
    return measured, low, high


Z_95 = 1.959964
TINY = 1e-12
_MEASURES: Mapping[str, Callable[[Sequence[Any]], Estimate]] = {"share": _share, "bias": _bias, "width": _width}
