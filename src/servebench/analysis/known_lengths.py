"""What is left of the scatter of a point's numbers once the lengths of its answers are known: control variates.

Much of the scatter of E2E, and of the throughput of an engine that is always equally fast, comes from which lengths were drawn.
Their mean in the long run is known, so what an excess of long ones did can be estimated and taken away (Lavenberg and Welch 1981,
Manage. Sci. 27). That serves the intervals alone; the shown values are those of the window.
"""

from __future__ import annotations

import numpy as np

from servebench.analysis.serial import SeriesSpan
from servebench.measure.points import AnswerLengths
from servebench.util.arrays import Floats

CHECKED_SD = 5.0
"""Lengths whose mean is so many standard errors away were not drawn from the distribution that is known."""
BLOCKS_PER_ROUND = 4
"""Into how many blocks the time of an answer is cut to see what a new request costs: each holds a whole prefill."""


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


def controlled_rates(rates: Floats, lengths: AnswerLengths, span: SeriesSpan) -> Floats:
    """Return the tokens a second in slices of a window as if its answers had the long run's mean length.

    Short answers take more requests for the same tokens, and each request costs tokens, of its own stream and of those that wait
    while its prompt is read: by how many fewer come in the slices in which more are sent. By how much the answers of the requests
    that were sent are too short is 0 on average whenever a window ends (Wald 1944, Ann. Math. Stat. 15), and has no slow waves:
    those of what is left are the engine's.
    """
    size = max(1, int(rates.size / (BLOCKS_PER_ROUND * max(span.rounds, 1.0))))
    starts, surplus = (
        rates_in_slices(lengths.sent_s, of, span.seconds, rates.size) for of in (None, _surplus(lengths))
    )
    tokens, sent = (each[: each.size // size * size].reshape(-1, size).mean(axis=1) for each in (rates, starts))
    variance = float(sent.var())
    cost = max(0.0, -float(((tokens - tokens.mean()) * sent).mean()) / variance) if variance > 0 else 0.0
    return rates + cost / (1 + cost / lengths.mean) * surplus


def rates_in_slices(at_s: Floats, amounts: Floats | None, window_s: float, slices: int) -> Floats:
    """Return amounts a second in equal slices of a window; null amounts are one for each moment."""
    where = np.clip((at_s / window_s * slices).astype(np.int64), 0, slices - 1)
    found = np.bincount(where, weights=amounts, minlength=slices) * (slices / window_s)
    return np.asarray(found, dtype=np.float64)


def _surplus(lengths: AnswerLengths) -> Floats:
    """Return by how much each answer is shorter than in the long run, as a share of the mean length there."""
    return 1 - lengths.tokens / lengths.mean
