"""Run a study, or continue a stored one. Everything is checked before anything starts."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from servebench import __version__
from servebench.analysis.events import StudyAnswered
from servebench.config import Job, launcher_from_dict
from servebench.contracts.cluster import ClusterSettings
from servebench.contracts.events import (
    AtOnce,
    ErrorSaid,
    Events,
    Listen,
    Notice,
    PlanReady,
    ResultsStored,
    Said,
    StartsChosen,
)
from servebench.contracts.results import RunOutcome
from servebench.engine.pool import EnginePool, Found
from servebench.registry.registry import Registry
from servebench.run.lifecycle import in_real_time, measured_floor, shared_prompts
from servebench.run.preflight import check_jobs, find_servers, jobs_of, notes_of
from servebench.run.prior import stored_points
from servebench.run.session import RunContext, RunTask
from servebench.run.turns import Executor, FixedOrder, LocalExecutor, Policy, follow, turns_in_order
from servebench.store.hold import holding
from servebench.store.layout import RunFolder, StudyFolder, check_writable, create_study, outputs_folder, slug
from servebench.store.manifest import capture_machine
from servebench.store.plan import PlannedRun, write_plan
from servebench.store.state import StudyState, read_run, read_study, write_study
from servebench.study.at_once import Place, at_once, check_slices, places_at_once
from servebench.study.decided import UntilDecided, check_decided, open_again
from servebench.study.outlook import earlier_runs, plan_of, study_conclusions, with_starts
from servebench.study.resume import (
    print_continuation,
    print_remaining,
    remaining_runs,
    running_process,
    skipped,
    skipped_exit_code,
)
from servebench.study.tracking import StudyTracker
from servebench.study.trust import confirm_locked, confirm_study
from servebench.telemetry.machine import CpuUse, listener_pid, others_now
from servebench.util.cache import cache_folder
from servebench.util.errors import ConfigError, FailureKind, PreflightError, ServebenchError, StoreError
from servebench.util.redaction import remember_config
from servebench.util.signals import interrupts

ENGINES_NAMED = 3
"""More engines than this are counted in the name of a study."""


@dataclass(kw_only=True)
class StudySession:
    """The runs of a study that this process executes or dispatches.

    `other_code` is the exit code of runs that earlier commands left failed and that are not executed again; 0 if none.
    `cluster`: where they are executed; null: in this process. `found` are the running servers that were asked before, `plan` is
    what was announced (null: not yet).
    """

    folder: StudyFolder
    state: StudyState
    events: Events
    tracker: StudyTracker
    other_code: int = 0
    cluster: ClusterSettings | None = None
    found: Found = ()
    plan: PlanReady | None = None
    outcomes: list[tuple[str, RunOutcome]] = field(default_factory=list)

    def add_outcome(self, name: str, outcome: RunOutcome) -> None:
        """Keep the outcome of a run that has ended and is on disk, and send it to the tracking server."""
        self.outcomes.append((name, outcome))
        self.tracker.sync()

    def finish(self, order: Sequence[str], *, interrupted: bool) -> int:
        """Store how the study ended, print its results in this order of runs, and return the exit code."""
        self.outcomes.sort(key=lambda item: order.index(item[0]))
        outcomes = [outcome for _, outcome in self.outcomes]
        code = FailureKind.INTERRUPTED.exit_code if interrupted else study_exit_code(outcomes, self.other_code)
        for name, outcome in self.outcomes:
            if outcome.status == "finished" and (damage := stored_damage(self.folder.run(name))) is not None:
                self.events(ErrorSaid(damage, run=name))
                code = code or FailureKind.STORE.exit_code
        cut_off = interrupted or any(outcome.status == "interrupted" for outcome in outcomes)
        self.end("interrupted" if cut_off else "finished" if code == 0 else "failed")
        if self.outcomes:
            self._conclude()
        return code

    def _conclude(self) -> None:
        """Emit what the whole study says. Nothing in its files may keep it from ending."""
        try:
            found = study_conclusions(self.folder.path)
            # the command that continues a study that is not whole is printed as the last line
            steps = tuple(step for step in found.answer.next_steps if not step.continues)
            self.events(StudyAnswered(replace(found, answer=replace(found.answer, next_steps=steps))))
        except (ServebenchError, OSError) as error:
            self.events(Notice("comparison_failed", note=str(error)))

    def end(self, status: str) -> None:
        """Store how the study ended, send it to the tracking server, and say where all of it is."""
        self.store_status(status)
        self.tracker.conclude(self.state)
        self.events(ResultsStored(self.folder.path))
        self.tracker.say_where()

    def store_status(self, status: str) -> None:
        """Store how the study ended."""
        self.state = replace(self.state, status=status, ended_s=time.time())
        write_study(self.folder, self.state)


def stored_damage(run: RunFolder) -> str | None:
    """Return why the state or the points of a run that has ended cannot be read; None if they can, or were never stored."""
    try:
        if run.state.exists():
            read_run(run)
            stored_points(run)
    except StoreError as error:
        return str(error)
    return None


def study_exit_code(outcomes: Sequence[RunOutcome], other_code: int) -> int:
    """Return the exit code of the first run that is not finished, else that of runs that were not executed."""
    return next((code for outcome in outcomes if (code := outcome.exit_code)), other_code)


def run_study(words: Sequence[str], registry: Registry, *, listen: Listen, trusted: bool = False) -> int:
    """Run the study that the words describe. Returns the exit code: 0, that of the first failure, or 130 on Ctrl-C.

    `listen` opens what listens to its events. `trusted`: the user trusts the manifest of `--lock` without being asked.

    Raises ConfigError, PreflightError or StoreError before anything is started.
    """
    jobs, starts = _planned(words, registry)
    confirm_locked(jobs, words, registry, trusted=trusted)
    outputs = outputs_folder(jobs[0].settings.study.dir)
    check_writable(outputs)
    found = check_study(jobs, jobs[0].launcher, registry, listen)
    with new_study(outputs, jobs[0].settings.study.name, study_label(jobs)) as folder:
        plan = planned_runs(jobs)
        tasks = [RunTask(run.name, job) for run, job in zip(plan, jobs, strict=True)]
        announced = plan_of(tasks, registry, starts, earlier_runs(outputs))
        here = jobs[0].launcher is None and all(in_real_time(job, registry) for job in jobs)
        state = replace(
            new_state(folder.name, words, jobs, plan),
            budget_s=starts.budget_s if starts else None,
            expected_s=announced.seconds if here else None,
        )
        write_plan(folder, plan)
        write_study(folder, state)
        more = {"cluster": jobs[0].launcher, "found": found, "plan": announced}
        code = _execute(folder, state, tasks, registry, listen, **more)
        print_continuation(folder, state.runs)
        return code


def dry_run(words: Sequence[str], registry: Registry, *, listen: Listen) -> PlanReady:
    """Check what the words describe as `run_study` does, and return what it would do. Raises what that raises."""
    jobs, starts = _planned(words, registry)
    check_study(jobs, jobs[0].launcher, registry, listen)
    tasks = [RunTask(run.name, job) for run, job in zip(planned_runs(jobs), jobs, strict=True)]
    return plan_of(tasks, registry, starts, earlier_runs(outputs_folder(jobs[0].settings.study.dir)))


def _planned(words: Sequence[str], registry: Registry) -> tuple[Sequence[Job], StartsChosen | None]:
    jobs, starts = with_starts(jobs_of(words, registry), registry)
    check_decided(jobs)
    check_slices(jobs, registry, cluster=jobs[0].launcher is not None)
    return jobs, starts


def continue_study(
    folder: StudyFolder,
    registry: Registry,
    *,
    listen: Listen,
    retry_failed: bool,
    here: bool,
    trusted: bool = False,
    better: bool = False,
    more_s: float | None = None,
) -> int:
    """Execute what is left of a stored study, from its stored plan: on its cluster, or with `here` on this machine.
    Returns the exit code: 0 only if the whole study is finished. `trusted`: the user trusts it without being asked. `better`:
    doubtful points are measured again, for longer. `more_s`: what a study with `study.until=decided` has not decided goes on,
    for this many more engine seconds. `listen` opens what listens to its events.

    Raises ConfigError, PreflightError or StoreError before anything is started.
    """
    with exclusive(folder, "it cannot be resumed before that ends"):
        study = confirm_study(folder, registry, trusted=trusted, adopt=True)
        stored = remaining_runs(folder, registry, study.plan, retry_failed=retry_failed, better=better)
        remaining, budget_s = open_again(folder, stored, more_s)
        print_remaining(folder, remaining)
        skipped_code = skipped_exit_code(folder, remaining)
        before = study.state
        if better and before.launcher and not here:
            raise ConfigError(f"--better measures on this machine, and {folder.name} ran on a cluster: add --here")
        cluster = None if here else launcher_from_dict(before.launcher)
        tasks = [run for run in remaining if run.execute]
        if tasks:
            check_writable(folder.path.parent)
            check_decided([run.job for run in remaining])
            found = check_study([task.job for task in tasks], cluster, registry, listen)
            state = replace(resumed_state(before), budget_s=budget_s)
            write_study(folder, state)
            more = {"cluster": cluster, "found": found, "other_code": skipped_code}
            code = _execute(folder, state, tasks, registry, listen, **more)
        elif before.status in ("finished", "failed") or skipped(remaining, "damaged"):
            code = skipped_code
        else:
            # it was killed after its last run
            with open_session(folder, before, [remaining[0].job], listen, other_code=skipped_code) as session:
                code = session.finish([], interrupted=False)
        print_continuation(folder, [run.name for run in remaining], here=here and bool(before.launcher))
        return code


@contextmanager
def new_study(outputs: Path, name: str | None, what: str) -> Iterator[StudyFolder]:
    """Make a study's folder, see `create_study`, and keep other processes from it. Raises ConfigError, StoreError."""
    folder = create_study(outputs, name, what)
    with exclusive(folder, "choose another study.name"):
        if folder.state.exists():
            raise ConfigError(f"another servebench has just created {folder.path}; choose another study.name")
        yield folder


@contextmanager
def exclusive(folder: StudyFolder, remedy: str) -> Iterator[None]:
    """Keep other processes from working on the study. Raises ConfigError when one does."""
    with holding(folder) as ours:
        if not ours:
            process = running_process(folder, read_study(folder)) if folder.state.exists() else None
            raise ConfigError(f"{folder.name} is still running ({process or 'another servebench'}); {remedy}")
        yield


def check_study(jobs: Sequence[Job], cluster: ClusterSettings | None, registry: Registry, listen: Listen) -> Found:
    """Check the jobs, and the cluster if there is one; return the running servers that they measure, unless these are for a
    cluster to find. Raises PreflightError with all faults, EngineError for servers that cannot be measured."""
    # a server that is asked may repeat in its error what it was given
    for job in jobs:
        remember_config(job.resolved)
    if cluster is not None:
        from servebench.cluster.dispatcher import cluster_faults

        faults = cluster_faults(cluster)
        if faults:
            raise PreflightError("\n".join(faults))
    check_jobs(jobs, registry, here=cluster is None)
    attached = [job for job in jobs if not registry.launcher(job.settings.launch.name).local]
    if cluster is not None or not attached:
        return ()
    with interrupts(), listen() as events:
        return find_servers(attached, registry, events)


@contextmanager
def open_session(
    folder: StudyFolder, state: StudyState, jobs: Sequence[Job], listen: Listen, **more: Any
) -> Iterator[StudySession]:
    """Open the session in which this process works on a study with these jobs; `more` are other fields of it."""
    for job in jobs:
        remember_config(job.resolved)
    with interrupts(), listen() as events:
        tracker = StudyTracker(folder, jobs[0].settings.tracking, events)
        yield StudySession(folder=folder, state=state, events=events, tracker=tracker, **more)


def _execute(
    folder: StudyFolder, state: StudyState, tasks: Sequence[RunTask], registry: Registry, listen: Listen, **more: Any
) -> int:
    """Execute the tasks, store and print how the study ended, and return the exit code; `more` are fields of the session."""
    jobs = [task.job for task in tasks]
    with open_session(folder, state, jobs, listen, **more) as session:
        plan = session.plan or plan_of(tasks, registry, earlier=earlier_runs(folder.path.parent))
        session.events(plan)
        for note in [] if session.cluster else notes_of(jobs, registry):
            session.events(Said(note))
        places = {} if session.cluster else places_at_once({task.name: task.job for task in tasks}, registry)
        for group in {one.group: None for one in places.values()}:
            session.events(AtOnce([plan.labels[name] for name, one in places.items() if one.group == group]))
        try:
            interrupted = execute(session, policy_of(session, tasks, places), jobs, registry)
        except PreflightError as error:
            session.store_status("interrupted")
            session.events(ErrorSaid(str(error)))
            return FailureKind.PREFLIGHT.exit_code
        return session.finish([task.name for task in tasks], interrupted=interrupted)


def study_label(jobs: Sequence[Job]) -> str:
    """Return the part of a study's default name that says what it measures: engines and model."""
    engines = list(dict.fromkeys(job.chosen("engine") for job in jobs))
    models = list(dict.fromkeys(job.settings.model.name.rstrip("/").rsplit("/", 1)[-1] for job in jobs))
    shown = "-".join(engines) if len(engines) <= ENGINES_NAMED else f"{len(engines)}-engines"
    return f"{shown}_{models[0] if len(models) == 1 else f'{len(models)}-models'}"


def planned_runs(jobs: Sequence[Job]) -> list[PlannedRun]:
    """Return the plan to store, from which the study can be resumed. A run's folder has its number, engine and workload."""
    return [
        PlannedRun(
            name=f"{index:02d}_{slug(job.chosen('engine'))}_{slug(job.chosen('workload'))}",
            overrides=job.overrides,
            config=job.resolved,
        )
        for index, job in enumerate(jobs)
    ]


def new_state(study_id: str, words: Sequence[str], jobs: Sequence[Job], plan: Sequence[PlannedRun]) -> StudyState:
    """Return the state of a study that starts now. All jobs of a study share tracking and cluster."""
    tracking, cluster = jobs[0].settings.tracking, jobs[0].launcher
    return StudyState(
        study_id=study_id,
        words=tuple(words),
        runs=tuple(run.name for run in plan),
        servebench_version=__version__,
        tracking={"name": tracking.name, "experiment": tracking.experiment, "uri": tracking.uri},
        launcher=asdict(cluster) if cluster is not None else {},
        ticket=uuid.uuid4().hex,
    )


def resumed_state(before: StudyState) -> StudyState:
    """Return the state of a stored study that this process continues now."""
    kept = ("study_id", "words", "runs", "tracking", "launcher", "started_s", "budget_s")
    return StudyState(
        **{name: getattr(before, name) for name in kept}, servebench_version=__version__, ticket=uuid.uuid4().hex
    )


def policy_of(session: StudySession, tasks: Sequence[RunTask], places: Mapping[str, Place]) -> Policy:
    """Return what decides which turns of these runs are next. Those with `places` in a group are executed at once."""
    if tasks[0].job.settings.study.until is not None:
        return UntilDecided(session.folder, tasks, session.add_outcome, session.events, places)
    # on a cluster each run is one job, with an order of its own
    together = [tasks] if session.cluster is None else [[task] for task in tasks]
    turns = [at_once(turn, places) for own in together for turn in turns_in_order(own)]
    return FixedOrder(tasks, turns, session.add_outcome)


def execute(session: StudySession, policy: Policy, jobs: Sequence[Job], registry: Registry) -> bool:
    """Execute what a policy wants of these jobs, in this process or on a cluster. Returns whether that was interrupted.

    Raises PreflightError when the cluster cannot be reached or rejects the study.
    """
    executor: Executor
    if session.cluster is None:
        executor = LocalExecutor(lambda: open_context(session, jobs, registry))
    else:
        from servebench.cluster import dispatcher

        of: dict[str, Any] = {"folder": session.folder, "state": session.state, "events": session.events}
        cluster = dispatcher.open_cluster(session.cluster, session.folder, session.state.ticket)
        executor = dispatcher.Dispatcher(**of, settings=session.cluster, registry=registry, cluster=cluster)
    try:
        return follow(policy, executor)
    except KeyboardInterrupt:
        return True


def open_context(session: StudySession, jobs: Sequence[Job], registry: Registry) -> RunContext:
    """Return what all runs of a study in this process share; measures the client's precision if that is not known."""
    events = session.events
    watched = [job for job in jobs if job.settings.telemetry.enabled and in_real_time(job, registry)]
    urls = {url for job in watched if (url := getattr(job.settings.launch, "base_url", None))}
    servers = frozenset(pid for pid in (listener_pid(url)[0] for url in urls) if pid is not None)
    if watched and (others := others_now(CpuUse(backends=servers))) is not None:
        events(Notice("others_take_cpu", note=others))
    return RunContext(
        study=session.folder,
        words=session.state.words,
        events=events,
        pool=EnginePool(registry, events, cache_folder(), found=session.found),
        registry=registry,
        machine=capture_machine(),
        floor=measured_floor(jobs, registry, events),
        prompts=shared_prompts(session.folder, session.state),
    )
