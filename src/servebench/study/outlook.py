"""What a study will do before it runs, and what it says when it has ended."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from servebench.analysis.conclude import Conclusions, Options, conclude
from servebench.analysis.decided import same_question
from servebench.analysis.fairness import compare_manifests, varied_keys
from servebench.config import Job
from servebench.contracts.age import seconds_of_age
from servebench.contracts.emulation import EMULATING
from servebench.contracts.events import PlanReady, StartsChosen, TunePlanned, UnequalRuns
from servebench.contracts.labels import labels_of, source_of_job
from servebench.contracts.tuning import TRIALS_MIN
from servebench.load.plan.levels import PlannedPoint, plan_levels
from servebench.registry.registry import Registry
from servebench.report.wording.comparison import mattering_keys
from servebench.run.fits import memory_note
from servebench.run.session import RunTask
from servebench.store import studies as read
from servebench.study.show_commands import engine_command
from servebench.util.errors import ServebenchError
from servebench.util.gpus import find_gpus

START_S = 30.0
"""How long an engine is taken to need for a start and what comes before its load, before anything is known."""
EMULATED_START_S = 10.0
"""The same for an emulated engine, which loads no weights."""


def tune_planned(job: Job, budget_s: float | None, registry: Registry) -> TunePlanned:
    """Return what a verdict of a tune takes at least, by the stock job of its engine."""
    settings = job.settings
    real = settings.launch.name not in EMULATING or registry.launcher(settings.launch.name).simulated
    return TunePlanned(
        starts=TRIALS_MIN,
        start_s=START_S if real else EMULATED_START_S,
        load_s=load_seconds([one for one in plan_levels(settings.load, settings.workload.seed) if not one.repeat]),
        budget_s=budget_s,
    )


def load_seconds(levels: Sequence[PlannedPoint]) -> float | None:
    """Return how long these levels take at most; None where only requests end one."""
    known = [one.duration_s for one in levels if one.requests is None and one.duration_s is not None]
    return sum(known) if len(known) == len(levels) else None


def start_seconds(job: Job) -> float:
    """Return how long a start of a job's engine is taken to need, before anything is known."""
    ageing_s = seconds_of_age(job.settings.engine.age) or 0.0
    return ageing_s + (EMULATED_START_S if job.settings.launch.name in EMULATING else START_S)


def plan_of(tasks: Sequence[RunTask], registry: Registry, starts: StartsChosen | None = None) -> PlanReady:
    """Return what these tasks will do, and which of them get no verdict whatever they measure; `starts` is what
    `study.starts=auto` has chosen."""
    sources = [source_of_job(task.name, "", task.job.overrides, task.job.resolved) for task in tasks]
    labels = {name: label.text for name, label in labels_of(sources).items()}
    unequal = _unequal(tasks, labels, registry)
    said = _chosen_and_notes(tasks, registry)
    if any(task.job.settings.load.search is not None or task.job.settings.study.until is not None for task in tasks):
        cost_usd = _cost_usd(tasks, starts.budget_s if starts else None)
        return PlanReady(labels=labels, unequal=unequal, starts=starts, cost_usd=cost_usd, **said)
    settings = [(task, task.job.settings) for task in tasks]
    levels = [(task, plan_levels(own.load, own.workload.seed, own.study.most_starts)) for task, own in settings]
    left = [level for task, own in levels for level in own if level.id not in task.earlier.points]
    load_s = load_seconds(left)
    starts_s = sum(own.study.most_starts * start_seconds(task.job) for task, own in settings)
    seconds = None if load_s is None else starts_s + load_s
    cost_usd = _cost_usd(tasks, starts.budget_s if starts and starts.budget_s else seconds)
    said |= {"unequal": unequal, "starts": starts, "cost_usd": cost_usd}
    return PlanReady(labels=labels, points=len(left), seconds=seconds, **said)


def _cost_usd(tasks: Sequence[RunTask], seconds: float | None) -> float | None:
    """Return what GPUs cost while the runs take turns for so long, by the mean of their prices; None where one has none."""
    prices = [(gpu.price_usd_per_hour, gpu.count) for gpu in (task.job.settings.gpu for task in tasks)]
    if seconds is None or not prices or any(price is None or not count for price, count in prices):
        return None
    return fmean((price or 0.0) * count for price, count in prices) * seconds / 3600


def _chosen_and_notes(tasks: Sequence[RunTask], registry: Registry) -> dict[str, Any]:
    """Return what the machine chose for these tasks, by which GPUs, and what to know of the memory of real ones."""
    chosen = list(dict.fromkeys(word.lstrip("+") for task in tasks for word in task.job.by_machine))
    drivers = Counter(f"{gpu.name} (driver {gpu.driver})" for gpu in (find_gpus() if chosen else ()))
    real = [one for one in (task.job.settings for task in tasks) if not registry.launcher(one.launch.name).emulated]
    return {
        "gpus": [f"{number} x {name}" for name, number in drivers.items()],
        "by_machine": chosen,
        "notes": list(dict.fromkeys(filter(None, map(memory_note, real)))),
    }


def _unequal(tasks: Sequence[RunTask], labels: Mapping[str, str], registry: Registry) -> tuple[UnequalRuns, ...]:
    """Return the runs that differ in a setting that matters from the first one with the same question."""
    planned = {task.name: _planned_manifest(task.job, registry) for task in tasks} if len(tasks) > 1 else {}
    found = []
    for task in tasks[1:]:
        first = next(one for one in tasks if same_question(one.job.resolved, task.job.resolved))
        a, b = planned[first.name], planned[task.name]
        differences = compare_manifests(a, b, varying=varied_keys(a, b))
        if settings := mattering_keys(differences):
            found.append(UnequalRuns(labels[first.name], labels[task.name], settings))
    return tuple(found)


def _planned_manifest(job: Job, registry: Registry) -> dict[str, Any]:
    """The parts of a run's manifest that are known before its engine starts."""
    argv = None
    if job.settings.launch.name not in EMULATING:
        with suppress(ServebenchError):
            argv = list(engine_command(job.settings, registry).argv)
    return {"study_id": "", "overrides": job.overrides, "config": job.resolved, "command": {"argv": argv}}


def study_conclusions(path: Path) -> Conclusions:
    """Return what a stored study says. Raises StoreError, OSError."""
    study = read.load_study(path)
    options = Options(name=read.command_words(path), words=study.words, limits=True)
    return conclude(study.runs, [study], options, earlier=read.runs_beside(study))
