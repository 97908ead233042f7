"""What a screen is made of, for the terminal and for Markdown.

A tone is one word or several of: strong, good, warn, bad, same, dim.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """A piece of text in a tone."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Line:
    """A paragraph, or the content of a cell."""

    spans: tuple[Span, ...]
    indent: int = 0

    @classmethod
    def of(cls, *parts: str | Span, tone: str = "", indent: int = 0) -> Line:
        """Return the line of these parts; `tone` is that of those that have none of their own."""
        return cls(tuple(one if isinstance(one, Span) else Span(one, tone) for one in parts if one), indent)

    @property
    def text(self) -> str:
        """The line without tones."""
        return "".join(one.text for one in self.spans)


@dataclass(frozen=True)
class Heading:
    """What the blocks up to the next heading are about; `note` stands beside it."""

    text: str
    note: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table. One that may `wrap` takes several lines where the screen is too narrow."""

    title: str = ""
    left: bool = False
    wrap: bool = False
    width_max: int | None = None


@dataclass(frozen=True)
class Table:
    """A table; a `ruled` one has a line below its head."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Line]]
    ruled: bool = False


@dataclass(frozen=True)
class Command:
    """A command to run: what it is for, and why."""

    kind: str
    command: str
    reason: str = ""


@dataclass(frozen=True)
class Gap:
    """An empty line on a screen."""


Block = Heading | Line | Table | Command | Gap


def row(*cells: str | Line, tone: str = "") -> tuple[Line, ...]:
    """Return the cells of a row; `tone` is that of plain texts."""
    return tuple(one if isinstance(one, Line) else Line.of(one, tone=tone) for one in cells)


def items(texts: Iterable[str]) -> list[Block]:
    """Return a line for each text."""
    return [Line.of(one) for one in texts]
