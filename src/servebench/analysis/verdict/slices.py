"""The difference of two starts that were measured in turns with each other, slice by slice.

Slice k of one lies beside slice k of the other, so what the machine does moves both. Their difference is the mean logarithm of
the ratios of such slices, and its error that of a mean, wider where slices that follow one another are alike, as those of an
engine are whose own speed wanders (lag-1 autocorrelation, less its bias: Zieba and Ramza 2011, Metrol. Meas. Syst. 18).
A start has few slices of a level, so both are those of all starts, and the scatter at other levels counts a little (moderated
variances: Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3). Where each level has one slice in a start, its error is assumed, and how
far the levels of several starts are from what these share says by which factor it is larger or smaller (`start_model.py`).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from servebench.analysis.estimate import COSTS, RATE_BEHIND, student
from servebench.contracts.estimate import Z_95
from servebench.contracts.point_row import PointRow
from servebench.util.arrays import Floats

SLICES_MIN = 1
"""Where some of a pair are missing (left out as warm-up, or disturbed), the scatter of the other pairs says how exact the rest
is."""
FREEDOM_MIN = 2
"""With fewer degrees of freedom in all pairs of starts their points say more: Student's t is 12.7 for 1."""
ASSUMED_SD = 0.04
"""By how much the logarithm of the ratio of two slices scatters before any did: slices of 4 s of real llama.cpp by 3 to 7%."""
FREEDOM_ELSEWHERE = 4
"""The most degrees of freedom that other levels give to one: as far as so few slices tell, the ratios of real llama.cpp scattered
alike from 1 to 8 users."""
ALIKE_MAX = 0.8
"""Slices are taken to be no more alike than this."""


@dataclass(frozen=True, slots=True)
class SliceDifference:
    """The difference of the logarithms of two starts: the mean of the ratios of its slices, the sum of squares of how far these
    are away from it, the same of neighbours multiplied (less its bias), and the degrees of freedom."""

    value: float
    square: float
    lagged: float
    freedom: int

    @property
    def slices(self) -> int:
        """Of how many slices it is the mean."""
        return self.freedom + 1


SliceDifferences = tuple[SliceDifference | None, ...]
"""Of pairs of starts, in order."""


def slice_differences(
    ours: Sequence[Sequence[PointRow]],
    theirs: Sequence[Sequence[PointRow]],
    column: str,
) -> SliceDifferences:
    """Return the difference of each pair of starts, those at the same place, by the rows of their points: None for a pair that
    was not measured in turns. Nothing where no pair was, or one side has more starts."""
    if len(ours) != len(theirs):
        return ()
    found: list[SliceDifference | None] = []
    for pair in zip(ours, theirs, strict=True):
        a, b = ({row.slice_group: row for row in side} for side in pair)
        in_turns = None not in a and a.keys() == b.keys() and len(a) == max(map(len, pair))
        logs = [(slice_logs(a[name], column), slice_logs(b[name], column)) for name in a] if in_turns else []
        found.append(difference_of(logs) if logs else None)
    return tuple(found) if any(found) else ()


def values_and_errors(
    known: SliceDifferences, others: Floats, error: float, elsewhere: Sequence[SliceDifference] = ()
) -> tuple[Floats, Floats]:
    """Return the differences of pairs of starts at a level and their standard errors: those of `others`, all with `error`, for
    pairs that were not measured in turns. `elsewhere` are those of other levels. How exact the errors are `freedom_of` says."""
    values = np.array([other if one is None else one.value for one, other in zip(known, others, strict=True)])
    of_a_slice = _variance_of_a_slice([one for one in known if one is not None], elsewhere)[0] ** 0.5
    return values, np.array([error if one is None else of_a_slice / one.slices**0.5 for one in known])


def pooled_error(errors: Sequence[SliceDifference], elsewhere: Sequence[SliceDifference] = ()) -> float:
    """Return the standard error of one difference at a level: that of a normal value whose 95% interval is as long as Student's.
    `elsewhere` are those of other levels."""
    variance, freedom = _variance_of_a_slice(errors, elsewhere)
    wider = student(freedom) / Z_95 if freedom else 1.0
    return float(wider * (variance / np.mean([one.slices for one in errors])) ** 0.5)


def freedom_of(differences: Iterable[SliceDifference | None]) -> int:
    """Return the degrees of freedom of the error of slices; 0 where they hardly show how they scatter, and it is assumed."""
    freedom = _scatter_freedom(differences)
    return freedom if freedom >= FREEDOM_MIN else 0


def enough(differences: Iterable[SliceDifference | None]) -> bool:
    """Return whether the slices of differences show how much they scatter."""
    return freedom_of(differences) > 0


def enough_starts(levels: Iterable[SliceDifferences]) -> bool:
    """Return whether the differences of several levels show it by themselves, or by those of several starts at a level."""
    of = [[one for one in level if one is not None] for level in levels]
    return sum(_scatter_freedom(one) + len(one) - 1 for one in of if one) >= FREEDOM_MIN


def _scatter_freedom(differences: Iterable[SliceDifference | None]) -> int:
    return sum(one.freedom for one in differences if one is not None)


def _variance_of_a_slice(own: Sequence[SliceDifference], elsewhere: Sequence[SliceDifference]) -> tuple[float, int]:
    """Return the variance of the ratio of two slices and its degrees of freedom, by those of a level and a few of others."""
    freedom, more = _scatter_freedom(own), _scatter_freedom(elsewhere)
    squares, others = (sum(one.square for one in each) for each in (own, elsewhere))
    given = min(FREEDOM_ELSEWHERE, more)
    if freedom + more < FREEDOM_MIN:
        return ASSUMED_SD**2, 0
    if squares + others <= 0:
        return 0.0, freedom + given
    alike = sum(one.lagged for one in (*own, *elsewhere)) / (squares + others)
    alike = min(max(alike, 0.0), ALIKE_MAX)
    variance = (squares + (others / more * given if given else 0.0)) / (freedom + given)
    return variance * (1 + alike) / (1 - alike), freedom + given


def slice_logs(row: PointRow, column: str) -> Floats:
    """Return the logarithms of a column in each slice of a point; not finite where one has no value."""
    values = json.loads(row.slice_values or "{}").get(RATE_BEHIND.get(column, column), ())
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.log(np.array(list(values), dtype=np.float64))
    return -found if column in COSTS else found


def difference_of(points: Sequence[Sequence[Floats]]) -> SliceDifference | None:
    """Return the mean difference of two starts by the points that both have: the logarithms of the slices of each, of one start
    and of the other. None where slices are too few, or the points have not the same ones."""
    if any(a.size != b.size for a, b in points):
        return None
    with np.errstate(invalid="ignore"):
        ratios = [b - a for a, b in points]
    ratios = [one[np.isfinite(one)] for one in ratios]
    if min(one.size for one in ratios) < SLICES_MIN:
        return None
    away = [one - one.mean() for one in ratios]
    squares = [float(one @ one) for one in away]
    lagged = sum(float(one[1:] @ one[:-1]) + square / one.size for one, square in zip(away, squares, strict=True))
    value = float(np.mean([one.mean() for one in ratios]))
    return SliceDifference(value, sum(squares), lagged, sum(one.size - 1 for one in ratios))
