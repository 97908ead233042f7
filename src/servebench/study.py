"""A study: all runs of one command. Everything is checked before anything starts; then one run after another."""

from __future__ import annotations

import importlib.util
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from servebench import __version__
from servebench.config import Job, compose_jobs, settings_from_dict
from servebench.contracts.engine import StopReport
from servebench.contracts.exchange import ClientFloor
from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import RunSettings
from servebench.engine.describe import describe_command
from servebench.errors import ConfigError, EngineError, Interrupted, LoadError, PreflightError, StoreError
from servebench.facts import engine_facts, run_facts, starting_facts, stop_facts
from servebench.interrupts import interrupts
from servebench.keeper import EngineKeeper, launch_context
from servebench.load.share import usable_cores, worker_count
from servebench.load.traces import trace_faults
from servebench.redact import remember_config, secret_name
from servebench.registry import Registry
from servebench.report.console import Display
from servebench.resume import Earlier, remaining, tell
from servebench.run import RunRequest, execute
from servebench.selfcheck import client_floor
from servebench.store import (
    PlannedRun,
    RunFolder,
    RunState,
    StudyFolder,
    StudyState,
    build_manifest,
    capture_machine,
    check_writable,
    create_study,
    outputs_folder,
    read_manifest,
    read_study,
    redact_text,
    sync_study,
    tracking_uri,
    write_manifest,
    write_plan,
    write_run,
    write_study,
)

DESCRIPTORS_SPARE = 40
"""Of a worker, beside its streams: its spool, pipes and poller, and what Python has open."""
CACHE_VARIABLE = "SERVEBENCH_CACHE"
LOCK_WORD = "--lock"
EXIT_CODES = {
    "config": ConfigError.exit_code,
    "preflight": PreflightError.exit_code,
    "load": LoadError.exit_code,
    "store": StoreError.exit_code,
}
"""By a run's `failure`; every other failure is the engine's."""


def cache_folder() -> Path:
    """Where models and other big files are kept: `SERVEBENCH_CACHE`, else `~/.cache/servebench`."""
    asked = os.environ.get(CACHE_VARIABLE)
    if asked:
        return Path(asked).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "servebench"


def jobs_of(words: Sequence[str], registry: Registry) -> list[Job]:
    """The jobs that the words ask for: composed, or read from the manifest after `--lock`. Raises ConfigError, StoreError."""
    if LOCK_WORD not in words:
        return compose_jobs(words, registry)
    rest = [word for word in words if word != LOCK_WORD]
    if len(rest) != 1:
        raise ConfigError(
            f"run {LOCK_WORD} takes the path of one manifest.json and nothing else, not: {' '.join(words)}"
        )
    manifest = read_manifest(Path(rest[0]))
    settings = settings_from_dict(manifest["config"], registry)
    # the stored name belongs to the study that is being repeated
    settings = replace(settings, study=replace(settings.study, name=None))
    return [
        Job(
            tuple(manifest.get("overrides", ())),
            settings,
            {**manifest["config"], "study": {"dir": settings.study.dir, "name": None}},
        )
    ]


def title_of(job: Job) -> str:
    """What a run is called: engine, model, workload, and where it differs, launch."""
    settings = job.settings
    launch = "" if settings.launch.name == "process" else f" ({settings.launch.name})"
    return f"{settings.engine.name}{launch} · {settings.model.name} · {settings.workload.name}"


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
        faults = engine.check(context) if launcher.asks_engine == "all" else []
        refused = engine.refused(context)
        if refused:
            raise PreflightError("\n".join(refused))
        sys.stderr.writelines(f"servebench: {fault}\n" for fault in faults)
        before = engine.commands_before(context) if launcher.asks_engine == "all" else ()
        for command in (*before, launcher.command(engine, context, settings.launch)):
            sys.stdout.write(describe_command(command) + "\n")
    return 0


def check_jobs(jobs: Sequence[Job], registry: Registry) -> None:
    """Ask engines, launchers and workloads what makes a job impossible. Raises PreflightError with all reasons."""
    faults: list[str] = []
    for job in jobs:
        settings = job.settings
        engine = registry.engine(settings.engine.name)
        context = launch_context(settings, cache_folder())
        launcher = registry.launcher(settings.launch.name)
        if launcher.asks_engine == "all":
            faults += engine.check(context)
        elif launcher.asks_engine == "settings":
            faults += engine.refused(context)
        faults += launcher.check(engine, context, settings.launch)
        if launcher.asks_engine != "nothing" and settings.launch.name != "emulated":
            faults += in_process_list(settings)
        if settings.load.workers == "ray" and importlib.util.find_spec("ray") is None:
            faults.append("load.workers=ray needs ray: pip install 'servebench-suite[ray]'")
        faults += registry.find("workload", settings.workload.name)(settings.workload).check()
        faults += trace_faults(settings.load)
        faults += descriptor_faults(settings)
    if faults:
        raise PreflightError("\n".join(dict.fromkeys(faults)))


def descriptor_faults(settings: RunSettings) -> list[str]:
    """A line when the streams of a level are more than the files that this machine lets a process open."""
    load = settings.load
    most = max([*(load.concurrency or ()), load.max_concurrency or 0])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if load.workers == "ray" or not most or hard == resource.RLIM_INFINITY:
        return []
    workers = worker_count(load.workers, in_flight=most, rate_req_s=None, cores=usable_cores())
    if -(-most // workers) + DESCRIPTORS_SPARE <= hard:
        return []
    return [
        f"load.concurrency={most}: each stream needs a file descriptor, and a process may have {hard} here (ulimit -Hn); "
        "raise that limit, lower the level, or share it among more load.workers"
    ]


def in_process_list(settings: RunSettings) -> list[str]:
    """A line for each flag of the engine that holds a secret: a command line is there for all on the machine to read."""
    return [
        f"engine.extra_args.{name}: all users of this machine would see it in the process list; "
        "give it to the engine as a variable, with engine.env.NAME=..., or not at all: servebench talks to it on loopback"
        for name, value in settings.engine.extra_args.items()
        if secret_name(name.strip("-")) and value not in (None, "", True, False)
    ]


@dataclass(frozen=True)
class _Task:
    """A run to do, and what earlier attempts at it left."""

    name: str
    job: Job
    earlier: Earlier


@dataclass
class _Study:
    """A study at work."""

    folder: StudyFolder
    state: StudyState
    display: Display
    keeper: EngineKeeper
    registry: Registry
    machine: dict[str, Any]
    outcomes: list[tuple[str, RunOutcome]]
    tracker_down: bool = False
    floor: ClientFloor | None = None

    def finish(self, status: str) -> None:
        self.state = replace(self.state, status=status, ended_s=time.time())
        write_study(self.folder, self.state)


def run_study(words: Sequence[str], registry: Registry) -> int:
    """Do what the words ask for. Returns the exit code: 0, or that of the first failure, 130 when interrupted.

    Raises ConfigError, PreflightError or StoreError when nothing was started.
    """
    jobs = jobs_of(words, registry)
    outputs = outputs_folder(jobs[0].settings.study.dir)
    check_writable(outputs)
    check_jobs(jobs, registry)
    names = [run_name(index, job) for index, job in enumerate(jobs)]
    folder = create_study(outputs, jobs[0].settings.study.name, _what(jobs))
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
    )
    write_plan(
        folder, [PlannedRun(name=n, overrides=j.overrides, config=j.resolved) for n, j in zip(names, jobs, strict=True)]
    )
    write_study(folder, state)
    first = Earlier(points={}, attempts={})
    return _work(folder, state, [_Task(name, job, first) for name, job in zip(names, jobs, strict=True)], registry)


def continue_study(folder: StudyFolder, registry: Registry, *, retry_failed: bool) -> int:
    """Do what is left of a stored study, by its own copy of the plan. Returns the exit code, as `run_study` does.

    Raises ConfigError, PreflightError or StoreError when nothing was started.
    """
    left = remaining(folder, registry, retry_failed=retry_failed)
    tasks = [
        _Task(run.name, job, earlier)
        for run, job, earlier in zip(left.planned, left.jobs, left.earlier, strict=True)
        if earlier is not None
    ]
    tell(folder, left)
    if not tasks:
        return 0
    check_writable(folder.path.parent)
    check_jobs([task.job for task in tasks], registry)
    before = read_study(folder)
    state = StudyState(
        study_id=before.study_id,
        words=before.words,
        runs=before.runs,
        servebench_version=__version__,
        tracking=before.tracking,
        started_s=before.started_s,
    )
    write_study(folder, state)
    return _work(folder, state, tasks, registry)


def _work(folder: StudyFolder, state: StudyState, tasks: Sequence[_Task], registry: Registry) -> int:
    """Do the tasks one after another, whatever happens to one of them."""
    jobs = [task.job for task in tasks]
    for job in jobs:
        remember_config(job.resolved)
    with interrupts(), Display() as display:
        keeper = EngineKeeper(registry, display, cache_folder())
        study = _Study(folder, state, display, keeper, registry, capture_machine(), [])
        try:
            study.floor = _floor(jobs, display)
            code = _run_all(study, tasks)
        except KeyboardInterrupt:
            study.finish("interrupted")
            code = Interrupted.exit_code
        finally:
            keeper.stop()
        _conclude(study, jobs[0].settings, folder.path.parent)
    return code


def _floor(jobs: Sequence[Job], display: Display) -> ClientFloor | None:
    """How exact this machine's client is, measured where it is asked for and not known. It is never a reason to stop."""
    modes = {job.settings.load.self_check for job in jobs}
    mode: Literal["auto", "always", "never"] = next((m for m in ("always", "auto") if m in modes), "never")
    display.status("self-check of the client")
    try:
        return client_floor(mode, cache_folder())
    except LoadError as error:
        display.problem(f"no self-check: {error}; the points have no error of the client beside them")
        return None


def run_name(index: int, job: Job) -> str:
    """A run's folder: its number and what it is."""
    from servebench.store.layout import slug

    settings = job.settings
    return f"{index:02d}_{slug(settings.engine.name)}_{slug(settings.workload.name)}"


def _what(jobs: Sequence[Job]) -> str:
    engines = "-".join(dict.fromkeys(job.settings.engine.name for job in jobs))
    models = list(dict.fromkeys(job.settings.model.name.rsplit("/", 1)[-1] for job in jobs))
    return f"{engines}_{models[0] if len(models) == 1 else f'{len(models)}-models'}"


def _run_all(study: _Study, tasks: Sequence[_Task]) -> int:
    code = 0
    for index, task in enumerate(tasks):
        following = tasks[index + 1].job.settings if index + 1 < len(tasks) else None
        outcome = _run_one(study, task, following, f"[{index + 1}/{len(tasks)}] " if len(tasks) > 1 else "")
        if outcome.status == "interrupted":
            study.finish("interrupted")
            return Interrupted.exit_code
        if outcome.status == "failed":
            code = code or EXIT_CODES.get(outcome.failure or "", EngineError.exit_code)
    study.finish("finished" if code == 0 else "failed")
    return code


def _run_one(study: _Study, task: _Task, following: RunSettings | None, prefix: str) -> RunOutcome:
    job, name = task.job, task.name
    title = title_of(job)
    folder = study.folder.create_run(name)
    state = RunState(run_id=f"{study.folder.name}/{name}", title=title, overrides=job.overrides)
    write_run(folder, state)
    # a run that is killed has its config and machine on disk all the same
    _write_manifest(study, job, folder, starting_facts(state))
    study.display.begin(prefix + title)
    asked = RunRequest(
        job=job,
        run_id=state.run_id,
        title=title,
        folder=folder,
        registry=study.registry,
        display=study.display,
        keeper=study.keeper,
        done=task.earlier.points,
        attempts=task.earlier.attempts,
        gpus=tuple(str(gpu["name"]) for gpu in study.machine["gpus"]),
        floor=study.floor if job.settings.load.self_check != "never" else None,
    )
    done = execute(asked)
    outcome, lease = done.outcome, done.lease
    stopped = study.keeper.keep_for(None if outcome.status == "interrupted" else following)
    _tell_leftover(study.display, stopped)
    more = {
        **run_facts(state, outcome, ended_s=time.time()),
        **({"self_check": asdict(asked.floor)} if asked.floor is not None else {}),
        **(engine_facts(lease) if lease is not None else {}),
        **(stop_facts(stopped) if stopped is not None else {}),
        "ledger": list(done.ledger),
        **({"telemetry": done.telemetry} if done.telemetry is not None else {}),
    }
    _write_manifest(study, job, folder, more)
    error = redact_text(outcome.error) if outcome.error else None
    write_run(folder, replace(state, status=outcome.status, error=error, failure=outcome.failure, ended_s=time.time()))
    study.outcomes.append((name, outcome))
    study.display.finish(outcome, prefix + title)
    if error is not None:
        study.display.problem(error)
    _track(study, job.settings, folder.path.parent.parent)
    return outcome


def _write_manifest(study: _Study, job: Job, folder: RunFolder, more: dict[str, Any]) -> None:
    facts = {
        "study_id": study.folder.name,
        "words": list(study.state.words),
        "servebench_version": __version__,
        "overrides": list(job.overrides),
        **more,
    }
    write_manifest(folder.manifest, build_manifest(config=job.resolved, facts=facts, machine=study.machine))


def _tell_leftover(display: Display, stopped: StopReport | None) -> None:
    if stopped is not None and stopped.leftover:
        display.problem(f"the engine left something behind: {'; '.join(stopped.leftover)}")


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
    _track(study, settings, outputs)
    if len(study.outcomes) > 1:
        study.display.study(study.outcomes)
    study.display.where(study.folder.path)
    if settings.tracking.name != "none" and not study.tracker_down:
        study.display.tracked(tracking_uri(settings.tracking.uri, outputs), settings.tracking.experiment)
