"""Execution of a study's runs: one after another in this process, or as jobs of a cluster."""

from collections.abc import Sequence

from servebench.contracts.cluster import ClusterSettings
from servebench.engine.pool import EnginePool
from servebench.registry.registry import Registry
from servebench.run.task import RunContext, RunTask, measured_floor, run_task, shared_prompts
from servebench.run.turns import execute_in_order
from servebench.store.manifest import capture_machine
from servebench.study.session import StudySession
from servebench.util.cache import cache_folder


def execute_here(session: StudySession, tasks: Sequence[RunTask], registry: Registry) -> bool:
    """Execute the runs in this process. Returns whether the study was interrupted. Raises KeyboardInterrupt."""
    display = session.display
    pool = EnginePool(registry, display, cache_folder())
    prompts = shared_prompts(session.folder, session.state)
    try:
        floor = measured_floor([task.job for task in tasks], registry, display)
        context = RunContext(
            session.folder, session.state.words, display, pool, registry, capture_machine(), floor, {}, prompts
        )
        return execute_in_order(
            tasks, lambda task, following, label: run_task(context, task, following, label), session.add_outcome
        )
    finally:
        pool.stop()


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
