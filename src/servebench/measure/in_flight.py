"""How many requests are in flight: sent and not ended."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servebench.util.units import NS_PER_S

Ints = NDArray[np.int64]

GROWTH_BLOCKS = 10
"""Into how many equal parts the window is cut for the growth of the requests in flight."""
GROWTH_T = 1.86
"""The 95% quantile of Student's t with GROWTH_BLOCKS - 2 degrees of freedom."""
_MOMENTS = 50
"""In each part the requests in flight are counted so often."""


def in_flight_at(moments: Ints | NDArray[np.float64], sent: Ints, ended: Ints) -> Ints:
    """Return how many requests are in flight at each moment. One is from the moment it is sent until it ends."""
    begun = np.searchsorted(np.sort(sent), moments, side="right")
    return np.asarray(begun - np.searchsorted(np.sort(ended), moments, side="right"), dtype=np.int64)


def in_flight_curve(sent: Ints, ended: Ints) -> tuple[Ints, Ints]:
    """Return the moments at which the number in flight may change, in order, and the number from each of them on."""
    moments = np.unique(np.concatenate((sent, ended)))
    return moments, in_flight_at(moments, sent, ended)


def mean_in_flight(begun: Ints, over: Ints, sent: Ints, ended: Ints) -> NDArray[np.float64]:
    """Return how many requests are in flight on average from each moment `begun` to that at which it is `over`."""
    moments, level = in_flight_curve(sent, ended)
    if not moments.size:
        return np.zeros(begun.size)
    # relative to the first moment, so that floats hold them exactly enough
    area = np.concatenate([[0.0], np.cumsum(np.diff(moments) * level[:-1])])
    low, high = (np.interp((at - moments[0]).astype(np.float64), moments - moments[0], area) for at in (begun, over))
    return np.asarray((high - low) / np.maximum(over - begun, 1), dtype=np.float64)


def in_flight_growth(sent: Ints, ended: Ints, start_ns: int, end_ns: int) -> float:
    """Return how many requests more are in flight each second, at least: the lower end of the one-sided 95% interval of the
    slope of a line through the means of equal parts of a window. Negative where it does not certainly grow, or for an
    empty window."""
    seconds = (end_ns - start_ns) / NS_PER_S
    if seconds <= 0:
        return 0.0
    moments = np.linspace(start_ns, end_ns, GROWTH_BLOCKS * _MOMENTS)
    means = in_flight_at(moments, sent, ended).reshape(GROWTH_BLOCKS, _MOMENTS).mean(axis=1)
    at = (np.arange(GROWTH_BLOCKS) + 0.5) / GROWTH_BLOCKS * seconds
    centred = at - at.mean()
    slope = float(centred @ means / (centred @ centred))
    rest = means - means.mean() - slope * centred
    error = float(np.sqrt(rest @ rest / (GROWTH_BLOCKS - 2) / (centred @ centred)))
    return slope - GROWTH_T * error
