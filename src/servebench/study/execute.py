"""Execution of a study's runs: one after another in this process, or as jobs of a cluster."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from servebench.contracts.cluster import ClusterSettings
from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import RunSettings
from servebench.engine.pool import EnginePool
from servebench.registry.registry import Registry
from servebench.run.prior import has_unmeasured
from servebench.run.task import RunContext, RunTask, measured_floor, run_task
from servebench.store import capture_machine
from servebench.study.schedule import schedule
from servebench.study.session import StudySession
from servebench.util.cache import cache_folder

ExecuteRun = Callable[[RunTask, RunSettings | None, str], RunOutcome]
"""Executes a run or a turn of it, given the settings of the run after it and a label for the display."""


def execute_here(session: StudySession, tasks: Sequence[RunTask], registry: Registry) -> bool:
    """Execute the runs in this process. Returns whether the study was interrupted. Raises KeyboardInterrupt."""
    display = session.display
    pool = EnginePool(registry, display, cache_folder())
    try:
        floor = measured_floor([task.job for task in tasks], registry, display)
        context = RunContext(session.folder, session.state.words, display, pool, registry, capture_machine(), floor, {})
        return execute_in_order(
            tasks, lambda task, following, label: run_task(context, task, following, label), session.add_outcome
        )
    finally:
        pool.stop()


def execute_in_order(tasks: Sequence[RunTask], execute: ExecuteRun, on_end: Callable[[str, RunOutcome], None]) -> bool:
    """Execute runs, or their repeats in turns, in the order of the schedule. A failed run does not stop the others.

    Calls `on_end` for each run that has ended. Returns whether a run was interrupted, which stops the study.
    """
    settings = [task.job.settings for task in tasks]
    progress = [task.earlier for task in tasks]
    queue = deque(schedule([one.load for one in settings], settings[0].workload.seed))
    while queue:
        index, turn = queue.popleft()
        if not turn.last and not has_unmeasured(settings[index], turn.repeat, progress[index]):
            continue
        following = settings[queue[0][0]] if queue else None
        task = replace(tasks[index], earlier=progress[index], turn=turn)
        outcome = execute(task, following, _label(index, len(tasks), turn.repeat))
        if outcome.status == "finished" and not turn.last:
            progress[index] = progress[index].after(outcome)
            continue
        on_end(task.name, outcome)
        if outcome.status == "interrupted":
            return True
        queue = deque((other, later) for other, later in queue if other != index)
    return False


def _label(index: int, runs: int, repeat: int | None) -> str:
    if runs == 1:
        return ""
    return f"[{f'repeat {repeat + 1}, ' if repeat is not None else ''}{index + 1}/{runs}] "


def execute_on_cluster(
    session: StudySession, tasks: Sequence[RunTask], registry: Registry, settings: ClusterSettings
) -> bool:
    """Execute the runs as jobs of a cluster. Returns whether the study was interrupted. Raises PreflightError."""
    from servebench.cluster.dispatcher import Dispatcher, open_cluster

    dispatcher = Dispatcher(
        folder=session.folder,
        state=session.state,
        settings=settings,
        display=session.display,
        registry=registry,
        cluster=open_cluster(settings, session.folder),
        on_end=session.add_outcome,
    )
    dispatcher.run(tasks)
    return dispatcher.interrupted
