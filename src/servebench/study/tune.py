"""`servebench tune`: race the settings of engines, from the command or from what is stored, and say which are best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from servebench.config import Job, launcher_from_dict
from servebench.contracts.cluster import ClusterSettings
from servebench.contracts.events import Listen, PlanReady, Problem
from servebench.engine.pool import EnginePool
from servebench.registry.registry import Registry
from servebench.run.jobs import planned_job
from servebench.store.layout import StudyFolder, check_writable, outputs_folder
from servebench.store.plan import PlannedRun, write_plan
from servebench.store.state import StudyState, write_study
from servebench.store.tune import TuneState, write_tune
from servebench.study.recover import recover_study, running_process
from servebench.study.study import (
    StudySession,
    check_study,
    exclusive,
    new_state,
    new_study,
    resumed_state,
    study_label,
)
from servebench.study.tracking import StudyTracker
from servebench.study.trust import confirm_study
from servebench.study.tune_cluster import ClusterTuner
from servebench.study.tune_plan import plan_tune
from servebench.study.tuner import Tuner
from servebench.util.cache import cache_folder
from servebench.util.errors import ConfigError, FailureKind, ServebenchError, StoreError
from servebench.util.redaction import remember_config
from servebench.util.signals import interrupts


def run_tune(words: Sequence[str], registry: Registry, *, listen: Listen) -> int:
    """Race the settings that the words describe. Returns the exit code: 0 if there is a winner, 130 on Ctrl-C.
    `listen` opens what listens to its events.

    Raises ConfigError, PreflightError or StoreError before anything is started.
    """
    plan = plan_tune(words, registry, listen)
    first = plan.jobs[0]
    outputs = outputs_folder(first.settings.study.dir)
    check_writable(outputs)
    with new_study(outputs, first.settings.study.name, f"tune-{study_label(plan.jobs)}") as folder:
        state = new_state(folder.name, ("tune", *words), [first], plan.runs[:1])
        write_plan(folder, plan.runs)
        write_tune(folder, plan.state, state)
        write_study(folder, state)
        return _execute(folder, state, plan.runs, plan.state, registry=registry, listen=listen)


def continue_tune(
    folder: StudyFolder,
    registry: Registry,
    *,
    listen: Listen,
    more: float = 0.0,
    here: bool = False,
    trusted: bool = False,
) -> int:
    """Continue a stored tune, with `more` budget than before: on its cluster, or with `here` on this machine. Returns the exit
    code.

    Raises ConfigError, PreflightError or StoreError before anything is started.
    """
    with exclusive(folder, "it cannot be resumed before that ends"):
        study = confirm_study(folder, registry, trusted=trusted, adopt=True)
        before, tune = study.state, study.tune
        if tune is None:
            raise StoreError(f"{folder.path} has no {folder.tune.name}, without which a tune cannot be continued")
        # jobs of a command that was killed go on
        if (process := running_process(folder, before)) is not None:
            raise ConfigError(f"{folder.name} is still running ({process}); it cannot be resumed before that ends")
        check_study([], None if here else launcher_from_dict(before.launcher), registry, listen)
        recover_study(folder)
        state = resumed_state(before)
        if more:
            tune = replace(tune, more=tune.more + more, continued=tune.continued + 1)
            write_tune(folder, tune, state)
        write_study(folder, state)
        return _execute(folder, state, study.plan, tune, registry=registry, listen=listen, here=here)


def _execute(
    folder: StudyFolder,
    study: StudyState,
    plan: Sequence[PlannedRun],
    tune: TuneState,
    *,
    registry: Registry,
    listen: Listen,
    here: bool = False,
) -> int:
    planned = {run.name: planned_job(run, registry) for run in plan}
    for job in planned.values():
        remember_config(job.resolved)
    first = next(iter(planned.values()))
    with interrupts(), listen() as events:
        tracker = StudyTracker(folder, first.settings.tracking, events)
        session = StudySession(folder=folder, state=study, events=events, tracker=tracker)
        cluster = None if here else launcher_from_dict(session.state.launcher)
        tuner = _tuner(session, planned, tune, registry=registry, cluster=cluster)
        labels = {one.run: one.candidate.name for one in tuner.state.candidates}
        timed = tuner.state.question.trials is None and cluster is None
        events(PlanReady(labels, seconds=tuner.state.budget if timed else None))
        code = FailureKind.INTERRUPTED.exit_code
        try:
            code = tuner.run()
        except KeyboardInterrupt:
            pass
        except ServebenchError as error:
            events(Problem(str(error)))
            code = error.exit_code
        finally:
            tuner.stop()
        return tuner.finish(code)


def _tuner(
    session: StudySession,
    planned: dict[str, Job],
    tune: TuneState,
    *,
    registry: Registry,
    cluster: ClusterSettings | None,
) -> Tuner:
    """Return what measures a tune: this process, or jobs of a cluster."""
    pool = EnginePool(registry, session.events, cache_folder())
    folder = session.folder
    parts: dict[str, Any] = {"folder": folder, "registry": registry, "planned": planned, "state": tune}
    parts |= {"session": session, "pool": pool}
    if cluster is None:
        return Tuner(**parts)
    return ClusterTuner(**parts, cluster=cluster)
