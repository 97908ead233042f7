"""A study: all runs of one command. Everything is checked before anything starts; then the runs are done: one after
another here, or by a cluster."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from servebench import __version__
from servebench.config import Job, launcher_from_dict
from servebench.contracts.cluster import ClusterSettings
from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import RunSettings
from servebench.engine.describe import describe_command
from servebench.engine.pool import EnginePool, launch_context
from servebench.registry.registry import Registry
from servebench.report.terminal.console import Display
from servebench.run.exit_codes import exit_code
from servebench.run.jobs import jobs_of
from servebench.run.preflight import check_jobs
from servebench.run.prior import unmeasured
from servebench.run.task import RunContext, RunTask, floor_of, run_task
from servebench.store import (
    PlannedRun,
    StudyFolder,
    StudyState,
    capture_machine,
    check_writable,
    create_study,
    holding,
    outputs_folder,
    read_run,
    read_study,
    sync_study,
    tracking_uri,
    write_plan,
    write_study,
)
from servebench.study.names import _what, run_name
from servebench.study.recover import who_works
from servebench.study.resume import remaining, tell
from servebench.study.summary import write_summary
from servebench.study.turns import turns
from servebench.util.cache import cache_folder
from servebench.util.errors import (
    ConfigError,
    Interrupted,
    PreflightError,
    ServebenchError,
    StoreError,
)
from servebench.util.redaction import remember_config
from servebench.util.signals import interrupts


def show_commands(words: Sequence[str], registry: Registry) -> int:
    """Print the exact command of each job's engine, quoted, and start nothing. Returns 0.

    Where any free port is asked for, the engine's usual one stands. What is missing on this machine is told on standard
    error; a setting that the engine has no flag for is an error. Raises ConfigError, PreflightError.
    """
    for job in jobs_of(words, registry):
        settings = job.settings
        engine = registry.engine(settings.engine.name)
        usual = replace(settings, engine=replace(settings.engine, port=settings.engine.port or engine.default_port))
        context = launch_context(usual, cache_folder())
        launcher = registry.launcher(settings.launch.name)
        faults = engine.check(context) if launcher.needs_executable else []
        refused = engine.unsupported_settings(context)
        if refused:
            raise PreflightError("\n".join(refused))
        sys.stderr.writelines(f"servebench: {fault}\n" for fault in faults)
        before = engine.prepare_commands(context) if launcher.needs_executable else ()
        for command in (*before, launcher.command(engine, context, settings.launch)):
            sys.stdout.write(describe_command(command) + "\n")
    return 0


@dataclass
class _Study:
    """A study at work."""

    folder: StudyFolder
    state: StudyState
    display: Display
    outcomes: list[tuple[str, RunOutcome]] = field(default_factory=list)
    tracker_down: bool = False

    def finish(self, status: str) -> None:
        self.state = replace(self.state, status=status, ended_s=time.time())
        write_study(self.folder, self.state)

    def ended(self, name: str, outcome: RunOutcome, settings: RunSettings) -> None:
        """A run is over and on disk."""
        self.outcomes.append((name, outcome))
        _track(self, settings, self.folder.path.parent)

    def code(self) -> int:
        """The exit code that the runs so far make: that of the first which is not finished."""
        return next((code for _, outcome in self.outcomes if (code := exit_code(outcome))), 0)


def run_study(words: Sequence[str], registry: Registry) -> int:
    """Do what the words ask for. Returns the exit code: 0, or that of the first failure, 130 when interrupted.

    Raises ConfigError, PreflightError or StoreError when nothing was started.
    """
    jobs = jobs_of(words, registry)
    outputs = outputs_folder(jobs[0].settings.study.dir)
    check_writable(outputs)
    launcher = jobs[0].launcher
    _check_spread(jobs, launcher, registry)
    folder = create_study(outputs, jobs[0].settings.study.name, _what(jobs))
    with _held(folder, "choose another study.name"):
        if folder.state.exists():
            raise StoreError(f"{folder.path} was taken by another servebench meanwhile; choose another study.name")
        return _begin(folder, words, jobs, registry)


@contextmanager
def _held(folder: StudyFolder, remedy: str) -> Iterator[None]:
    """While open, nobody else works on the study. Raises ConfigError when somebody does."""
    with holding(folder) as ours:
        if not ours:
            busy = who_works(folder, read_study(folder)) if folder.state.exists() else None
            raise ConfigError(f"{folder.name} is still running ({busy or 'another servebench'}); {remedy}")
        yield


def _begin(folder: StudyFolder, words: Sequence[str], jobs: Sequence[Job], registry: Registry) -> int:
    """Write down what is planned, and do it. Returns the exit code. Raises StoreError."""
    launcher = jobs[0].launcher
    names = [run_name(index, job) for index, job in enumerate(jobs)]
    state = StudyState(
        study_id=folder.name,
        words=tuple(words),
        runs=tuple(names),
        servebench_version=__version__,
        tracking={
            "name": jobs[0].settings.tracking.name,
            "experiment": jobs[0].settings.tracking.experiment,
            "uri": jobs[0].settings.tracking.uri,
        },
        launcher=asdict(launcher) if launcher is not None else {},
        ticket=uuid.uuid4().hex,
    )
    write_plan(
        folder, [PlannedRun(name=n, overrides=j.overrides, config=j.resolved) for n, j in zip(names, jobs, strict=True)]
    )
    write_study(folder, state)
    tasks = [RunTask(name, job) for name, job in zip(names, jobs, strict=True)]
    return _work(folder, state, tasks, registry, launcher)


def continue_study(folder: StudyFolder, registry: Registry, *, retry_failed: bool, here: bool) -> int:
    """Do what is left of a stored study, by its own copy of the plan: on the cluster that it asked for, or `here`.
    Returns the exit code, as `run_study` does.

    Raises ConfigError, PreflightError or StoreError when nothing was started.
    """
    with _held(folder, "it cannot be resumed before that ends"):
        return _continue(folder, registry, retry_failed=retry_failed, here=here)


def _continue(folder: StudyFolder, registry: Registry, *, retry_failed: bool, here: bool) -> int:
    left = remaining(folder, registry, retry_failed=retry_failed)
    tasks = [
        RunTask(run.name, job, earlier)
        for run, job, earlier in zip(left.planned, left.jobs, left.earlier, strict=True)
        if earlier is not None
    ]
    tell(folder, left)
    before = read_study(folder)
    worst = StoreError.exit_code if left.damaged else 0
    if not tasks:
        return worst or _settle(folder, before, left.jobs[0].settings)
    check_writable(folder.path.parent)
    launcher = None if here else launcher_from_dict(before.launcher)
    _check_spread([task.job for task in tasks], launcher, registry)
    state = StudyState(
        study_id=before.study_id,
        words=before.words,
        runs=before.runs,
        servebench_version=__version__,
        tracking=before.tracking,
        started_s=before.started_s,
        launcher=before.launcher,
        ticket=uuid.uuid4().hex,
    )
    write_study(folder, state)
    return _work(folder, state, tasks, registry, launcher) or worst


def _settle(folder: StudyFolder, state: StudyState, settings: RunSettings) -> int:
    """A study that was killed between its last run and its end is over: say so on disk, and to MLflow. Returns 0."""
    if state.status in ("finished", "failed"):
        return 0
    runs = [read_run(folder.run(name)) for name in state.runs]
    with Display() as display:
        study = _Study(folder, state, display)
        study.finish("finished" if all(run.status == "finished" for run in runs) else "failed")
        _conclude(study, settings, folder.path.parent)
    return 0


def _check_spread(jobs: Sequence[Job], launcher: ClusterSettings | None, registry: Registry) -> None:
    """Check the jobs, and the launcher where other machines do them. Raises PreflightError."""
    if launcher is not None:
        from servebench.cluster.dispatcher import cluster_faults

        faults = cluster_faults(launcher)
        if faults:
            raise PreflightError("\n".join(faults))
    check_jobs(jobs, registry, here=launcher is None)


def _work(
    folder: StudyFolder,
    state: StudyState,
    tasks: Sequence[RunTask],
    registry: Registry,
    launcher: ClusterSettings | None,
) -> int:
    """Do the tasks, whatever happens to one of them."""
    for task in tasks:
        remember_config(task.job.resolved)
    with interrupts(), Display() as display:
        study = _Study(folder, state, display)
        try:
            code = (
                _run_all(study, tasks, registry) if launcher is None else _spread_all(study, tasks, registry, launcher)
            )
        except KeyboardInterrupt:
            study.finish("interrupted")
            code = Interrupted.exit_code
        _conclude(study, tasks[0].job.settings, folder.path.parent)
    return code


def _spread_all(study: _Study, tasks: Sequence[RunTask], registry: Registry, launcher: ClusterSettings) -> int:
    from servebench.cluster.dispatcher import Dispatcher, open_cluster

    spread = Dispatcher(
        folder=study.folder,
        state=study.state,
        settings=launcher,
        display=study.display,
        registry=registry,
        cluster=open_cluster(launcher, study.folder),
        on_end=lambda name, outcome, job: study.ended(name, outcome, job.settings),
    )
    try:
        spread.run(tasks)
    except PreflightError:
        study.finish("interrupted")
        raise
    code = Interrupted.exit_code if spread.interrupted else study.code()
    lost = spread.interrupted or any(outcome.status == "interrupted" for _, outcome in study.outcomes)
    study.finish("interrupted" if lost else "finished" if code == 0 else "failed")
    order = {task.name: index for index, task in enumerate(tasks)}
    study.outcomes.sort(key=lambda item: order[item[0]])
    return code


def _run_all(study: _Study, tasks: Sequence[RunTask], registry: Registry) -> int:
    """One after another, in this process. Raises KeyboardInterrupt between runs."""
    display = study.display
    keeper = EnginePool(registry, display, cache_folder())
    place = RunContext(study.folder, study.state.words, display, keeper, registry, capture_machine(), None, {})
    try:
        place.floor = floor_of([task.job for task in tasks], display)
        settings = [task.job.settings for task in tasks]
        order = turns([own.load for own in settings], settings[0].workload.seed)
        earlier = {index: task.earlier for index, task in enumerate(tasks)}
        while order:
            index, turn = order.pop(0)
            if not turn.last and not unmeasured(settings[index], turn.repeat, earlier[index]):
                continue
            following = settings[order[0][0]] if order else None
            task = replace(tasks[index], earlier=earlier[index], turn=turn)
            round_ = f"repeat {turn.repeat + 1}, " if turn.repeat is not None else ""
            outcome = run_task(place, task, following, f"[{round_}{index + 1}/{len(tasks)}] " if len(tasks) > 1 else "")
            if outcome.status == "finished" and not turn.last:
                earlier[index] = earlier[index].after(outcome)
                continue
            study.ended(task.name, outcome, task.job.settings)
            order = [(other, later) for other, later in order if other != index]
            if outcome.status == "interrupted":
                study.finish("interrupted")
                return Interrupted.exit_code
    finally:
        keeper.stop()
    study.outcomes.sort(key=lambda item: [task.name for task in tasks].index(item[0]))
    code = study.code()
    study.finish("finished" if code == 0 else "failed")
    return code


def _track(study: _Study, settings: RunSettings, outputs: Path) -> None:
    """Tell MLflow what is on disk so far. A server that was found dead is not tried again before the end."""
    if settings.tracking.name == "none" or study.tracker_down:
        return
    study.display.status("logging to MLflow")
    uri = tracking_uri(settings.tracking.uri, outputs)
    report = sync_study(
        study.folder, uri=uri, experiment=settings.tracking.experiment, timeout_s=settings.tracking.timeout_s
    )
    if report.error is not None:
        study.tracker_down = True
        study.display.problem(f"{report.error}; nothing is lost: 'servebench sync {study.folder.name}' sends it later")


def _conclude(study: _Study, settings: RunSettings, outputs: Path) -> None:
    # it may be back by now
    study.tracker_down = False
    if settings.tracking.name != "none" and any(study.folder.run(name).points.exists() for name in study.state.runs):
        study.display.status("summing up")
        try:
            write_summary(study.folder.path)
        except (ServebenchError, OSError) as error:
            study.display.problem(f"no summary of the study for MLflow: {error}")
    _track(study, settings, outputs)
    if len(study.outcomes) > 1:
        study.display.study(study.outcomes)
    study.display.where(study.folder.path)
    if settings.tracking.name != "none" and not study.tracker_down:
        study.display.tracked(tracking_uri(settings.tracking.uri, outputs), settings.tracking.experiment)
