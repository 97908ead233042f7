"""Runs of a study that take turns, so that what drifts falls on all of them alike."""

from dataclasses import replace

import pytest

from servebench.config import Job
from servebench.contracts.settings import LoadSettings, SearchSettings, StudySettings
from servebench.contracts.turns import Turn
from servebench.run.session import RunTask
from servebench.run.turns import turns_in_order
from support.settings import run_settings

IN_TURNS = LoadSettings(name="l", concurrency=(1,), repeats=2, order="interleaved")


def schedule(loads, seed, starts=None):
    """(index of a run, its turn), as `turns_in_order` has them for runs with these loads and numbers of starts."""
    tasks = []
    for index, (load, count) in enumerate(zip(loads, starts or [1] * len(loads), strict=True)):
        settings = run_settings(load=load, study=StudySettings(starts=count))
        settings = replace(settings, workload=replace(settings.workload, seed=seed))
        tasks.append(RunTask(str(index), Job((), settings, {})))
    return [(int(turn.run), replace(turn, run="", label="")) for turn in turns_in_order(tasks)]


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
        (0, Turn(range(0, 1), first=True, last=False)),
        (1, Turn(range(0, 1), first=True, last=False)),
        (2, Turn()),
        (0, Turn(range(1, 2), first=False, last=True)),
        (1, Turn(range(1, 2), first=False, last=False)),
        (1, Turn(range(2, 3), first=False, last=True)),
    ]


def test_a_search_is_done_at_once():
    """It has no repeats to take turns with."""
    search = replace(IN_TURNS, search=SearchSettings())
    assert [one for one in schedule([IN_TURNS, search, IN_TURNS], 0) if one[0] == 1] == [(1, Turn())]


@pytest.mark.parametrize("seed", range(3))
def test_shuffled_rounds_have_every_run_once(seed):
    """In an order that the seed fixes, and not the same in each round."""
    loads = [replace(IN_TURNS, order="shuffled", repeats=4)] * 5
    found = schedule(loads, seed)
    assert found == schedule(loads, seed)
    rounds = [[index for index, turn in found if turn.repeats == range(repeat, repeat + 1)] for repeat in range(4)]
    assert all(sorted(one) == list(range(5)) for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1


def test_each_start_is_a_turn_and_rounds_alternate():
    """Also of a single run; the repeats of a start stay together, and no engine is shared between starts."""
    found = schedule([replace(IN_TURNS, order="ascending")] * 2, 0, [3, 3])
    assert [index for index, _ in found] == [0, 1, 1, 0, 0, 1]
    assert [turn for index, turn in found if index == 0] == [
        Turn(range(0, 2), first=True, last=False, start=0),
        Turn(range(2, 4), first=False, last=False, start=1),
        Turn(range(4, 6), first=False, last=True, start=2),
    ]
    assert [turn.start for _, turn in schedule([replace(IN_TURNS, repeats=1)], 0, [2])] == [0, 1]
