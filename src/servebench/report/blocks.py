"""What a screen is made of, for the terminal, for Markdown and for a page.

A tone is one word or several of: strong, good, warn, bad, same, dim, small, large.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servebench.report.charts.model import ChartSet


@dataclass(frozen=True)
class Span:
    """A piece of text in a tone."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Label(Span):
    """How far to trust something: a word in a frame on a page, whose colour repeats what the word says. A page has room for the
    `note` that explains it."""

    note: str = ""


@dataclass(frozen=True)
class Line:
    """A paragraph, an item of a list, or the content of a cell."""

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

    @property
    def tone(self) -> str:
        """The tone of the first span."""
        return self.spans[0].tone if self.spans else ""


@dataclass(frozen=True)
class Heading:
    """What the blocks up to the next heading are about; `note` stands beside it."""

    text: str
    note: str = ""
    level: int = 3


@dataclass(frozen=True)
class TableColumn:
    """A column of a table. One that may `wrap` takes several lines where the screen is too narrow. A page shows the `mark` of a
    series, a sign and its colour, before the title."""

    title: str = ""
    left: bool = False
    wrap: bool = False
    width_max: int | None = None
    mark: tuple[str, str] | None = None


@dataclass(frozen=True)
class Table:
    """A table; a `ruled` one has a line below its head. The caption is for screen readers, `look` is a style of a page."""

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[Line]]
    ruled: bool = False
    caption: str = ""
    look: str = ""


@dataclass(frozen=True)
class Items:
    """A list."""

    lines: Sequence[Line]


@dataclass(frozen=True)
class NextCommand:
    """A command to run: what it is for, and why."""

    kind: str
    command: str
    reason: str = ""


@dataclass(frozen=True)
class Verbatim:
    """Text as it is, such as a log."""

    text: str


@dataclass(frozen=True)
class Gap:
    """An empty line on a screen."""


@dataclass(frozen=True)
class Fold:
    """Blocks that a page shows on demand; `screen` leaves them out of print."""

    title: str
    blocks: Sequence[Block]
    opened: bool = False
    screen: bool = False


@dataclass(frozen=True)
class Sides:
    """Titled groups of blocks that a page shows beside each other."""

    groups: Sequence[tuple[str, Sequence[Block]]]


@dataclass(frozen=True)
class Charts:
    """Charts as data, with the legend of their series (name, colour and sign) and the percentiles to choose among. The still
    picture of wide ones shows the panels of `printed`."""

    sets: Sequence[ChartSet]
    legend: Sequence[dict[str, str]] = ()
    stats: Sequence[str] = ()
    printed: ChartSet | None = None


Plain = Heading | Line | Table | Items | NextCommand | Gap
Block = Plain | Verbatim | Fold | Sides | Charts


def plain(blocks: Iterable[Block]) -> Iterator[Plain]:
    """Yield blocks for a medium without folds, columns and pictures: charts are sentences."""
    for block in blocks:
        match block:
            case Fold():
                yield from plain(block.blocks)
            case Sides():
                for title, group in block.groups:
                    yield Heading(title)
                    yield from plain(group)
            case Charts():
                yield from (Line.of(chart.words) for one in block.sets for chart in one.charts)
            case Verbatim():
                yield from (Line.of(line) for line in block.text.splitlines())
            case _:
                yield block


def row(*cells: str | Span | Line, tone: str = "") -> tuple[Line, ...]:
    """Return the cells of a row; `tone` is that of plain texts."""
    return tuple(one if isinstance(one, Line) else Line.of(one, tone=tone) for one in cells)


def items(texts: Iterable[str], *, tone: str = "") -> Items:
    """Return a list of texts."""
    return Items([Line.of(one, tone=tone) for one in texts])


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str | Span | Line]],
    *,
    left: Sequence[int] = (0,),
    wrap: Sequence[int] = (),
    caption: str = "",
) -> Table:
    """Return a ruled table whose columns are aligned right, but those in `left`, and those that `wrap`."""
    columns = [TableColumn(name, left=index in (*left, *wrap), wrap=index in wrap) for index, name in enumerate(head)]
    return Table(columns, [row(*cells) for cells in rows], ruled=True, caption=caption)
