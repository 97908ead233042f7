"""In which order the runs of a study are done: one after another, or in turns, repeat by repeat.

What drifts while a study runs (a machine that heats up, a neighbour that comes and goes) would otherwise fall on the engine that
comes last, and be taken for a difference between engines.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from servebench.contracts.settings import LoadSettings
from servebench.contracts.turn import Turn

IN_TURNS = ("interleaved", "shuffled")


def schedule(loads: Sequence[LoadSettings], seed: int) -> list[tuple[int, Turn]]:
    """(index of a run, what of it is done), in order, for runs with these loads.

    Each run at once, unless several have repeats and `order` interleaves or shuffles them: then all runs do their first
    repeat, then all their second; `shuffled` has the runs of each round in another order, fixed by the seed. A search has
    no repeats to take turns with, and is done in the first round.
    """
    rounds = [load.repeats if load.search is None and load.order in IN_TURNS else 1 for load in loads]
    if sum(count > 1 for count in rounds) < 2:
        return [(index, Turn()) for index in range(len(loads))]
    rng = random.Random(seed)
    found: list[tuple[int, Turn]] = []
    for repeat in range(max(rounds)):
        due = [index for index, count in enumerate(rounds) if repeat < count]
        if all(loads[index].order == "shuffled" for index in due):
            rng.shuffle(due)
        found += [
            (index, Turn(repeat, repeat == 0, repeat == rounds[index] - 1) if rounds[index] > 1 else Turn())
            for index in due
        ]
    return found
