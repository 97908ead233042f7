"""Policies say which turns are next; executors execute them, here or on a cluster. Neither knows what the other is.

The simplest policy executes the runs of a study in a fixed order: one after another, or in turns. Turns spread drift (a machine
that heats up, other load on it) over all runs, so that it does not look like a difference between engines.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import LoadSettings
from servebench.contracts.turns import Turn
from servebench.load.plan.levels import repeats_of
from servebench.run.session import RunTask

IN_TURNS = ("interleaved", "shuffled")

OnEnd = Callable[[str, RunOutcome], None]
"""Called for each run that has ended, after everything is on disk."""


class Policy(Protocol):
    """Decides what is measured next, from what is stored and from what earlier turns have given."""

    def next_turns(self) -> Sequence[Turn]:
        """Return turns of which none depends on what another one gives; empty when all is done."""

    def task(self, run: str) -> RunTask:
        """Return a run of these turns, with what is measured of it."""

    def add(self, turns: Sequence[Turn], outcome: RunOutcome) -> None:
        """Take the outcome of turns of one run, which is on disk."""


class Executor(Protocol):
    """Executes turns."""

    def execute(self, turns: Sequence[Turn], policy: Policy) -> bool:
        """Execute turns, those of one run in their order, and return whether the study was interrupted. A run that fails gets
        none of its further turns. Raises PreflightError, StoreError, KeyboardInterrupt."""

    def close(self) -> None:
        """Stop what still runs."""


def follow(policy: Policy, executor: Executor) -> bool:
    """Execute what a policy wants until it is done. Returns whether the study was interrupted."""
    while turns := policy.next_turns():
        if executor.execute(turns, policy):
            return True
    return False


class Runs:
    """The runs of a policy that have not ended, by name, with what they have measured."""

    def __init__(self, tasks: Iterable[RunTask], on_end: OnEnd) -> None:
        self.open = {task.name: task for task in tasks}
        self.latest: RunOutcome | None = None
        self._on_end = on_end

    def task(self, run: str) -> RunTask:
        """Return a run that has not ended."""
        return self.open[run]

    def add(self, turns: Sequence[Turn], outcome: RunOutcome) -> None:
        """Keep what a run has measured, or end it."""
        name, self.latest = turns[-1].run, outcome
        if outcome.status == "finished" and not turns[-1].last:
            task = self.open[name]
            self.open[name] = replace(task, earlier=task.earlier.after(outcome))
            return
        del self.open[name]
        self._on_end(name, outcome)


class FixedOrder(Runs):
    """Executes turns in the order in which they are given. A failed run does not stop the others."""

    def __init__(self, tasks: Iterable[RunTask], turns: Sequence[Turn], on_end: OnEnd) -> None:
        super().__init__(tasks, on_end)
        self._turns = turns

    def next_turns(self) -> Sequence[Turn]:
        """Return all turns, once."""
        turns, self._turns = self._turns, ()
        return turns


def turns_in_order(tasks: Sequence[RunTask]) -> list[Turn]:
    """Return the turns of these runs in order.

    A run with several starts has a turn for each. Otherwise it has one turn, unless several runs have repeats and `order` is
    interleaved or shuffled: then a round of all first repeats precedes one of all second repeats. `shuffled` orders each
    round at random, by the seed. Rounds of starts alternate in direction, so that linear drift cancels out. A search has
    no repeats and runs in the first round.
    """
    settings = [task.job.settings for task in tasks]
    loads, counts = [one.load for one in settings], [one.study.most_starts for one in settings]
    parts = [_parts(load, count) for load, count in zip(loads, counts, strict=True)]
    if max(counts) == 1 and sum(len(own) > 1 for own in parts) < 2:
        parts = [[Turn()]] * len(tasks)
    rng = random.Random(settings[0].workload.seed)
    order: list[Turn] = []
    for number in range(max(map(len, parts))):
        due = [index for index, own in enumerate(parts) if number < len(own)]
        if all(loads[index].order == "shuffled" for index in due) and max(map(len, parts)) > 1:
            rng.shuffle(due)
        elif max(counts) > 1 and number % 2:
            due.reverse()
        for index in due:
            turn = parts[index][number]
            label = turn_label(turn, counts[index], index, len(tasks))
            order.append(replace(turn, run=tasks[index].name, label=label))
    return order


def _parts(load: LoadSettings, starts: int) -> list[Turn]:
    if starts > 1:
        repeats = [repeats_of(load, start) for start in range(starts)]
    elif load.search is None and load.order in IN_TURNS and load.repeats > 1:
        repeats = [range(repeat, repeat + 1) for repeat in range(load.repeats)]
    else:
        return [Turn()]
    last = len(repeats) - 1
    return [
        Turn(one, first=number == 0, last=number == last, start=number if starts > 1 else None)
        for number, one in enumerate(repeats)
    ]


def turn_label(turn: Turn, starts: int, index: int, runs: int) -> str:
    """Return what a turn is called: its start of how many, and which run of how many it belongs to."""
    parts = [f"start {turn.start + 1}/{starts}"] if turn.start is not None else []
    if turn.start is None and turn.repeats:
        parts.append(f"repeat {turn.repeats.start + 1}")
    if runs > 1:
        parts.append(f"{index + 1}/{runs}")
    return f"[{', '.join(parts)}] " if parts else ""
