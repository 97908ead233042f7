"""Stored studies: turn what a killed one left into tables, what is left to do, and the command that continues it."""

import contextlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

from servebench.analysis.answer.next_steps import LONGER, command_again, longer_requests
from servebench.analysis.warnings.disturbed import taker_of
from servebench.cluster.heartbeat import active_process
from servebench.config import Job
from servebench.contracts.results import exit_code_of
from servebench.registry.registry import Registry
from servebench.report.terminal.console import say
from servebench.run.preflight import planned_job
from servebench.run.prior import PriorProgress, prior_progress, stored_points
from servebench.run.recovery import clean_logs, print_problem, recover_run
from servebench.run.session import RunTask
from servebench.store.files import writing
from servebench.store.hold import holding
from servebench.store.layout import SET_ASIDE, RunFolder, StudyFolder
from servebench.store.plan import PlannedRun
from servebench.store.state import RunState, StudyState, read_run, read_study, write_study
from servebench.store.studies import named_studies
from servebench.util.errors import ConfigError, DamagedError, FailureKind, StoreError, remedy_of
from servebench.util.short_id import short_id

Standing = Literal["finished", "unfinished", "failed", "damaged"]
"""How a stored run stands: `unfinished` runs are continued by every resume, `failed` and `damaged` ones with --failed."""
ATTEMPTS_MAX = 4
"""The number of attempts after which points are not measured for longer still."""


def recover_studies(studies: Sequence[StudyFolder], *, report_running: bool) -> int:
    """Recover studies that were killed, and mark their runs. Skip those that are running; `report_running` prints which.

    Return the exit code: 6 if a study or run could not be read, which is printed and does not stop the others.
    """
    total, code = 0, 0
    for study in studies:
        try:
            state = read_study(study)
        except StoreError as error:
            print_problem(study, str(error))
            code = FailureKind.STORE.exit_code
            continue
        if (busy := running_process(study, state)) is not None:
            if report_running:
                sys.stdout.write(f"{study.name} is still running ({busy})\n")
            continue
        with holding(study) as ours:
            if not ours:
                if report_running:
                    sys.stdout.write(f"{study.name} is in use by another servebench\n")
                continue
            recovered, damaged, refused = _recover_runs(study, read_study(study), aloud=True)
        total, code = total + recovered, FailureKind.STORE.exit_code if damaged or refused else code
    if not total and not code:
        sys.stdout.write("nothing to recover\n")
    return code


def running_process(study: StudyFolder, state: StudyState) -> str | None:
    """Return which process or cluster job works on a study, as text; null if none does."""
    if state.at_work():
        return f"process {state.pid}"
    if (owner := active_process(study.path)) is not None:
        return owner
    jobs = ((name, active_process(study.run(name).path)) for name in state.runs)
    return next((f"{name} on {job}" for name, job in jobs if job is not None), None)


def recover_study(study: StudyFolder) -> list[str]:
    """Recover a study. Return the runs with a damaged file, which are printed.

    Raises ConfigError when it is running, StoreError when a run could not be recovered for another reason.
    """
    state = read_study(study)
    # jobs of a command that was killed go on
    if (process := running_process(study, state)) is not None:
        raise ConfigError(f"{study.name} is still running ({process}); it cannot be resumed before that ends")
    _, damaged, refused = _recover_runs(study, state)
    if refused:
        raise StoreError(
            f"{study.name} cannot be recovered ({', '.join(refused)}); fix the problem above before measuring more"
        )
    return damaged


def _recover_runs(study: StudyFolder, state: StudyState, *, aloud: bool = False) -> tuple[int, list[str], list[str]]:
    """Return how many records and points were recovered, the runs with a damaged file, and those with another error."""
    total, whole = clean_logs(study, aloud=aloud)
    damaged: list[str] = []
    refused: list[str] = [] if whole else ["engine.log"]
    for name in state.runs:
        try:
            total += recover_run(study, name)
            _sweep(study.run(name).path, "**/")
        except StoreError as error:
            print_problem(study, str(error))
            (damaged if isinstance(error, DamagedError) else refused).append(name)
    _sweep(study.path)
    if state.status == "running":
        write_study(study, replace(state, status="interrupted"))
    return total, damaged, refused


def _sweep(folder: Path, below: str = "") -> None:
    """Remove temporary files that a killed servebench left."""
    for path in folder.glob(f"{below}.*.tmp"):
        with contextlib.suppress(OSError):
            path.unlink()


def newest_unfinished(outputs: Path) -> StudyFolder:
    """Return the study in `outputs` that was started last of those that are not finished and not running. Raises ConfigError if
    there is none."""
    for folder in reversed(named_studies([], outputs)):
        try:
            state = read_study(folder)
        except StoreError as error:
            print_problem(folder, str(error))
            continue
        if state.status != "finished" and running_process(folder, state) is None:
            return folder
    raise ConfigError(f"there is no unfinished study in {outputs}; name one: servebench resume STUDY")


@dataclass(frozen=True, kw_only=True)
class StoredRun(RunTask):
    """A run of a study's plan, how it stands, and whether this resume executes it."""

    standing: Standing
    execute: bool


def skipped(runs: Sequence[StoredRun], standing: Standing) -> list[StoredRun]:
    """Return the runs with this standing that this resume does not execute."""
    return [run for run in runs if not run.execute and run.standing == standing]


def remaining_runs(
    folder: StudyFolder, known: Registry, planned: Sequence[PlannedRun], *, retry_failed: bool, better: bool = False
) -> list[StoredRun]:
    """Recover what was cut off, and return the runs of the study in the order of its plan. A damaged run does not stop the
    others: it is skipped, or with `retry_failed` renamed and executed again. With `better`, doubtful points are left as well, to
    be measured for longer.

    Raises ConfigError when the study is running or a secret is unavailable, StoreError when it cannot be recovered.
    """
    damaged = recover_study(folder)
    runs = []
    for plan in planned:
        job = planned_job(plan, known)
        standing, progress = _read_standing(folder, plan.name, damaged=plan.name in damaged, better=better)
        if standing == "damaged" and retry_failed:
            _set_aside(folder, plan.name)
        if better and standing == "unfinished":
            left = [count for point, count in progress.attempts.items() if point not in progress.points]
            again = [one.row for one in stored_points(folder.run(plan.name)) if one.id.first not in progress.points]
            # the second attempt at a disturbed point was as long as the first
            taken = bool(again) and all(taker_of([row]) for row in again)
            job = measured_longer(job, attempts=max(1, max(left, default=1) - taken))
        execute = standing == "unfinished" or (retry_failed and standing != "finished")
        runs.append(StoredRun(plan.name, job, progress, standing=standing, execute=execute))
    return runs


def _was_started(run: RunFolder) -> bool:
    """Return whether a run has a state. Raises DamagedError where it has only points."""
    if not run.state.exists() and run.points.exists():
        raise DamagedError(f"{run.state} is missing")
    return run.state.exists()


def _read_standing(
    folder: StudyFolder, name: str, *, damaged: bool, better: bool = False
) -> tuple[Standing, PriorProgress]:
    """Return how a run stands and its progress. Raises StoreError."""
    if damaged:
        return "damaged", PriorProgress()
    run = folder.run(name)
    try:
        progress = prior_progress(run, better=better)
        if not _was_started(run):
            return "unfinished", progress
        whole = all(point.id.first in progress.points for point in stored_points(run))
        return standing_of(read_run(run), whole=whole), progress
    except DamagedError as error:
        print_problem(folder, str(error))
        return "damaged", PriorProgress()


def measured_longer(job: Job, *, attempts: int = 1) -> Job:
    """Return a job whose points are measured LONGER times as long as in the last of these attempts, each longer than the one
    before, and with enough requests to reach each level."""
    attempts = min(attempts, ATTEMPTS_MAX)
    load, factor = job.settings.load, int(LONGER**attempts)
    longer: dict[str, Any] = {
        name: value * factor
        for name in ("duration_s", "max_duration_s")
        if isinstance(value := getattr(load, name), (int, float))
    }
    if isinstance(load.requests, int):
        longer["requests"] = longer_requests(load.requests, load.concurrency, attempts=attempts)
    settings = replace(job.settings, load=replace(load, **longer))
    return replace(job, settings=settings, resolved={**job.resolved, "load": {**job.resolved["load"], **longer}})


def standing_of(state: RunState, *, whole: bool) -> Standing:
    """Return how a run stands by its state; `whole`: no point of it must be measured again."""
    if state.status == "finished" and whole:
        return "finished"
    if state.status == "failed" and remedy_of(state.failure) != "resume":
        return "failed"
    return "unfinished"


def _set_aside(folder: StudyFolder, name: str) -> None:
    """Rename the folder of a damaged run, so that its files are kept. Raises StoreError."""
    run = folder.run(name).path
    places = (run.with_name(f"{name}{SET_ASIDE}{number}") for number in count(1))
    kept = next(place for place in places if not place.exists())
    with writing(run):
        run.replace(kept)
    print_problem(folder, f"{name} is executed again; its damaged files are kept in {kept.name}")


def print_remaining(folder: StudyFolder, runs: Sequence[StoredRun]) -> None:
    """Print what this resume does."""
    todo = [run for run in runs if run.execute]
    failed, damaged = len(skipped(runs, "failed")), len(skipped(runs, "damaged"))
    kept = sum(len(run.earlier.points) for run in todo if run.standing != "damaged")
    parts = [f"{len(skipped(runs, 'finished'))} of {len(runs)} runs are finished"]
    parts += [f"{damaged} cannot be read (--failed executes them again)"] if damaged else []
    parts += [f"{failed} failed (--failed executes them again)"] if failed else []
    parts += [f"{len(todo)} to do; {kept} of their points are kept"]
    say(f"{short_id(folder.name)}: {', '.join(parts)}")


def skipped_exit_code(folder: StudyFolder, runs: Sequence[StoredRun]) -> int:
    """Return the exit code of the runs that this resume leaves failed or damaged; 0 if there are none. Raises StoreError."""
    if skipped(runs, "damaged"):
        return FailureKind.STORE.exit_code
    states = (read_run(folder.run(run.name)) for run in skipped(runs, "failed"))
    return next((exit_code_of(state.status, state.failure) for state in states), 0)


def _stored_standing(run: RunFolder) -> tuple[Standing, RunState | None]:
    """Return how a run stands, from its state alone, and the state of one that would fail again with its settings."""
    try:
        if not _was_started(run):
            return "unfinished", None
        state = read_run(run)
    except StoreError:
        return "damaged", None
    mend = state.status == "failed" and remedy_of(state.failure) == "mend"
    return standing_of(state, whole=True), state if mend else None


def continue_command(folder: StudyFolder, standings: Sequence[Standing], *, here: bool = False) -> str | None:
    """Return the command that continues a study, ready to paste; null when all its runs are finished.

    `here`: the study's cluster was replaced by this machine with --here.
    """
    if all(standing == "finished" for standing in standings):
        return None
    default = Path("outputs").resolve() / folder.name == folder.path.resolve()
    words = ["servebench", "resume", short_id(folder.name) if default else str(folder.path)]
    words += ["--failed"] if any(standing in ("failed", "damaged") for standing in standings) else []
    words += ["--here"] if here else []
    return shlex.join(words)


def print_continuation(folder: StudyFolder, names: Sequence[str], *, here: bool = False) -> None:
    """Print, as the last line, the command that continues a study that is not whole; before it, or instead of it, the command of
    runs that would fail again with their settings."""
    found = [_stored_standing(folder.run(name)) for name in names]
    wrong = [state for _, state in found if state is not None]
    left = [standing for standing, state in found if state is None]
    open_runs = sum(standing != "finished" for standing, _ in found)
    counted = f"{short_id(folder.name)}: unfinished runs: {open_runs} of {len(found)}"
    if wrong:
        # a stored command has no secrets
        words = read_study(folder).words if len(wrong) == len(found) else wrong[0].overrides
        again = command_again(words)
        say(f"{counted}; the same settings would fail again; mend the argument in:\n{again}")
    if (command := continue_command(folder, left, here=here)) is not None:
        say(f"{counted}; to continue:\n{command}")
