"""Run a study, or continue a stored one. Everything is checked before anything starts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from servebench.config import Job, launcher_from_dict
from servebench.contracts.cluster import ClusterSettings
from servebench.registry.registry import Registry
from servebench.report.terminal.display import Display
from servebench.run.jobs import jobs_of
from servebench.run.preflight import check_jobs
from servebench.run.task import RunTask
from servebench.store.hold import holding
from servebench.store.layout import StudyFolder, check_writable, create_study, outputs_folder
from servebench.store.plan import write_plan
from servebench.store.state import StudyState, read_study, write_study
from servebench.study.execute import execute_here, execute_on_cluster
from servebench.study.plan import new_state, planned_runs, resumed_state, study_label
from servebench.study.recover import running_process
from servebench.study.resume import Remaining, print_continuation, print_remaining, remaining_runs, skipped_exit_code
from servebench.study.session import StudySession
from servebench.study.tracking import StudyTracker
from servebench.util.errors import ConfigError, FailureKind, PreflightError, StoreError
from servebench.util.redaction import remember_config
from servebench.util.signals import interrupts


def run_study(words: Sequence[str], registry: Registry) -> int:
    """Run the study that the words describe. Returns the exit code: 0, that of the first failure, or 130 on Ctrl-C.

    Raises ConfigError, PreflightError or StoreError before anything is started.
    """
    jobs = jobs_of(words, registry)
    outputs = outputs_folder(jobs[0].settings.study.dir)
    check_writable(outputs)
    check_study(jobs, jobs[0].launcher, registry)
    folder = create_study(outputs, jobs[0].settings.study.name, study_label(jobs))
    with _exclusive(folder, "choose another study.name"):
        if folder.state.exists():
            raise StoreError(f"another servebench has just created {folder.path}; choose another study.name")
        plan = planned_runs(jobs)
        state = new_state(folder.name, words, jobs, plan)
        write_plan(folder, plan)
        write_study(folder, state)
        tasks = [RunTask(run.name, job) for run, job in zip(plan, jobs, strict=True)]
        code = _execute(folder, state, tasks, registry=registry, cluster=jobs[0].launcher)
        print_continuation(folder, state.runs)
        return code


def continue_study(folder: StudyFolder, registry: Registry, *, retry_failed: bool, here: bool) -> int:
    """Execute what is left of a stored study, from its stored plan: on its cluster, or with `here` on this machine.
    Returns the exit code: 0 only if the whole study is finished.

    Raises ConfigError, PreflightError or StoreError before anything is started.
    """
    with _exclusive(folder, "it cannot be resumed before that ends"):
        remaining = remaining_runs(folder, registry, retry_failed=retry_failed)
        print_remaining(folder, remaining)
        skipped_code = skipped_exit_code(folder, remaining)
        before = read_study(folder)
        cluster = None if here else launcher_from_dict(before.launcher)
        tasks = [RunTask(run.name, run.job, run.progress) for run in remaining.to_execute]
        if tasks:
            check_writable(folder.path.parent)
            check_study([task.job for task in tasks], cluster, registry)
            state = resumed_state(before)
            write_study(folder, state)
            code = _execute(folder, state, tasks, registry=registry, cluster=cluster, skipped_code=skipped_code)
        else:
            code = _settle(folder, before, remaining, skipped_code)
        print_continuation(folder, [run.name for run in remaining.runs], here=here and bool(before.launcher))
        return code


@contextmanager
def _exclusive(folder: StudyFolder, remedy: str) -> Iterator[None]:
    """Keep other processes from working on the study. Raises ConfigError when one does."""
    with holding(folder) as ours:
        if not ours:
            process = running_process(folder, read_study(folder)) if folder.state.exists() else None
            raise ConfigError(f"{folder.name} is still running ({process or 'another servebench'}); {remedy}")
        yield


def check_study(jobs: Sequence[Job], cluster: ClusterSettings | None, registry: Registry) -> None:
    """Check the jobs, and the cluster if there is one. Raises PreflightError with all faults."""
    if cluster is not None:
        from servebench.cluster.dispatcher import cluster_faults

        faults = cluster_faults(cluster)
        if faults:
            raise PreflightError("\n".join(faults))
    check_jobs(jobs, registry, here=cluster is None)


def _execute(
    folder: StudyFolder,
    state: StudyState,
    tasks: Sequence[RunTask],
    *,
    registry: Registry,
    cluster: ClusterSettings | None,
    skipped_code: int = 0,
) -> int:
    """Execute the tasks, store and print how the study ended, and return the exit code."""
    for task in tasks:
        remember_config(task.job.resolved)
    with interrupts(), Display() as display:
        tracker = StudyTracker(folder, tasks[0].job.settings.tracking, display)
        session = StudySession(folder=folder, state=state, display=display, tracker=tracker, other_code=skipped_code)
        try:
            if cluster is None:
                interrupted = execute_here(session, tasks, registry)
            else:
                interrupted = execute_on_cluster(session, tasks, registry, cluster)
        except KeyboardInterrupt:
            interrupted = True
        except PreflightError as error:
            # the cluster cannot be reached or rejects the study
            session.store_status("interrupted")
            display.problem(str(error))
            return FailureKind.PREFLIGHT.exit_code
        return session.finish([task.name for task in tasks], interrupted=interrupted)


def _settle(folder: StudyFolder, state: StudyState, remaining: Remaining, code: int) -> int:
    """Store how a study ended that was killed after its last run, and return its exit code."""
    if state.status in ("finished", "failed") or remaining.skipped("damaged"):
        return code
    with Display() as display:
        tracker = StudyTracker(folder, remaining.runs[0].job.settings.tracking, display)
        session = StudySession(folder=folder, state=state, display=display, tracker=tracker, other_code=code)
        return session.finish([], interrupted=False)
