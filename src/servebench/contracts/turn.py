"""Part of a run: which repeat is measured now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """A part of a run: the points of one repeat, or all of them (`repeat` None). `first` and `last` say whether the run
    begins and ends with it."""

    repeat: int | None = None
    first: bool = True
    last: bool = True
