"""Requests in flight (sent and not ended): how many, whether streams send in step, and what the engine holds beyond them."""

from collections.abc import Iterable, Sequence

import numpy as np

from servebench.contracts.results import Record
from servebench.util.arrays import Floats, Ints
from servebench.util.units import NS_PER_S

GROWTH_BLOCKS = 10
"""Into how many equal parts the window is cut for the growth of the requests in flight."""
GROWTH_T = 1.86
"""The 95% quantile of Student's t with GROWTH_BLOCKS - 2 degrees of freedom."""
_MOMENTS = 50
"""In each part the requests in flight are counted so often."""


def sent_and_ended(records: Iterable[Record]) -> tuple[Ints, Ints]:
    """Return when the requests were sent and ended that were sent at all."""
    spans = [(r.sent_ns, max(r.sent_ns, r.ended_ns)) for r in records if r.sent_ns is not None]
    sent, ended = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    return sent, ended


def in_flight_at(moments: Ints | Floats, sent: Ints, ended: Ints) -> Ints:
    """Return how many requests are in flight at each moment. One is from the moment it is sent until it ends."""
    begun = np.searchsorted(np.sort(sent), moments, side="right")
    return np.asarray(begun - np.searchsorted(np.sort(ended), moments, side="right"), dtype=np.int64)


def in_flight_curve(sent: Ints, ended: Ints) -> tuple[Ints, Ints]:
    """Return the moments at which the number in flight may change, in order, and the number from each of them on."""
    moments = np.unique(np.concatenate((sent, ended)))
    return moments, in_flight_at(moments, sent, ended)


def mean_in_flight(begun: Ints, over: Ints, sent: Ints, ended: Ints) -> Floats:
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


def lock_step(sent_ns: Ints, answer_ns: float, streams: int) -> float | None:
    """Return how far the streams of a closed loop send in step: 1.0 all at once in each round of answers, 0.0 at random moments.

    Answers of one length that began together end together, so that the next prompts arrive together, too: each waits for those
    of the others, which inflates TTFT. Users do not arrive so.

    The moments of each round, as angles on a circle of one answer's time, have a mean direction whose squared length is 1 if
    all are equal and 1 / n on average for n random ones (Rayleigh: Mardia and Jupp 2000, "Directional Statistics"); this is
    the root of the mean excess over chance. `answer_ns` is the mean time of an answer. None for one stream, or less than two
    requests a stream.
    """
    if streams < 2 or sent_ns.size < 2 * streams or answer_ns <= 0:
        return None
    turns = (np.sort(sent_ns) - sent_ns.min()) / answer_ns
    rounds = turns.astype(np.int64)
    counts = np.bincount(rounds)
    angles = 2 * np.pi * turns
    squares = np.bincount(rounds, np.cos(angles)) ** 2 + np.bincount(rounds, np.sin(angles)) ** 2
    several = counts > 1
    excess = (squares[several] / counts[several] - 1) / (counts[several] - 1)
    weights = counts[several]
    return float(np.sqrt(max(0.0, np.average(excess, weights=weights)))) if weights.size else None


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
