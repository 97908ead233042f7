"""What a command prints: consoles, blocks, its result as text, Markdown or JSON, and commands as they are from the current
folder."""

import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from servebench.report.blocks import Block, Gap, Heading, Items, Line, NextCommand, Table, plain
from servebench.report.export.markdown import to_markdown
from servebench.util.errors import ConfigError
from servebench.util.plain_data import to_json
from servebench.util.safe_text import clean_terminal
from servebench.util.stdio import rendered

PIPED_WIDTH = 160
PAGE_WIDTH = 120
"""Of Markdown, in characters: tables of more columns have a row for each point."""
NATURAL = 100_000
"""More than any line takes: tables whose columns never wrap are whole in files and pipes."""
TONES = {"strong": "bold", "good": "green", "warn": "yellow", "bad": "red", "same": "cyan", "dim": "dim"}
COMMAND = re.compile(r"(?:(?<=['`(])|(?<=: )|(?<![^\n]))(?:servebench(?= (?!was )\S)|mlflow(?= ui ))")
"""The name of a program where a command begins: a text, a line, a quotation, or what follows a colon."""


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


def print_blocks(blocks: Iterable[Block], out: Console) -> None:
    """Print blocks."""
    for block in plain(blocks):
        match block:
            case Heading():
                out.print(Text(block.text, style="bold").append(block.note and f"  {block.note}", style="not bold dim"))
            case Line():
                out.print(_text(block))
            case Items():
                for line in block.lines:
                    out.print(_text(line))
            case Table():
                table = rich_table(block)
                if out.soft_wrap and not any(one.wrap for one in block.columns):
                    table.width = out.measure(table, options=out.options.update(width=NATURAL)).maximum
                out.print(table)
            case NextCommand():
                text = Text(f"{block.kind}: ").append(
                    commands_from_here(block.command), style="bold" if block.reason else ""
                )
                # a line break inside a command would be pasted with it
                out.print(text.append(f"  ({block.reason})" if block.reason else "", style="dim"), soft_wrap=True)
            case Gap():
                out.print()


def _text(line: Line) -> Text:
    text = Text(" " * line.indent)
    for span in line.spans:
        text.append(commands_from_here(span.text), style=" ".join(TONES.get(word, "") for word in span.tone.split()))
    return text


def rich_table(block: Table) -> RichTable:
    """Return a table for a terminal."""
    table = RichTable(
        show_edge=False,
        header_style="bold",
        box=box.SIMPLE_HEAD if block.ruled else None,
        padding=0 if block.ruled else (0, 2, 0, 0),
        pad_edge=False,
    )
    for one in block.columns:
        table.add_column(
            one.title,
            justify="left" if one.left else "right",
            no_wrap=not one.wrap,
            overflow="fold",
            max_width=one.width_max,
        )
    for cells in block.rows:
        table.add_row(*map(_text, cells))
    return table


def commands_from_here(text: str) -> str:
    """Return text whose commands can be pasted: where PATH has another program of that name than this installation, or none,
    commands begin with the path of this installation's. Beside a command, paths below the current folder lack its name."""
    if COMMAND.search(text) is None:
        return text
    with suppress(OSError):
        text = re.sub(rf"(?<![^\s'\"=:(]){re.escape(str(Path.cwd()))}/(?=[\w.])", "", text)
    return COMMAND.sub(lambda found: _program(found[0]), text)


def _program(name: str) -> str:
    own = Path(sysconfig.get_path("scripts"), name)
    found = shutil.which(name)
    if not own.exists() or (found is not None and own.samefile(found)):
        return name
    places = [shlex.quote(str(own))]
    with suppress(OSError, RuntimeError):
        places += ["~/" + shlex.quote(str(own.relative_to(Path.home())))] if own.is_relative_to(Path.home()) else []
        beside = os.path.relpath(own)
        places.append(shlex.quote(beside if os.sep in beside else f".{os.sep}{beside}"))
    return min(places, key=len)


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
