"""`servebench tune`: race the settings of engines, from the command or from what is stored, and say which are best."""

import time
from collections.abc import Sequence
from dataclasses import replace

from servebench.analysis.events import TuneAnswered
from servebench.config import launcher_from_dict
from servebench.contracts.cluster import ClusterSettings
from servebench.contracts.events import (
    ErrorSaid,
    Listen,
    Notice,
    PlanReady,
)
from servebench.registry.registry import Registry
from servebench.run.preflight import planned_job
from servebench.store.layout import StudyFolder, check_writable, outputs_folder
from servebench.store.plan import PlannedRun, write_plan
from servebench.store.state import StudyState, write_study
from servebench.store.tune import TuneState, write_tune
from servebench.study.durations import earlier_runs
from servebench.study.outlook import tune_planned
from servebench.study.recover import recover_study, running_process
from servebench.study.study import (
    check_study,
    exclusive,
    execute,
    new_state,
    new_study,
    open_session,
    resumed_state,
    study_label,
)
from servebench.study.trust import confirm_study
from servebench.study.tune_answer import write_answer
from servebench.study.tune_plan import plan_tune
from servebench.study.tuner import Tuner
from servebench.util.errors import ConfigError, FailureKind, ServebenchError, StoreError
from servebench.util.figures import seconds
from servebench.util.short_id import short_id


def run_tune(words: Sequence[str], registry: Registry, *, listen: Listen) -> int:
    """Race the settings that the words describe. Returns the exit code: 0 if one is best, 130 on Ctrl-C.
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
        return _execute(folder, state, plan.runs, plan.state, registry=registry, listen=listen, cluster=first.launcher)


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
        cluster = None if here else launcher_from_dict(before.launcher)
        check_study([], cluster, registry, listen)
        recover_study(folder)
        state = resumed_state(before)
        if more:
            tune = replace(tune, more=tune.more + more, continued=tune.continued + 1)
            write_tune(folder, tune, state)
        write_study(folder, state)
        return _execute(folder, state, study.plan, tune, registry=registry, listen=listen, cluster=cluster)


def _execute(
    folder: StudyFolder,
    study: StudyState,
    plan: Sequence[PlannedRun],
    tune: TuneState,
    *,
    registry: Registry,
    listen: Listen,
    cluster: ClusterSettings | None,
) -> int:
    """Race the candidates, store how the study ended, write and print the answer. Returns the exit code."""
    began = time.monotonic()
    planned = {run.name: planned_job(run, registry) for run in plan}
    with open_session(folder, study, list(planned.values()), listen, cluster=cluster) as session:
        events = session.events
        tuner = Tuner(folder=folder, registry=registry, planned=planned, state=tune, session=session)
        labels = {one.run: one.name for one in tuner.state.candidates}
        timed = tuner.state.question.trials is None
        budget_s = tuner.state.budget if timed else None
        if not tuner.known(tuner.race.stock).points:
            events(tune_planned(next(iter(planned.values())), budget_s, earlier_runs(folder.path.parent)))
        events(PlanReady(labels, seconds=budget_s if cluster is None else None))
        code = FailureKind.INTERRUPTED.exit_code
        try:
            if not execute(session, tuner, list(planned.values())[:1], registry):
                code = tuner.code or (0 if tuner.has_best else 1)
        except ServebenchError as error:
            events(ErrorSaid(str(error)))
            code = error.exit_code
        if cluster is not None and timed:
            events(Notice("engine_time", note=seconds(tuner.race.spent), at=seconds(time.monotonic() - began)))
        whole = tuner.race.next_step() is None
        interrupted = code == FailureKind.INTERRUPTED.exit_code
        session.end("interrupted" if interrupted else "finished" if whole and code == 0 else "failed")
        if whole or tuner.race.measured:
            try:
                events(TuneAnswered(write_answer(tuner, finished=whole)))
            except (ServebenchError, OSError) as error:
                events(Notice("tune_answer_failed", note=str(error)))
        if not whole:
            here = bool(session.state.launcher) and cluster is None
            events(Notice("tune_unfinished", short_id(folder.name) + " --here" * here))
        return code
