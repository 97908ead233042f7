"""The elements of the page: labels, tables and figures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

LOOKS = {
    **dict.fromkeys(("valid", "valid, wide", "finished", "faster", "clear"), "good"),
    **dict.fromkeys(
        (
            *(
                "doubtful",
                "doubtful, wide",
                "interrupted",
                "unequal_settings",
                "provisional",
                "none qualifies",
                "mixed",
            ),
            *("no clear difference", "different settings"),
        ),
        "warn",
    ),
    **dict.fromkeys(("void", "failed", "missing", "slower"), "bad"),
}


@dataclass(frozen=True)
class Label:
    """A word in a frame whose colour repeats what the word says."""

    text: str
    look: str
    note: str = ""

    @classmethod
    def of(cls, verdict: str) -> Label:
        """Return the label of a verdict."""
        return cls(verdict, LOOKS.get(verdict, "plain"))


Cells = list[str | Label]


@dataclass(frozen=True)
class Table:
    """A table. Columns in `left` are aligned left, those in `prose` may wrap; its caption is for screen readers."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Cells] | Sequence[list[str]]
    left: Collection[int] = (0,)
    prose: Collection[int] = ()

    def heading_class(self, index: int) -> str:
        """Return the CSS class of a heading."""
        return "l" if index in self.left or index in self.prose else ""

    def name_of(self, index: int) -> str:
        """Return what names a cell where the table is cards, on a narrow screen; the first cell is the title of its card."""
        return self.head[index] if index else ""

    def cell_class(self, index: int) -> str:
        """Return the CSS class of a cell."""
        return "o" if index in self.prose else "l n" if index in self.left else "n"
