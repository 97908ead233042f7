"""Order of a study's runs: one after another, or in turns, and their execution in that order.

Turns spread drift (a machine that heats up, other load on it) over all runs, so that it does not look like a difference
between engines.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import LoadSettings, RunSettings
from servebench.load.plan.levels import repeats_of
from servebench.run.prior import has_unmeasured
from servebench.run.session import Turn
from servebench.run.task import RunTask

IN_TURNS = ("interleaved", "shuffled")

ExecuteRun = Callable[[RunTask, RunSettings | None, str], RunOutcome]
"""Executes a run or a turn of it, given the settings of the run after it and a label for its title."""


def schedule(loads: Sequence[LoadSettings], seed: int, starts: Sequence[int] = ()) -> list[tuple[int, Turn]]:
    """Return (index of a run, its turn) in order, for runs with these loads and numbers of engine starts (default: 1).

    A run with several starts has a turn for each. Otherwise it has one turn, unless several runs have repeats and `order` is
    interleaved or shuffled: then a round of all first repeats precedes one of all second repeats. `shuffled` orders each
    round at random, by the seed. Rounds of starts alternate in direction, so that linear drift cancels out. A search has
    no repeats and runs in the first round.
    """
    counts = list(starts) or [1] * len(loads)
    turns = [_turns(load, count) for load, count in zip(loads, counts, strict=True)]
    if max(counts) == 1 and sum(len(own) > 1 for own in turns) < 2:
        return [(index, Turn()) for index in range(len(loads))]
    rng = random.Random(seed)
    order: list[tuple[int, Turn]] = []
    for number in range(max(map(len, turns))):
        due = [index for index, own in enumerate(turns) if number < len(own)]
        if all(loads[index].order == "shuffled" for index in due):
            rng.shuffle(due)
        elif max(counts) > 1 and number % 2:
            due.reverse()
        order += [(index, turns[index][number]) for index in due]
    return order


def _turns(load: LoadSettings, starts: int) -> list[Turn]:
    """Return the turns of a run, if it takes turns."""
    if starts > 1:
        parts = [repeats_of(load, start) for start in range(starts)]
    elif load.search is None and load.order in IN_TURNS and load.repeats > 1:
        parts = [range(repeat, repeat + 1) for repeat in range(load.repeats)]
    else:
        return [Turn()]
    last = len(parts) - 1
    return [
        Turn(repeats, first=number == 0, last=number == last, start=number if starts > 1 else None)
        for number, repeats in enumerate(parts)
    ]


def execute_in_order(tasks: Sequence[RunTask], execute: ExecuteRun, on_end: Callable[[str, RunOutcome], None]) -> bool:
    """Execute runs, or their turns, in the order of the schedule. A failed run does not stop the others.

    Calls `on_end` for each run that has ended. Returns whether a run was interrupted, which stops the study.
    """
    settings = [task.job.settings for task in tasks]
    progress = [task.earlier for task in tasks]
    starts = [one.study.most_starts for one in settings]
    queue = deque(schedule([one.load for one in settings], settings[0].workload.seed, starts))
    while queue:
        index, turn = queue.popleft()
        if not turn.last and not has_unmeasured(settings[index], turn, progress[index]):
            continue
        same_start = bool(queue) and queue[0][1].start == turn.start
        following = settings[queue[0][0]] if same_start else None
        task = replace(tasks[index], earlier=progress[index], turn=turn)
        outcome = execute(task, following, turn_label(index, len(tasks), turn, starts[index]))
        if outcome.status == "finished" and not turn.last:
            progress[index] = progress[index].after(outcome)
            continue
        on_end(task.name, outcome)
        if outcome.status == "interrupted":
            return True
        queue = deque((other, later) for other, later in queue if other != index)
    return False


def turn_label(index: int, runs: int, turn: Turn, starts: int) -> str:
    """Return what a turn is called: its start, and which run of how many it belongs to."""
    parts = [f"start {turn.start + 1}/{starts}"] if turn.start is not None else []
    if turn.start is None and turn.repeats:
        parts.append(f"repeat {turn.repeats.start + 1}")
    if runs > 1:
        parts.append(f"{index + 1}/{runs}")
    return f"[{', '.join(parts)}] " if parts else ""
