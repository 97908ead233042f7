import pytest

from servebench.cli import COMMANDS, VERBS, dispatch


@pytest.mark.parametrize("word", ["--help", "-h"])
@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"run", "help"}))
def test_a_verb_that_is_asked_for_help_tells_of_itself_and_does_nothing(verb, word, capsys):
    assert dispatch([verb, word]) == 0
    assert capsys.readouterr().out == f"servebench {verb}: {VERBS[verb]}\n"


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], ["run", "--help"], ["engine=openai", "--help"]])
def test_help_tells_all_verbs(words, capsys):
    assert dispatch(words) == 0
    told = capsys.readouterr().out
    assert all(verb in told for verb in VERBS)


def test_every_verb_that_is_told_of_can_be_done():
    assert VERBS.keys() <= COMMANDS.keys()
