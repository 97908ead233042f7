"""How far the streams of a closed loop run in step: their requests are sent together, round after round.

Answers of one length that began together end together, so that the next prompts arrive together again: each waits for the
prompts of the others, which inflates TTFT, and the engine alternates between prompts and decoding. Users do not arrive so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def lock_step(sent_ns: Ints, answer_ns: float, streams: int) -> float | None:
    """Return how far the streams send in step: 1.0 all at once in each round of answers, 0.0 at random moments.

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
