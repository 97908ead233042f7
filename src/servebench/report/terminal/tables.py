"""Consoles and tables of the terminal output."""

import sys
import time
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from servebench.util.figures import MISSING

PIPED_WIDTH = 160
VERDICT_STYLES = {"valid": "green", "doubtful": "yellow", "void": "red"}
STATUS_STYLES = {"finished": "green", "failed": "red", "interrupted": "yellow", "running": "cyan", "missing": "red"}
POINTS_NOTE = "times in ms; ± is half of the 95% interval, of this start of the engine only"


def console(file: TextIO | None = None) -> Console:
    """Return a console on a file (standard output by default), wide enough to cut nothing where it is no terminal."""
    file = file or sys.stdout
    terminal = file.isatty()
    return Console(file=file, highlight=False, soft_wrap=not terminal, width=None if terminal else PIPED_WIDTH)


def new_table(title: str | None = None, *, narrow: bool = False) -> Table:
    """Return an empty table; a `narrow` one fits a terminal of 80 columns."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        padding=0 if narrow else (0, 1, 0, 0),
        pad_edge=False,
        caption_justify="left",
    )


def verdict_text(verdict: str) -> Text:
    """Return a verdict in its colour."""
    return Text(verdict, style=VERDICT_STYLES.get(verdict, ""))


def local_time(stamp_s: float | None) -> str:
    """Return a time stamp as local date and time."""
    return MISSING if stamp_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(stamp_s))
