"""The load level of a point: how many users a closed loop has, or at which rate an open loop sends."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import total_ordering
from typing import Self

from servebench.util.figures import MISSING, listed

REQUESTS_PER_STREAM = 10
"""With ten requests per stream the level of a closed loop is held for nine tenths of the point."""

_TEXT = re.compile(r"(?P<users>\d{1,15})|(?P<rate>\d{1,15}(?:\.\d{1,15})?(?:e[+-]?\d{1,2})?)/s")


@total_ordering
@dataclass(frozen=True, slots=True)
class Level:
    """A load level: the `concurrency` of a closed loop, or the `rate` of an open loop in requests a second.

    Neither is known of some imported points. Levels are ordered by their load. A rate has six significant digits, so that the
    text of a level, `8` or `2.5/s`, says all of it: files and JSON have this text, and `parse` reads it.
    """

    concurrency: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.rate is not None:
            object.__setattr__(self, "concurrency", None)
            object.__setattr__(self, "rate", float(f"{self.rate:g}"))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the level with this text. Any other text is that of an unknown level."""
        found = _TEXT.fullmatch(text)
        if found is None:
            return cls()
        return cls(rate=float(found["rate"])) if found["rate"] else cls(int(found["users"]))

    def __str__(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g}/s"
        return MISSING if self.concurrency is None else str(self.concurrency)

    def __lt__(self, other: Self) -> bool:
        return (self.load, self.open_loop) < (other.load, other.open_loop)

    @property
    def open_loop(self) -> bool:
        """Whether requests are sent by the clock."""
        return self.rate is not None

    @property
    def load(self) -> float:
        """The number of users, or of requests a second; 0 for an unknown level."""
        return float(self.rate or self.concurrency or 0)

    @property
    def number(self) -> str:
        """The text without its unit."""
        return str(self).removesuffix("/s")

    @property
    def words(self) -> str:
        """The level as people say it: `4 users`, `1 user`, `2 req/s`."""
        if self.rate is not None:
            return f"{self.number} req/s"
        return MISSING if self.concurrency is None else f"{self} user{'' if self.concurrency == 1 else 's'}"


def levels_in_words(levels: Iterable[Level]) -> str:
    """Return load levels with one unit, each once: `1, 4 and 16 users`."""
    *first, last = dict.fromkeys(levels)
    return listed([*(level.number for level in first), last.words])
