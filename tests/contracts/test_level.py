"""Load levels."""

import pytest

from servebench.contracts.level import Level, levels_in_words

LEVELS = {
    "8": (Level(8), "8 users", 8.0),
    "1": (Level(1), "1 user", 1.0),
    "2.5/s": (Level(rate=2.5), "2.5 req/s", 2.5),
    "1e-05/s": (Level(rate=1e-5), "1e-05 req/s", 1e-5),
    "-": (Level(), "-", 0.0),
}


@pytest.mark.parametrize("text", LEVELS)
def test_text_says_all_of_a_level(text):
    level, words, load = LEVELS[text]
    assert (str(level), level.words, level.load) == (text, words, load)
    assert Level.parse(text) == level


@pytest.mark.parametrize("text", ["", "trace", "8 users", "x/s", "-1", "1.2.3/s"])
def test_other_text_is_an_unknown_level(text):
    assert Level.parse(text) == Level()


def test_rates_that_read_alike_are_one_level():
    assert Level(rate=2.000_000_1) == Level(rate=2)
    assert len({Level(4, 2.0), Level(rate=2.0)}) == 1, "a rate is what counts"


def test_levels_are_ordered_by_their_load():
    assert sorted([Level(16), Level(rate=2.5), Level(), Level(2)]) == [Level(), Level(2), Level(rate=2.5), Level(16)]
    assert sorted([Level(rate=2), Level(2)]) == [Level(2), Level(rate=2)]


def test_levels_are_listed_with_one_unit_and_each_once():
    assert levels_in_words([Level(1)]) == "1 user"
    assert levels_in_words([Level(1), Level(4), Level(4), Level(16)]) == "1, 4 and 16 users"
    assert levels_in_words([Level(rate=0.5), Level(rate=2)]) == "0.5 and 2 req/s"
