"""Arithmetic with stretches of time that are left out, and with a clock that stands still during them."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.util.arrays import Ints

Spans = Sequence[tuple[int, int]]
"""Stretches (start, end) of one unit, in order and apart, as `merged` returns them."""


def merged(spans: Iterable[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of stretches between `start` and `end`, in order; those that touch are joined."""
    found: list[tuple[int, int]] = []
    for low, high in sorted((max(low, start), min(high, end)) for low, high in spans):
        if high <= low:
            continue
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found


def length(spans: Spans) -> int:
    """Return the total length of stretches."""
    return sum(high - low for low, high in spans)


def covered(spans: Iterable[Sequence[int]]) -> int:
    """Return how much time stretches in any order cover together; 0 without any."""
    listed = [(low, high) for low, high in spans]
    return length(merged(listed, min(low for low, _ in listed), max(high for _, high in listed))) if listed else 0


def between(spans: Spans, start: int, end: int) -> list[tuple[int, int]]:
    """Return what is left from `start` to `end` without the stretches, in order."""
    edges = [start, *(edge for span in merged(spans, start, end) for edge in span), end]
    return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if high > low]


def outside(moments: NDArray[Any], spans: Spans) -> NDArray[np.bool_]:
    """Return which moments lie in none of the stretches."""
    kept = np.ones(moments.shape, dtype=np.bool_)
    for low, high in spans:
        kept &= (moments < low) | (moments > high)
    return kept


def compressed(moments: NDArray[Any], spans: Spans) -> Ints:
    """Return moments on a clock that stands still in the stretches."""
    found = np.asarray(moments, dtype=np.int64).copy()
    for low, high in spans:
        found -= np.clip(moments, low, high) - low
    return found


def expanded(moment: float, spans: Spans) -> float:
    """Return the moment at which the clock of `compressed` first shows `moment`."""
    for low, high in spans:
        if moment > low:
            moment += high - low
    return moment


def touched_sends(spans: Spans, sent: Ints, ended: Ints) -> list[tuple[int, int]]:
    """Return the stretches in which requests were sent that the stretches `spans` may have touched.

    Each begins when the oldest request was sent that was still unanswered at its start. Leaving out just the requests that
    were touched would leave out more long ones than short ones, and so bias all latencies.
    """
    found = []
    for low, high in spans:
        flying = sent[(sent <= low) & (ended > low)]
        found.append((int(flying.min()) if flying.size else low, high))
    ends = [edge for span in found for edge in span]
    return merged(found, min(ends), max(ends)) if found else []
