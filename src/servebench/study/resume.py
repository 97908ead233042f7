"""`servebench resume`: does what a study planned and did not do, by its own copy of the plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from servebench.config import Job, settings_from_dict
from servebench.contracts.results import WORKER_FAILURE, Doubt, Point, RunOutcome
from servebench.contracts.settings import RunSettings
from servebench.load.plan.levels import level_name, levels
from servebench.registry.registry import Registry, registry
from servebench.store import (
    PlannedRun,
    RunFolder,
    StudyFolder,
    find_studies,
    read_plan,
    read_points,
    read_records,
    read_run,
    read_study,
    with_secrets,
)
from servebench.store.files import writing
from servebench.store.studies import OUTPUTS_WORD, take_outputs
from servebench.study.aftermath import chosen, complain, recover_study, who_works
from servebench.util.errors import ConfigError, DamagedError, StoreError

FAILED_WORD = "--failed"
HERE_WORD = "--here"
CUT_OFF = frozenset({"interrupted", "engine_died", "worker_died", "no_progress"})
"""Doubts of a point that did not come to its end: it is measured again."""


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """What earlier attempts at a run left: the points that stand, and how often others were tried, by the level's name."""

    points: Mapping[str, Point] = field(default_factory=dict)
    attempts: Mapping[str, int] = field(default_factory=dict)

    def after(self, outcome: RunOutcome) -> Earlier:
        """With what a turn of the run has measured meanwhile."""
        return replace(self, points={level_name(point.row["point"]): point for point in outcome.points})


def unmeasured(settings: RunSettings, repeat: int | None, earlier: Earlier) -> bool:
    """Whether levels of this repeat are listed that no earlier attempt measured."""
    listed = levels(settings.load, settings.workload.seed)
    return any(level.repeat == repeat and level.point not in earlier.points for level in listed)


def resume(words: Sequence[str]) -> int:
    """`resume [STUDY] [--failed] [--here]`: the study named, else the newest in `outputs/` that is not finished.

    Runs and points that are done are not done again; those that were cut off are; failed runs only with `--failed`. A
    study of a cluster goes on there, with `--here` on this machine.
    Returns the exit code, as a study's own. Raises ConfigError, PreflightError, StoreError.
    """
    from servebench.study.study import continue_study

    outputs, rest = take_outputs([word for word in words if word not in (FAILED_WORD, HERE_WORD)])
    if len(rest) > 1:
        raise ConfigError(
            f"resume takes one study, {FAILED_WORD}, {HERE_WORD} and {OUTPUTS_WORD} DIR, not: {' '.join(words)}"
        )
    folder = chosen([*rest, OUTPUTS_WORD, str(outputs)])[0] if rest else _newest_unfinished(outputs)
    return continue_study(folder, registry(), retry_failed=FAILED_WORD in words, here=HERE_WORD in words)


def _newest_unfinished(outputs: Path) -> StudyFolder:
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
    earlier: tuple[Earlier | None, ...]
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
    earlier: list[Earlier | None] = []
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
            found = Earlier()
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


def _earlier(folder: RunFolder, *, retry_failed: bool) -> Earlier | None:
    found = earlier_of(folder)
    if not folder.state.exists():
        return found
    run = read_run(folder)
    if run.status == "failed" and run.failure != WORKER_FAILURE and not retry_failed:
        return None
    done = all(level_name(point.row["point"]) in found.points for point in stored_points(folder))
    return None if run.status == "finished" and done else found


def earlier_of(folder: RunFolder) -> Earlier:
    """What earlier attempts at a run left, whatever came of them. Raises StoreError."""
    if not folder.state.exists():
        return Earlier()
    status = read_run(folder).status
    points = {level_name(point.row["point"]): point for point in stored_points(folder) if not _to_repeat(point, status)}
    tried: dict[str, set[str]] = {}
    for record in read_records(folder):
        tried.setdefault(level_name(record.point), set()).add(record.point)
    return Earlier(points=points, attempts={level: len(names) for level, names in tried.items()})


def _to_repeat(point: Point, status: str) -> bool:
    """A point that was cut off (in a finished run, by the death of a worker), and one of a failed run in which nothing
    succeeded."""
    return _cut_off(point) or (status == "failed" and not point.row["requests_ok"])


def _cut_off(point: Point) -> bool:
    return any(doubt.code in CUT_OFF for doubt in point.doubts)


def stored_points(folder: RunFolder) -> list[Point]:
    """The points of a run as they were stored; of their doubts only the codes are known. Raises StoreError."""
    frame = read_points(folder)
    points: list[Point] = []
    for found in frame.astype(object).where(frame.notna(), None).to_dict("records"):
        row: dict[str, Any] = {str(name): value for name, value in found.items()}
        verdict, codes = row.pop("verdict"), row.pop("doubts")
        void = verdict == "void"
        points.append(
            Point(row=row, doubts=tuple(_doubt(code, void=void) for code in (codes if codes is not None else ())))
        )
    return points


def _doubt(code: str, *, void: bool) -> Doubt:
    return Doubt(code=code, message="told when the point was measured", remedy="see the study's first part", void=void)


def tell(folder: StudyFolder, left: Remaining) -> None:
    """Say what will be done."""
    todo = [run.name for run, earlier in zip(left.planned, left.earlier, strict=True) if earlier is not None]
    kept = sum(len(earlier.points) for earlier in left.earlier if earlier is not None)
    skipped = [run.name for run, earlier in zip(left.planned, left.earlier, strict=True) if earlier is None]
    failed = sum(read_run(folder.run(name)).status == "failed" for name in skipped if name not in left.damaged)
    also = f", {len(left.damaged)} cannot be read ({FAILED_WORD} does them anew)" if left.damaged else ""
    also += f", {failed} failed ({FAILED_WORD} tries them again)" if failed else ""
    done = len(skipped) - failed - len(left.damaged)
    sys.stderr.write(
        f"{folder.name}: {done} of {len(left.planned)} runs are done{also}, {len(todo)} to do; "
        f"{kept} of their points stand\n"
    )
