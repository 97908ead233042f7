"""Resampling of blocks of consecutive requests, and the interval and p-value that follow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.statistics import CONFIDENCE, Z_95, Floats
from servebench.util.percentile import percentile

BLOCKS = 20
RESAMPLES = 2000
START_SD = 0.01
"""By how much the speed of one engine differs from start to start, as a share (standard deviation)."""
_BATCH = 2_000_000
"""How many resampled values are held at once, so that memory stays bounded."""


def statistic(values: Floats, percent: float | None) -> Floats:
    """Return the mean (`percent` None) or a percentile of the last axis."""
    return np.asarray(values.mean(axis=-1)) if percent is None else percentile(values, percent)


def log_ratio(over: Floats, under: Floats) -> Floats:
    """Return log(over / under), infinite or NaN where that is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.log(over) - np.log(under)
    return found


def blocks_of(parts: Sequence[Floats], size: int) -> Floats:
    """Cut parts (repeats) into blocks of `size` consecutive values; a remainder is dropped."""
    kept = [part[: len(part) // size * size].reshape(-1, size, *part.shape[1:]) for part in parts if len(part) >= size]
    return np.concatenate(kept)


def statistics_of(pool: Floats, drawn: NDArray[np.int64], percent: float | None) -> Floats:
    """Return the statistic of each resample, given as indices of blocks of the pool."""
    if percent is None:
        found: Floats = pool.mean(axis=1)[drawn].mean(axis=1)
        return found
    width = drawn.shape[1] * pool.shape[1]
    step = max(1, _BATCH // width)
    parts = [
        statistic(pool[drawn[start : start + step]].reshape(-1, width), percent) for start in range(0, len(drawn), step)
    ]
    return np.concatenate(parts)


def flipped_medians(blocks: Floats, rng: np.random.Generator) -> Floats:
    """Return the medians after the signs of whole blocks are flipped at random, RESAMPLES times."""
    signs = rng.choice([-1.0, 1.0], size=(RESAMPLES, len(blocks), 1))
    step = max(1, _BATCH // blocks.size)
    parts = [
        statistic((signs[start : start + step] * blocks).reshape(-1, blocks.size), 50)
        for start in range(0, RESAMPLES, step)
    ]
    return np.concatenate(parts)


def resampled(values: Floats, size: int, percent: float | None, rng: np.random.Generator) -> Floats:
    """Return the statistic of RESAMPLES resamples of blocks of `size` consecutive values."""
    pool = blocks_of([values], size)
    return statistics_of(pool, rng.integers(0, len(pool), size=(RESAMPLES, len(pool))), percent)


def interval_of(logs: Floats) -> tuple[float, float]:
    """Return the percentile interval of resampled log ratios, as relative changes."""
    tail = (1 - CONFIDENCE) / 2
    logs = np.nan_to_num(logs, nan=0.0, posinf=np.inf, neginf=-np.inf)
    low, high = np.quantile(logs, [tail, 1 - tail], method="inverted_cdf")
    return float(np.expm1(low)), float(np.expm1(high))


def p_value(permuted: Floats, observed: float) -> float:
    """Return the two-sided p-value; the observed order counts as one permutation (Phipson and Smyth 2010)."""
    # where the percentile is a failed request on both sides there is no difference
    as_far = np.abs(np.nan_to_num(permuted, nan=0.0, posinf=np.inf, neginf=-np.inf)) >= abs(observed) - 1e-12
    return float((1 + as_far.sum()) / (1 + permuted.size))


def widen_for_starts(middle: float, low: float, high: float, start_sd: float = START_SD) -> tuple[float, float]:
    """Return the ends of an interval of a log ratio, as relative changes, widened by how much two starts differ."""
    allowance = Z_95 * np.sqrt(2) * start_sd
    return (
        float(np.expm1(middle - np.hypot(middle - low, allowance))),
        float(np.expm1(middle + np.hypot(high - middle, allowance))),
    )
