"""A turn of a run: the repeat that is measured next."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """A part of a run: the points of one repeat, or all points (`repeat` null). `first` and `last`: whether the run starts and
    ends with it."""

    repeat: int | None = None
    first: bool = True
    last: bool = True
