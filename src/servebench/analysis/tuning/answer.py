"""What a race answers: the winner's gain over stock, what each of its settings contributes, and what is as good. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from servebench.analysis.tuning.race import Phase, Race

LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Change:
    """A relative change with its 95% interval."""

    value: float
    low: float
    high: float


def gain_of(race: Race) -> Change | None:
    """Return the winner's gain over stock, from the finals alone; None if one of them was not in the finals.

    The winner is the best of several, so the interval is that of all finalists together (Bonferroni).
    """
    if race.winner is None or race.winner == race.stock:
        return None
    rivals = max(1, len(race.finalists) - 1)
    return change(race, race.winner, race.stock, ("finals",), level=LEVEL / rivals)


def change(race: Race, one: str, other: str, phases: Sequence[Phase], *, level: float = LEVEL) -> Change | None:
    """Return by how much a candidate's objective is above another's, as a share; None if one was not measured in these
    phases."""
    found = race.estimates(phases)
    if found is None or one not in found.names or other not in found.names:
        return None
    value, low, high = (math.expm1(part) for part in found.interval(one, other, level))
    return Change(value=value, low=low, high=high)
