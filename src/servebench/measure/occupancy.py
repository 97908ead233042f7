"""Detect whether the engine frees abandoned requests, by comparing its count of requests with the client's. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from servebench.contracts.results import Record
from servebench.measure.in_flight import in_flight_at
from servebench.util.units import NS_PER_S

EXCESS_MIN = 1.0
"""With fewer abandoned requests in the engine its gauges cannot show whether it frees them."""


def excess_and_freed(
    records: Sequence[Record], held: Sequence[tuple[int, float]], start_ns: int | None, end_ns: int | None
) -> tuple[float | None, bool | None]:
    """Return how many requests the engine held beyond those in flight, averaged over samples between two moments, and
    whether it freed abandoned ones.

    `held` are (CLOCK_REALTIME ns, requests running and waiting) by the engine. An engine that continues abandoned requests
    holds, by Little's law, their rate times their remaining duration: the mean time from being abandoned to the end of a
    whole answer. Freed is None if that is under EXCESS_MIN or nothing was abandoned, else whether the engine held less than
    half of it.
    """
    if start_ns is None or end_ns is None or end_ns <= start_ns:
        return None, None
    sent = [(r.sent_ns, r.ended_ns, r.outcome) for r in records if r.sent_ns is not None and not r.warmup]
    samples = [(at, value) for at, value in held if start_ns <= at <= end_ns]
    if not sent or not samples:
        return None, None
    times = np.array([at for at, _ in samples])
    in_flight = in_flight_at(times, np.array([began for began, _, _ in sent]), np.array([end for _, end, _ in sent]))
    excess = float(np.mean(np.array([value for _, value in samples]) - in_flight))
    whole_s = [(end - start) / NS_PER_S for start, end, outcome in sent if outcome == "ok"]
    left_s = [
        (end - start) / NS_PER_S for start, end, outcome in sent if outcome == "abandoned" and start_ns <= end <= end_ns
    ]
    if not left_s or not whole_s:
        return excess, None
    rest_s = max(float(np.mean(whole_s)) - float(np.mean(left_s)), 0.0)
    wasted = len(left_s) / ((end_ns - start_ns) / NS_PER_S) * rest_s
    return excess, (excess < wasted / 2 if wasted >= EXCESS_MIN else None)
