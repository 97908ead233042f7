"""The words of a race: its rules, who takes part, what to measure next, and what that gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Phase = Literal["race", "finals", "contributions"]
Reason = Literal["start failed", "requests failed", "slo", "slower", "budget", "not tried", "answers"]

BLOCKS_MAX = 4
"""Blocks of one start at most."""
ROUNDS = 3
"""Rounds at most: as many starts as a grid with three repeats would give each candidate."""
FIRST_OF_PHASE: Mapping[Phase, int] = {"race": 0, "finals": 20, "contributions": 40}
"""The number of the first start of a phase: each start has prompts of its own, so those of the finals are new."""
STARTS_MAX = 60


@dataclass(frozen=True, kw_only=True)
class RaceRules:
    """The budget, in the unit of `Result.cost`, the margin and the error as shares, and the size of the finals."""

    budget: float
    margin: float = 0.03
    error: float = 0.05
    finalists: int = 3
    final_starts: int = 3
    levels: int = 1
    rounds: int = ROUNDS
    attainment: float | None = None
    """The share of requests that must meet the SLO; None for no limit."""
    ladder: tuple[float, ...] = ()
    """The levels, busiest first, if the objective is the highest load that meets the SLO. The values of results are then shares
    of good requests, and levels below the first that meets it are not measured."""
    ahead: bool = False
    """Starts of several candidates are decided together, so that machines can measure them at once."""


@dataclass(frozen=True, kw_only=True)
class RaceEntrant:
    """A candidate as the race sees it. `answers`: its answers must be checked before it may win, against those of `reference`
    (empty: stock). `take_backs` are the names of the candidates without one of its changes each."""

    name: str
    answers: bool = False
    reference: str = ""
    take_backs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """What to measure next: a block of a candidate at a level (0: the busiest), in a start of its engine; or, with `quality`,
    its answers."""

    candidate: str
    phase: Phase
    start: int
    block: int = 0
    level: int = 0
    quality: bool = False

    @property
    def repeat(self) -> int:
        """The number of the repeat, which fixes the prompts."""
        return self.start * BLOCKS_MAX + self.block


@dataclass(frozen=True, kw_only=True)
class Left:
    """Why and when a candidate left: after which round, and, if it was measured, how far behind the leader it was (a
    logarithm with its interval)."""

    reason: Reason
    round: int
    note: str = ""
    leader: str = ""
    behind: float | None = None
    low: float | None = None
    high: float | None = None
