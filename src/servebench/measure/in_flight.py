"""How many requests are in flight: sent and not ended."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def in_flight_at(moments: NDArray[Any], sent: Ints, ended: Ints) -> Ints:
    """Return how many requests are in flight at each moment. One is from the moment it is sent until it ends."""
    begun = np.searchsorted(np.sort(sent), moments, side="right")
    return np.asarray(begun - np.searchsorted(np.sort(ended), moments, side="right"), dtype=np.int64)


def in_flight_curve(sent: Ints, ended: Ints) -> tuple[Ints, Ints]:
    """Return the moments at which the number in flight may change, in order, and the number from each of them on."""
    moments = np.unique(np.concatenate((sent, ended)))
    return moments, in_flight_at(moments, sent, ended)
