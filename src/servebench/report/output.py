"""Where a command prints its result: the terminal, Markdown or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from servebench.report.export.markdown import to_markdown
from servebench.report.terminal.console import console, print_blocks
from servebench.util.errors import ConfigError
from servebench.util.plain_data import to_json

if TYPE_CHECKING:
    from servebench.report.blocks import Block

PAGE_WIDTH = 120
"""Of Markdown, in characters: tables of more columns have a row for each point."""


class Output:
    """Standard output in the form that a command was asked for: `text`, `json` or `markdown`."""

    def __init__(self, form: str | None = None, *, as_json: bool = False, verbose: bool = False) -> None:
        """Take the values of --format, --json and -v. Raises ConfigError if they contradict."""
        if as_json and form not in (None, "json"):
            raise ConfigError(f"--json and --format {form} are two formats: leave one of the two out")
        self.form = "json" if as_json else form or "text"
        self.verbose = verbose

    @property
    def as_json(self) -> bool:
        """Whether data is asked for."""
        return self.form == "json"

    @property
    def width(self) -> int:
        """How many characters a line has room for."""
        return PAGE_WIDTH if self.form == "markdown" else console().width

    @property
    def room(self) -> int | None:
        """How many characters a line of a terminal has room for; None for files and pipes, which take all."""
        return console().width if console().is_terminal else None

    @property
    def complete(self) -> bool:
        """Whether all is printed: with -v, and to files and pipes."""
        return self.verbose or self.form == "markdown" or not console().is_terminal

    def write(self, blocks: Iterable[Block], data: Any = None) -> None:
        """Print blocks, or the data instead of them where that is asked for."""
        if self.form == "json":
            sys.stdout.write(to_json(data))
        elif self.form == "markdown":
            sys.stdout.write(to_markdown(blocks))
        else:
            print_blocks(blocks, console())
