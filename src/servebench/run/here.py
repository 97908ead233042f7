"""The executor of turns in this process, one after another, on engines of a pool."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from servebench.analysis.tuning.ledger import good_share
from servebench.contracts.events import LeftBehind
from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import RunSettings
from servebench.contracts.turns import Turn
from servebench.run.prior import has_unmeasured, without_void
from servebench.run.session import RunContext, RunTask
from servebench.run.task import job_of_turn, run_task, stop_facts
from servebench.run.turns import Policy
from servebench.store.manifest import read_signed_manifest, write_manifest

RunTurn = Callable[[RunContext, RunTask, Turn, RunSettings | None], RunOutcome]


class LocalExecutor:
    """Executes turns in this process. An engine that the next turn needs, too, keeps running."""

    def __init__(self, open_context: Callable[[], RunContext], run: RunTurn = run_task) -> None:
        """`open_context` is called before the first turn."""
        self._open_context = open_context
        self._run = run
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
            if turn.replaces_void:
                task = replace(task, earlier=without_void(task.earlier, turn))
            asks = turn.last or turn.quality is not None
            if not asks and not has_unmeasured(task.job.settings, turn, task.earlier):
                continue
            self._stop_kept(context, turn)
            following = _following(turn, queue)
            settings = _task_of(following, policy, context).job.settings if following is not None else None
            outcome = self._run(context, task, turn, settings)
            self._kept = turn if turn.own_engine and following is not None else None
            policy.add([turn], outcome)
            if outcome.status == "interrupted":
                return True
            if outcome.status != "finished":
                queue = deque(one for one in queue if one.run != turn.run)
            elif _has_enough(turn, outcome):
                queue = deque(one for one in queue if one.run != turn.run or one.repeats != turn.repeats)
        return False

    def close(self) -> None:
        """Stop the engine, whatever has ended the turns."""
        if self._context is None:
            return
        try:
            self._stop_kept(self._context, None)
        finally:
            self._context.pool.stop()
            self._context.pool.clean_logs()

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
            context.events(LeftBehind(stopped.leftover))
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
    return replace(task, job=job_of_turn(task.job, turn, context.registry))


def _has_enough(turn: Turn, outcome: RunOutcome) -> bool:
    """Return whether enough requests were good, so that the other levels of the repeat are not needed."""
    if turn.enough is None:
        return False
    rows = [one.row for one in outcome.points if turn.includes(one.id.first)]
    return any(good_share(row) >= turn.enough for row in rows)
