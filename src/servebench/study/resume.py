"""`servebench resume`: does what a study planned and did not do, by its own copy of the plan."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from servebench.config import Job, settings_from_dict
from servebench.contracts.results import WORKER_FAILURE
from servebench.load.plan.levels import level_name
from servebench.registry.registry import Registry
from servebench.run.prior import PriorProgress, prior_progress, stored_points
from servebench.run.recovery import complain
from servebench.store import (
    PlannedRun,
    RunFolder,
    StudyFolder,
    find_studies,
    read_plan,
    read_run,
    read_study,
    with_secrets,
)
from servebench.store.files import writing
from servebench.study.recover import recover_study, who_works
from servebench.util.errors import ConfigError, DamagedError, StoreError


def newest_unfinished(outputs: Path) -> StudyFolder:
    """Return the newest study in `outputs` that is not finished and not running. Raises ConfigError if there is none."""
    for folder in reversed(find_studies(outputs)):
        try:
            state = read_study(folder)
        except StoreError as error:
            complain(folder, str(error))
            continue
        if state.status != "finished" and who_works(folder, state) is None:
            return folder
    raise ConfigError(f"there is no unfinished study in {outputs}; name one: servebench resume STUDY")


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """What is left of a study: for each run of the plan its job, and what earlier attempts left; null for a run that is
    done, or that failed or is `damaged` and is not to be tried again."""

    planned: tuple[PlannedRun, ...]
    jobs: tuple[Job, ...]
    earlier: tuple[PriorProgress | None, ...]
    damaged: tuple[str, ...]
    """Runs of which something cannot be read."""


def remaining(folder: StudyFolder, known: Registry, *, retry_failed: bool) -> Remaining:
    """Recover what was cut off, and see what is left to do. A run of which something cannot be read keeps no other back:
    it is left alone, or with `retry_failed` set aside and done anew.

    Raises ConfigError when the study is at work or a secret is not to be had, StoreError for a plan that cannot be read.
    """
    state = read_study(folder)
    if (busy := who_works(folder, state)) is not None:
        raise ConfigError(f"{folder.name} is still running ({busy}); it cannot be resumed before that ends")
    planned = read_plan(folder)
    damaged = recover_study(folder)
    jobs: list[Job] = []
    earlier: list[PriorProgress | None] = []
    for run in planned:
        config = with_secrets(run.config, os.environ)
        jobs.append(Job(run.overrides, settings_from_dict(config, known), config))
        try:
            found = None if run.name in damaged else _earlier(folder.run(run.name), retry_failed=retry_failed)
        except DamagedError as error:
            complain(folder, str(error))
            damaged.append(run.name)
            found = None
        if run.name in damaged and retry_failed:
            _set_aside(folder, run.name)
            damaged.remove(run.name)
            found = PriorProgress()
        earlier.append(found)
    return Remaining(planned=planned, jobs=tuple(jobs), earlier=tuple(earlier), damaged=tuple(damaged))


def _set_aside(folder: StudyFolder, name: str) -> None:
    """Give the folder of a damaged run another name: what it still holds is kept. Raises StoreError."""
    run = folder.run(name).path
    number = next(number for number in count(1) if not run.with_name(f"{name}.damaged-{number}").exists())
    place = run.with_name(f"{name}.damaged-{number}")
    with writing(run):
        run.replace(place)
    complain(folder, f"{name} is done anew; what is left of it is in {place.name}")


def _earlier(folder: RunFolder, *, retry_failed: bool) -> PriorProgress | None:
    found = prior_progress(folder)
    if not folder.state.exists():
        return found
    run = read_run(folder)
    if run.status == "failed" and run.failure != WORKER_FAILURE and not retry_failed:
        return None
    done = all(level_name(point.row.point) in found.points for point in stored_points(folder))
    return None if run.status == "finished" and done else found


def tell(folder: StudyFolder, left: Remaining) -> None:
    """Say what will be done."""
    todo = [run.name for run, earlier in zip(left.planned, left.earlier, strict=True) if earlier is not None]
    kept = sum(len(earlier.points) for earlier in left.earlier if earlier is not None)
    skipped = [run.name for run, earlier in zip(left.planned, left.earlier, strict=True) if earlier is None]
    failed = sum(read_run(folder.run(name)).status == "failed" for name in skipped if name not in left.damaged)
    also = f", {len(left.damaged)} cannot be read (--failed does them anew)" if left.damaged else ""
    also += f", {failed} failed (--failed tries them again)" if failed else ""
    done = len(skipped) - failed - len(left.damaged)
    sys.stderr.write(
        f"{folder.name}: {done} of {len(left.planned)} runs are done{also}, {len(todo)} to do; "
        f"{kept} of their points stand\n"
    )
