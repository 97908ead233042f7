"""Find the part of a point in which its load level was reached, from the records themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servebench.contracts.results import Record
from servebench.measure.in_flight import in_flight_curve
from servebench.util.units import NS_PER_S

FRONT_SHARE, BACK_SHARE = 1 / 2, 1 / 4
"""At most so much of the arrivals of an open loop is cut: an engine that is still filling up biases everything, one that
empties only the latencies of the last answers."""
FILLING = 1.5
"""In the time of so many answers the engine of an open loop fills up: answers grow longer while it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The measurement window, in CLOCK_REALTIME nanoseconds. `share` is `average_in_flight` over the level.

    If the level was never `reached`, the window is the whole point.
    """

    start_ns: int
    end_ns: int
    reached: bool
    average_in_flight: float | None
    share: float | None

    @property
    def seconds(self) -> float:
        """Length of the window in seconds."""
        return (self.end_ns - self.start_ns) / NS_PER_S


def find_window(
    records: Sequence[Record],
    concurrency: int | None,
    warmup_s: float = 0.0,
    *,
    cooldown_s: float = 0.0,
    cooldown_requests: int = 0,
) -> Window | None:
    """Return the window of a point: the time after `concurrency` requests are first in flight to when they last are.

    `warmup_s` is cut from its front; `cooldown_s` and the time from the sending of the last `cooldown_requests` on from
    its back. A request is in flight from sent to ended; warm-up records and fillers do not count.

    Without a concurrency (a load given as a rate) the window is from the first request sent to the last one sent, less the
    time of FILLING of the longest answers in front (at most FRONT_SHARE of it) and one behind (at most BACK_SHARE): until then
    the engine is still filling up, and what is sent later ends while nothing more arrives. None when nothing was sent.
    """
    measured = [r for r in records if r.measured and r.sent_ns is not None]
    spans = [(r.sent_ns, r.ended_ns) for r in measured]
    if not spans:
        return None
    pairs = np.array(spans, dtype=np.int64)
    sent, ended = pairs[:, 0], np.maximum(pairs[:, 0], pairs[:, 1])
    times, level = in_flight_curve(sent, ended)
    start, end, reached = int(times[0]), int(times[-1]), True
    if concurrency is None:
        longest = max(
            (r.ended_ns - r.sent_ns for r in measured if r.outcome == "ok" and r.sent_ns is not None), default=0
        )
        last = int(sent.max())
        front, back = round((last - start) * FRONT_SHARE), round((last - start) * BACK_SHARE)
        start, end = start + min(round(FILLING * longest), front), last - min(longest, back)
    else:
        at_level = np.flatnonzero(level >= concurrency)
        reached = at_level.size > 0
        if reached:
            # the last entry of `level` is 0, so there is always a moment at which the level is left
            start, end = int(times[at_level[0]]), int(times[at_level[-1] + 1])
            # the request that completes the opening wave waits for all of that wave: it belongs to what is before
            start += concurrency > 1
    if reached:
        if cooldown_requests:
            last = np.sort(sent)[-min(cooldown_requests, sent.size)]
            end = max(start, min(end, int(last) - 1))
        end = max(start, end - round(cooldown_s * NS_PER_S))
        start = min(start + round(warmup_s * NS_PER_S), end)
    average = _average(times, level, start, end)
    share = average / concurrency if average is not None and concurrency is not None else None
    return Window(start_ns=start, end_ns=end, reached=reached, average_in_flight=average, share=share)


def _average(times: NDArray[np.int64], level: NDArray[np.int64], start_ns: int, end_ns: int) -> float | None:
    if end_ns <= start_ns:
        return None
    edges = np.clip(times, start_ns, end_ns)
    return float(np.sum(np.diff(edges) * level[:-1]) / (end_ns - start_ns))
