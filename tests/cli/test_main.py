import pytest

from servebench.cli.main import COMMANDS, VERBS, dispatch
from servebench.util.errors import ConfigError


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


@pytest.mark.parametrize(
    ("word", "told"),
    [("runn", "did you mean 'run'?"), ("Show", "did you mean 'show'?"), ("bench", "'servebench help' lists")],
)
def test_a_word_that_is_no_verb_is_told(word, told):
    with pytest.raises(ConfigError) as error:
        dispatch([word, "engine=openai"])
    assert str(error.value).startswith(f"'{word}' is no verb")
    assert told in str(error.value)
