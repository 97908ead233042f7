import pytest

from servebench.util.errors import ConfigError
from servebench.util.safe_text import in_one_line


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("model\n  not\tfound", "model not found"),
        ("\x1b[2J\x1b]0;mine\x07 done", "\ufffd[2J\ufffd]0;mine\ufffd done"),
        ("caf\u00e9 \U0001f642 \u65e5\u672c", "caf\u00e9 \U0001f642 \u65e5\u672c"),
        ("abc\u202edef", "abc\ufffddef"),
        ("x" * 50, "x" * 20),
        ("", ""),
    ],
)
def test_what_a_stranger_said_is_one_line_that_no_terminal_obeys(said, line):
    assert in_one_line(said, 20) == line


@pytest.mark.parametrize("lines", [["x" * 10_000_000], ["short", "y" * 100_000], ["a", "", "b"], [""]])
def test_an_error_repeats_a_bounded_part_of_what_it_quotes(lines):
    shown = str(ConfigError(lines)).split("\n")
    assert len(shown) == len(lines)
    assert all(len(line) < 5000 for line in shown)
    assert [line for line in lines if len(line) < 4000] == [line for line in shown if len(line) < 4000]
