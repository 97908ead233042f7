"""Order of a study's runs: one after another, or in turns, repeat by repeat.

Turns spread drift (a machine that heats up, other load on it) over all runs, so that it does not look like a difference
between engines.
"""

import random
from collections.abc import Sequence

from servebench.contracts.settings import LoadSettings
from servebench.run.session import Turn

IN_TURNS = ("interleaved", "shuffled")


def schedule(loads: Sequence[LoadSettings], seed: int) -> list[tuple[int, Turn]]:
    """Return (index of a run, its turn) in order, for runs with these loads.

    Each run has one turn, unless several have repeats and `order` is interleaved or shuffled: then a round of all first
    repeats precedes one of all second repeats. `shuffled` orders each round at random, by the seed. A search has no
    repeats and runs in the first round.
    """
    rounds = [load.repeats if load.search is None and load.order in IN_TURNS else 1 for load in loads]
    if sum(count > 1 for count in rounds) < 2:
        return [(index, Turn()) for index in range(len(loads))]
    rng = random.Random(seed)
    order: list[tuple[int, Turn]] = []
    for repeat in range(max(rounds)):
        due = [index for index, count in enumerate(rounds) if repeat < count]
        if all(loads[index].order == "shuffled" for index in due):
            rng.shuffle(due)
        order += [
            (index, Turn(repeat, repeat == 0, repeat == rounds[index] - 1) if rounds[index] > 1 else Turn())
            for index in due
        ]
    return order
