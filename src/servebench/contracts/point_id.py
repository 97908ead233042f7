"""The identity of a point: which load level, which repeat of it, which attempt at that."""

import re
from dataclasses import dataclass, replace
from typing import Self

from servebench.contracts.level import Level

_NAME = re.compile(r"(?P<level>.+?)(?:-r(?P<repeat>\d{1,9}))?(?:-a(?P<attempt>\d{1,9}))?", re.DOTALL)

REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class PointId:
    """A point of a run. `format` gives the name that files store, such as `c8-r0` or `q2.5-r1-a2`; `parse` reads it.

    `level` is `c8` for concurrency 8, `q2.5` for 2.5 requests a second, `replay` for a replayed trace. `repeat` is None in
    names without one (imported runs). A point that was cut off is measured again with the next `attempt`.
    """

    level: str
    repeat: int | None = None
    attempt: int = 0

    @classmethod
    def at(cls, load: Level, repeat: int) -> Self:
        """Return the identity of a repeat of a load level."""
        return cls(f"{'q' if load.open_loop else 'c'}{load.number}", repeat)

    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the identity that a stored name stands for. Every name has one."""
        found = _NAME.fullmatch(name)
        if found is None:
            return cls(name)
        repeat = found["repeat"]
        return cls(found["level"], None if repeat is None else int(repeat), int(found["attempt"] or 0))

    def format(self) -> str:
        """Return the name of the point in files."""
        repeat = "" if self.repeat is None else f"-r{self.repeat}"
        return f"{self.level}{repeat}{f'-a{self.attempt}' if self.attempt else ''}"

    __str__ = format

    @property
    def first(self) -> Self:
        """The first attempt at this point, which stands for all of them."""
        return self.with_attempt(0)

    def with_attempt(self, attempt: int) -> Self:
        """Return another attempt at this point."""
        return replace(self, attempt=attempt)

    @property
    def load(self) -> Level:
        """The load level; an unknown one where the name says neither a concurrency nor a rate."""
        kind, number = self.level[:1], self.level[1:]
        return Level.parse(number if kind == "c" else f"{number}/s" if kind == "q" else "")
