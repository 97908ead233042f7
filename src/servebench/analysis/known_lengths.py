"""What is left of the scatter of a point's numbers once the lengths of its answers are known: control variates.

Much of the scatter of E2E comes from which lengths were drawn.
Their mean in the long run is known, so what an excess of long ones did can be estimated and taken away (Lavenberg and Welch 1981,
Manage. Sci. 27). That serves the intervals alone; the shown values are those of the window.
"""

from __future__ import annotations

from servebench.measure.points import AnswerLengths
from servebench.util.arrays import Floats

CHECKED_SD = 5.0
"""Lengths whose mean is so many standard errors away were not drawn from the distribution that is known."""


def are_usual(lengths: AnswerLengths) -> bool:
    """Return whether there are enough lengths, and they may be drawn from the known distribution."""
    count, away = lengths.tokens.size, abs(float(_surplus(lengths).mean())) if lengths.tokens.size else 0.0
    return count > 2 and away <= CHECKED_SD * float(lengths.tokens.std()) / lengths.mean / count**0.5


def controlled(values: Floats, lengths: AnswerLengths) -> Floats:
    """Return a series, one value for each answer, as if their mean length were that of the long run, by least squares."""
    surplus = _surplus(lengths)
    centred, variance = surplus - surplus.mean(), float(surplus.var())
    slope = float((centred * values).mean()) / variance if variance > 0 else 0.0
    rest = values - values.mean() - slope * centred
    # by as much as least squares fit to the noise
    found: Floats = values.mean() - slope * surplus.mean() + rest * ((values.size - 1) / (values.size - 2)) ** 0.5
    return found


def _surplus(lengths: AnswerLengths) -> Floats:
    """Return by how much each answer is shorter than in the long run, as a share of the mean length there."""
    return 1 - lengths.tokens / lengths.mean
