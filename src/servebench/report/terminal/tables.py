"""Consoles of the terminal output."""

import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from servebench.report.terminal.from_here import commands_from_here
from servebench.util.safe_text import clean_terminal
from servebench.util.stdio import rendered

PIPED_WIDTH = 160


class CleanConsole(Console):
    """A console that takes every text as it is: no markup, no emoji codes, and nothing that acts on the terminal."""

    def __init__(self, file: TextIO, *, width: int | None, soft_wrap: bool) -> None:
        super().__init__(
            file=rendered(file), width=width, soft_wrap=soft_wrap, highlight=False, markup=False, emoji=False
        )

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError, which has an exit code of its own; rich would end with 1."""
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, cleaned."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            clean = text if control or text.isprintable() else clean_terminal(text)
            yield segment if clean is text else Segment(clean, style, control)


def console(file: TextIO | None = None) -> Console:
    """Return a console on a file (standard output by default), wide enough to cut nothing where it is not a terminal."""
    file = file or sys.stdout
    terminal = file.isatty()
    return CleanConsole(file, soft_wrap=not terminal, width=None if terminal else PIPED_WIDTH)


def say(text: str) -> None:
    """Print text on standard error; a terminal breaks lines between words, but not those that are a command to paste."""
    for line in text.splitlines():
        console(sys.stderr).print(commands_from_here(line), soft_wrap=line.startswith("servebench ") or None)
