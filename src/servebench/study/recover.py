"""Recover studies that were killed: turn what they left into tables, from disk alone."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from servebench.cluster.heartbeat import active_process
from servebench.run.recovery import clean_logs, print_problem, recover_run
from servebench.store.hold import holding
from servebench.store.layout import StudyFolder
from servebench.store.state import StudyState, read_study, write_study
from servebench.util.errors import DamagedError, FailureKind, StoreError


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
    """Recover a study that is not running. Return the runs with a damaged file, which are printed.

    Raises StoreError when a run could not be recovered for another reason.
    """
    _, damaged, refused = _recover_runs(study, read_study(study))
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
