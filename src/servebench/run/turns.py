"""Policies say which turns are next; executors execute them, here or on a cluster. Neither knows what the other is.

The simplest policy executes the runs of a study in a fixed order: one after another, or in turns. Turns spread drift (a machine
that heats up, other load on it) over all runs, so that it does not look like a difference between engines. The executor in this
process takes them one after another or those of a group at once, on engines of a pool each.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from servebench.analysis.tuning.ledger import good_share
from servebench.contracts.events import Notice
from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import LoadSettings
from servebench.contracts.turns import Turn
from servebench.engine.pool import EnginePool
from servebench.load.plan.levels import repeats_of
from servebench.run.in_turns import run_in_turns
from servebench.run.lifecycle import job_of_turn, stop_facts
from servebench.run.prior import has_unmeasured, without_void
from servebench.run.session import RunContext, RunRequest, RunTask
from servebench.store.manifest import read_signed_manifest, write_manifest

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
    """Execute what a policy wants until it is done, and close the executor. Returns whether the study was interrupted."""
    try:
        while turns := policy.next_turns():
            if executor.execute(turns, policy):
                return True
    finally:
        executor.close()
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


class LocalExecutor:
    """Executes turns in this process. An engine that the next turn needs, too, keeps running."""

    def __init__(
        self,
        open_context: Callable[[], RunContext],
        run: Callable[[Sequence[RunRequest]], Sequence[RunOutcome]] = run_in_turns,
    ) -> None:
        """`open_context` is called before the first turn."""
        self._open_context, self._run = open_context, run
        self._pools: list[EnginePool] = []
        """Of the engines that are alive beside the first one."""
        self._context: RunContext | None = None
        self._kept: Turn | None = None
        """The turn whose engine was kept for one that was not decided then."""

    def execute(self, turns: Sequence[Turn], policy: Policy) -> bool:
        """Execute turns. Returns whether one was interrupted. Raises StoreError, KeyboardInterrupt."""
        context = self._context = self._context or self._open_context()
        queue = deque(turns)
        while queue:
            turn = queue.popleft()
            task = _task_of(turn, policy, context)
            if not _is_due(task, turn):
                continue
            group = [(turn, task)]
            while turn.at_once is not None and queue and queue[0].at_once == turn.at_once:
                group += [
                    (one, its) for one in [queue.popleft()] if _is_due(its := _task_of(one, policy, context), one)
                ]
            alone = len(group) == 1
            self._stop_kept(context, turn if alone else None)
            following = _following(turn, queue) if alone else None
            settings = _task_of(following, policy, context).job.settings if following is not None else None
            self._pools += [context.pool.another() for _ in group[len(self._pools) + 1 :]]
            outcomes = self._run(
                [
                    RunRequest(**{**vars(context), "pool": pool}, task=its, turn=one, following=settings)
                    for pool, (one, its) in zip([context.pool, *self._pools], group, strict=False)
                ]
            )
            self._kept = turn if turn.own_engine and following is not None else None
            for (one, _), outcome in zip(group, outcomes, strict=False):
                policy.add([one], outcome)
                if outcome.status != "finished":
                    queue = deque(other for other in queue if other.run != one.run)
                elif _has_enough(one, outcome):
                    queue = deque(other for other in queue if other.run != one.run or other.repeats != one.repeats)
            if len(outcomes) < len(group) or any(one.status == "interrupted" for one in outcomes):
                return True
        return False

    def close(self) -> None:
        """Stop the engine, whatever has ended the turns."""
        if self._context is None:
            return
        try:
            self._stop_kept(self._context, None)
        finally:
            for pool in (self._context.pool, *self._pools):
                pool.stop()
                pool.clean_logs()

    def _stop_kept(self, context: RunContext, following: Turn | None) -> None:
        """Stop an engine that was kept, unless the following turn is in the same start of it."""
        kept = self._kept
        if kept is None or (following is not None and _same_start(kept, following)):
            return
        self._kept = None
        stopped = context.pool.release(None)
        context.pool.clean_logs()
        if stopped is None:
            return
        if stopped.leftover:
            context.events(Notice("left_behind", note="; ".join(stopped.leftover)))
        path = context.study.run(kept.run).manifest
        manifest, origin = read_signed_manifest(path)
        write_manifest(path, {**manifest, **stop_facts(stopped)}, own=origin.own)


def _same_start(one: Turn, other: Turn) -> bool:
    return (one.run, one.start) == (other.run, other.start)


def _following(turn: Turn, queue: Sequence[Turn]) -> Turn | None:
    """Return the turn for which the engine keeps running after this one; null if it stops."""
    if turn.own_engine:
        return turn if not queue or _same_start(turn, queue[0]) else None
    return queue[0] if queue and queue[0].start == turn.start else None


def _task_of(turn: Turn, policy: Policy, context: RunContext) -> RunTask:
    """Return the run of a turn, with its job as the turn wants it."""
    task = policy.task(turn.run)
    task = replace(task, job=job_of_turn(task.job, turn, context.registry))
    return replace(task, earlier=without_void(task.earlier, turn)) if turn.replaces_void else task


def _is_due(task: RunTask, turn: Turn) -> bool:
    """Return whether a turn has something to measure or to ask."""
    return turn.last or turn.quality is not None or has_unmeasured(task.job.settings, turn, task.earlier)


def _has_enough(turn: Turn, outcome: RunOutcome) -> bool:
    """Return whether enough requests were good, so that the other levels of the repeat are not needed."""
    if turn.enough is None:
        return False
    rows = [one.row for one in outcome.points if turn.includes(one.id.first)]
    return any(good_share(row) >= turn.enough for row in rows)
