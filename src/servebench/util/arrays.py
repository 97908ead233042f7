"""The arrays that the numbers are in, and their percentiles."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def percentile(values: Floats, percent: float) -> Floats:
    """Return a percentile of the last axis, by linear interpolation between order statistics (Hyndman and Fan 1996, type 7).
    Infinite values are the largest; one between two of them is infinite."""
    place = (values.shape[-1] - 1) * percent / 100
    low = int(np.floor(place))
    high = min(low + 1, values.shape[-1] - 1)
    parted = np.partition(values, (low, high), axis=-1)
    below, above = parted[..., low], parted[..., high]
    share = place - low
    if share == 0:
        return np.asarray(below)
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(below), below, below + share * (above - below))
