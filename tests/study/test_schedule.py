"""Runs of a study that take turns, so that what drifts falls on all of them alike."""

from dataclasses import replace

import pytest

from servebench.contracts.settings import LoadSettings, SearchSettings
from servebench.run.session import Turn
from servebench.study.schedule import schedule

IN_TURNS = LoadSettings(name="l", concurrency=(1,), repeats=2, order="interleaved")


def test_runs_without_repeats_are_done_one_after_another():
    """Also where only one of them has repeats, or where nobody asked for turns."""
    alone = [(0, Turn()), (1, Turn())]
    assert schedule([replace(IN_TURNS, repeats=1)] * 2, 0) == alone
    assert schedule([replace(IN_TURNS, order="ascending")] * 2, 0) == alone
    assert schedule([IN_TURNS, replace(IN_TURNS, repeats=1)], 0) == alone
    assert schedule([IN_TURNS], 0) == [(0, Turn())]


def test_repeats_take_turns():
    """One with fewer of them ends earlier; each knows its first and its last."""
    found = schedule([IN_TURNS, replace(IN_TURNS, repeats=3), replace(IN_TURNS, repeats=1)], 0)
    assert found == [
        (0, Turn(0, first=True, last=False)),
        (1, Turn(0, first=True, last=False)),
        (2, Turn()),
        (0, Turn(1, first=False, last=True)),
        (1, Turn(1, first=False, last=False)),
        (1, Turn(2, first=False, last=True)),
    ]


def test_a_search_is_done_at_once():
    """It has no repeats to take turns with."""
    search = replace(IN_TURNS, search=SearchSettings(goal="slo"))
    assert [one for one in schedule([IN_TURNS, search, IN_TURNS], 0) if one[0] == 1] == [(1, Turn())]


@pytest.mark.parametrize("seed", range(3))
def test_shuffled_rounds_have_every_run_once(seed):
    """In an order that the seed fixes, and not the same in each round."""
    loads = [replace(IN_TURNS, order="shuffled", repeats=4)] * 5
    found = schedule(loads, seed)
    assert found == schedule(loads, seed)
    rounds = [[index for index, turn in found if turn.repeat == repeat] for repeat in range(4)]
    assert all(sorted(one) == list(range(5)) for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
