import pytest

from servebench.util.thinking import split_thinking


@pytest.mark.parametrize(
    ("text", "reasoning", "found"),
    [
        ("4", "", ("", "4")),
        ("", "", ("", "")),
        ("  4 ", "", ("", "  4 ")),
        ("<think>2 and 2</think>\n\n4", "", ("2 and 2", "4")),
        ("\n<think>\n\n</think>\n\n4", "", ("\n\n", "4")),
        ("[THINK]2[/THINK]4", "", ("2", "4")),
        ("<seed:think>2</seed:think>4", "", ("2", "4")),
        # the template wrote the first mark
        ("2 and 2\n</think>\n\n4", "", ("2 and 2\n", "4")),
        ("<think>2 and", "", ("2 and", None)),
        ("<think>2</think>", "", ("2", "")),
        ("<think>is </think> the end?</think>4", "", ("is ", "the end?</think>4")),
        # a text about the marks
        ("Write <think> and </think> around it.", "", ("", "Write <think> and </think> around it.")),
        # sent apart
        ("4", "2 and 2", ("2 and 2", "4")),
        ("", "2 and", ("2 and", None)),
        (" \n", "2 and", ("2 and", None)),
        ("4", "\n", ("", "4")),
    ],
)
def test_thinking_is_split_from_the_answer(text, reasoning, found):
    assert split_thinking(text, reasoning) == found
