"""The executor of turns in this process, one after another or those of a group at once, on engines of a pool each."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from servebench.analysis.tuning.ledger import good_share
from servebench.contracts.events import Notice
from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import RunSettings
from servebench.contracts.turns import Turn
from servebench.engine.pool import EnginePool
from servebench.run.in_turns import Part, run_in_turns
from servebench.run.prior import has_unmeasured, without_void
from servebench.run.session import RunContext, RunTask
from servebench.run.task import job_of_turn, run_task, stop_facts
from servebench.run.turns import Policy
from servebench.store.manifest import read_signed_manifest, write_manifest

RunTurn = Callable[[RunContext, RunTask, Turn, RunSettings | None], RunOutcome]
RunTogether = Callable[[Sequence[Part]], Sequence[RunOutcome]]


class LocalExecutor:
    """Executes turns in this process. An engine that the next turn needs, too, keeps running."""

    def __init__(
        self,
        open_context: Callable[[], RunContext],
        run: RunTurn = run_task,
        run_together: RunTogether = run_in_turns,
    ) -> None:
        """`open_context` is called before the first turn."""
        self._open_context = open_context
        self._run, self._run_together = run, run_together
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
            if len(group) > 1:
                outcomes = self._execute_together(context, group)
            else:
                self._stop_kept(context, turn)
                following = _following(turn, queue)
                settings = _task_of(following, policy, context).job.settings if following is not None else None
                outcomes = [self._run(context, task, turn, settings)]
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

    def _execute_together(self, context: RunContext, group: Sequence[tuple[Turn, RunTask]]) -> Sequence[RunOutcome]:
        """Execute turns at once and return the outcomes of those that have begun."""
        self._stop_kept(context, None)
        while len(self._pools) < len(group) - 1:
            self._pools.append(context.pool.another())
        pools = [context.pool, *self._pools]
        return self._run_together(
            [Part(replace(context, pool=pool), task, turn) for pool, (turn, task) in zip(pools, group, strict=False)]
        )

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
