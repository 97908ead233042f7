"""Percentiles by linear interpolation between order statistics (Hyndman and Fan 1996, type 7)."""

import numpy as np

from servebench.util.arrays import Floats


def percentile(values: Floats, percent: float) -> Floats:
    """Return a percentile of the last axis. Infinite values are the largest; one between two of them is infinite."""
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
