"""Blocks in the terminal."""

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from servebench.report.blocks import Block, Gap, Heading, Items, Line, NextCommand, Table, plain
from servebench.report.terminal.from_here import commands_from_here

NATURAL = 100_000
"""More than any line takes: tables whose columns never wrap are whole in files and pipes."""
TONES = {"strong": "bold", "good": "green", "warn": "yellow", "bad": "red", "same": "cyan", "dim": "dim"}


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
