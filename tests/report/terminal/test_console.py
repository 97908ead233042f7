"""Text on standard error."""

import os
import re
import sys
from io import StringIO

import pytest

from servebench.report.blocks import NextCommand
from servebench.report.terminal.console import console, print_blocks, say


class Terminal(StringIO):
    def isatty(self):
        return True


def test_a_terminal_breaks_lines_between_words(monkeypatch):
    text = "1126-abc: 0 of 3 runs are finished, 3 to do; 12 of their points are kept"
    monkeypatch.setenv("COLUMNS", "30")
    for stream, width in ((Terminal(), 30), (StringIO(), len(text))):
        monkeypatch.setattr(sys, "stderr", stream)
        say(text)
        lines = stream.getvalue().splitlines()
        assert [word for line in lines for word in line.split()] == text.split()
        assert max(map(len, lines)) <= width
        assert len(lines) == (1 if width == len(text) else 3)


def test_a_command_is_one_line_however_narrow_the_terminal(monkeypatch):
    """Pasted, a line break would end it."""
    command = "servebench resume a_study_with_a_long_name --budget 10m"
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    say(f"a_study_with_a_long_name: unfinished runs: 1 of 1; to continue:\n{command}")
    print_blocks([NextCommand("next", command, "the points in doubt")], console(stream))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    ends = [line.partition("servebench ")[2] for line in shown.splitlines() if "servebench " in line]
    words = command.partition(" ")[2]
    assert ends == [words, f"{words}  (the points in doubt)"]


def test_a_reader_that_has_gone_is_the_error_of_a_closed_pipe():
    """Its exit code is the documented one, not that of a defect."""
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(BrokenPipeError), os.fdopen(write, "w") as file:
        console(file).print("x" * 100_000)
