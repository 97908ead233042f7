"""Text on standard error."""

import sys
from io import StringIO

from servebench.report.terminal.tables import say


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
