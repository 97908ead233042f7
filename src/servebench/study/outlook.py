"""What a study will do before it runs, and what it says when it has ended."""

from collections.abc import Sequence
from pathlib import Path

from servebench.analysis.conclude import Conclusions, Options, conclude
from servebench.config import Job
from servebench.contracts.emulation import EMULATING
from servebench.contracts.events import PlanReady
from servebench.contracts.labels import labels_of, source_of_job
from servebench.load.plan.levels import Level, plan_levels
from servebench.run.task import RunTask
from servebench.store import studies as read

START_S = 30.0
"""How long an engine is taken to need for a start and what comes before its load, before anything is known."""
EMULATED_START_S = 10.0
"""The same for an emulated engine, which loads no weights."""


def plan_of(tasks: Sequence[RunTask]) -> PlanReady:
    """Return what these tasks will do."""
    sources = [source_of_job(task.name, "", task.job.overrides, task.job.resolved) for task in tasks]
    labels = {name: label.text for name, label in labels_of(sources).items()}
    if any(task.job.settings.load.search is not None or task.job.settings.study.until is not None for task in tasks):
        return PlanReady(labels=labels)
    left = [level for task in tasks for level in _levels(task.job) if level.id not in task.earlier.points]
    known = [level.duration_s if level.requests is None else None for level in left]
    starts_s = sum(
        task.job.settings.study.starts * (EMULATED_START_S if task.job.settings.launch.name in EMULATING else START_S)
        for task in tasks
    )
    seconds = starts_s + sum(one for one in known if one is not None) if None not in known else None
    return PlanReady(labels=labels, points=len(left), seconds=seconds)


def _levels(job: Job) -> tuple[Level, ...]:
    settings = job.settings
    return plan_levels(settings.load, settings.workload.seed, settings.study.starts)


def study_conclusions(path: Path) -> Conclusions:
    """Return what a stored study says. Raises StoreError, OSError."""
    study = read.load_study(path)
    options = Options(name=read.command_words(path), words=study.words, limits=True)
    return conclude(study.runs, [study], options, earlier=read.runs_beside(study))
