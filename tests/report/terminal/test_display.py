"""What is printed while a study runs."""

from servebench.report.terminal.display import Display


def test_what_several_runs_have_to_say_alike_is_printed_once(capsys):
    display = Display()
    for text in ("quality: left out: a", "quality: left out: a", "quality: left out: b"):
        display.say_once(text)
    assert capsys.readouterr().err.splitlines() == ["quality: left out: a", "quality: left out: b"]
