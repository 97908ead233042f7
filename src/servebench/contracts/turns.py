"""Turns of a study: whose engine is alive, and what load it gets meanwhile."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servebench.contracts.point_id import PointId


@dataclass(frozen=True)
class Turn:
    """A part of a run: the points of some `repeats`, or all points (null), at some `levels`, or at all (null).

    `run` is the name of its run. `first` and `last`: whether the run starts and ends with it.
    Turns with different `start` numbers never share a start of an engine; with null they may. In the last turn the questions
    of the run's quality test are asked.
    """

    repeats: range | None = None
    run: str = ""
    first: bool = True
    last: bool = True
    start: int | None = None
    levels: frozenset[str] | None = None
    quality: Mapping[str, Any] | None = None
    """The config of a quality test whose questions are asked in this turn, instead of that of the run."""
    own_engine: bool = False
    """No other run may use the engine. It keeps running for a turn of the same start that is not decided yet."""
    replaces_void: bool = False
    """Whether void points are measured again."""
    enough: float | None = None
    """The share of good requests from which on later turns of the same repeat are left out (null: none are)."""
    at_once: str | None = None
    """Turns with the same value that follow each other are executed at once: all their engines are alive, and the load goes from
    one to the other, slice by slice. Null: alone. An executor may execute them one after another all the same."""
    gpus: tuple[str, ...] = ()
    """The GPUs that its engine gets, as the driver numbers them; empty: all."""
    ready_timeout_s: float | None = None
    """Replaces that of the engine."""
    label: str = ""
    """Shown before the run's title."""

    @property
    def measures(self) -> bool:
        """Whether it has points to measure."""
        return self.repeats is None or bool(self.repeats)

    def includes(self, point: PointId) -> bool:
        """Return whether a point belongs to the turn."""
        of_levels = self.levels is None or point.level in self.levels
        return of_levels and (self.repeats is None or (point.repeat or 0) in self.repeats)


def closing_turn(run: str) -> Turn:
    """Return the turn that ends a run with what it has measured."""
    return Turn(range(0), run, first=False)
