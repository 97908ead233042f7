"""What a study will do before it runs, and what it says when it has ended."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from servebench.analysis.conclude import Conclusions, Options, conclude
from servebench.analysis.decided import same_question
from servebench.analysis.fairness import compare_manifests, varied_keys
from servebench.config import Job
from servebench.contracts.emulation import EMULATING
from servebench.contracts.events import PlanReady, StartsChosen, StudyTime, TunePlanned, UnequalRuns
from servebench.contracts.labels import labels_of, source_of_job
from servebench.contracts.precision import seconds_of
from servebench.contracts.stored import RunData
from servebench.contracts.tuning import TRIALS_MIN
from servebench.load.plan.levels import plan_levels
from servebench.registry.registry import Registry, registry
from servebench.report.wording.comparison import unequal_text
from servebench.run.fits import memory_note
from servebench.run.session import RunTask
from servebench.store import studies as read
from servebench.store.manifest import capture_cores
from servebench.study.at_once import places_at_once
from servebench.study.durations import FACTS, StartTime, seconds_of_each, start_time, start_times
from servebench.study.show_commands import engine_command
from servebench.util.errors import ServebenchError
from servebench.util.gpus import find_gpus


def tune_planned(job: Job, budget_s: float | None, earlier: Sequence[RunData] = ()) -> TunePlanned:
    """Return what a verdict of a tune takes at least, by the stock job of its engine and earlier runs."""
    time, cost_usd = start_time(job, earlier), _cost_usd([job], budget_s)
    load_s = time.load_s and time.load_s / job.settings.load.repeats
    return TunePlanned(starts=TRIALS_MIN, start_s=time.start_s, load_s=load_s, budget_s=budget_s, cost_usd=cost_usd)


def plan_of(
    tasks: Sequence[RunTask],
    registry: Registry,
    starts: StartsChosen | None = None,
    earlier: Sequence[RunData] = (),
) -> PlanReady:
    """Return what these tasks will do, and of which the difference is likely at most; `starts` is what
    `study.starts=auto` has chosen, and `earlier` runs say how long it takes."""
    sources = [source_of_job(task.name, "", task.job.overrides, task.job.resolved) for task in tasks]
    labels = {name: label.text for name, label in labels_of(sources).items()}
    said = _chosen_and_notes(tasks, registry)
    plan = PlanReady(labels=labels, unequal=_unequal(tasks, labels, registry), starts=starts, **said)
    return _with_time(plan, tasks, start_times([task.job for task in tasks], earlier)) if tasks else plan


def _with_time(plan: PlanReady, tasks: Sequence[RunTask], times: Sequence[StartTime]) -> PlanReady:
    """Return a plan with how long its tasks take, whose single starts take so long, and what that costs."""
    jobs = [task.job for task in tasks]
    study, each_s = jobs[0].settings.study, seconds_of_each(times)
    if study.until is not None:
        chosen = plan.starts or StartsChosen(budget_s=seconds_of("study.budget", study.budget), each_s=each_s)
        most = [chosen.budget_s, None if each_s is None else study.most_starts * each_s]
        seconds = min((one for one in most if one is not None), default=None)
        return replace(plan, starts=chosen, seconds=seconds, cost_usd=_cost_usd(jobs, seconds))
    listed = [plan_levels(one.load, one.workload.seed) for one in (job.settings for job in jobs)]
    whole = [len(levels) * study.most_starts for levels in listed]
    left = [max(0, count - len(task.earlier.points)) for count, task in zip(whole, tasks, strict=True)]
    # runs on the same engine, one after another, share its start
    engines = [[job.resolved.get(name) for name in FACTS] for job in jobs]
    start_s = sum(one.start_s for at, one in enumerate(times) if at == 0 or engines[at] != engines[at - 1]) / len(jobs)
    # a search has no list of levels
    shares = [own / count if count else 1.0 for own, count in zip(left, whole, strict=True)]
    load_s = (
        None
        if each_s is None
        else sum((one.load_s or 0.0) * own for one, own in zip(times, shares, strict=True)) / len(jobs)
    )
    seconds = None if load_s is None else study.most_starts * len(jobs) * (start_s + load_s)
    each = StudyTime(
        starts=study.most_starts,
        start_s=start_s,
        load_s=load_s,
        levels=sum(map(len, listed)) / len(jobs),
        earlier=all(one.earlier for one in times),
        imitated=next((one.settings.launch.name for one in jobs if one.settings.launch.name in EMULATING), ""),
    )
    cost_usd, whole_study = _cost_usd(jobs, seconds), left == whole
    return replace(plan, points=sum(left), seconds=seconds, each=each if whole_study else None, cost_usd=cost_usd)


def _cost_usd(jobs: Sequence[Job], seconds: float | None) -> float | None:
    """Return what GPUs cost while the runs take turns for so long, by the mean of their prices: those of engines that are alive
    at once, each on GPUs of its own, add up. None where one has no price."""
    prices = [(gpu.price_usd_per_hour, gpu.count) for gpu in (job.settings.gpu for job in jobs)]
    if seconds is None or not prices or any(price is None or not count for price, count in prices):
        return None
    places = places_at_once({str(number): job for number, job in enumerate(jobs)}, registry())
    groups = [one.group for one in places.values() if one.gpus]
    turns = len(jobs) - len(groups) + len(set(groups))
    return sum((price or 0.0) * count for price, count in prices) / turns * seconds / 3600


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
        if any(one.matters for one in differences):
            found.append(UnequalRuns(labels[first.name], labels[task.name], unequal_text(differences)))
    return tuple(found)


def _planned_manifest(job: Job, registry: Registry) -> dict[str, Any]:
    """The parts of a run's manifest that are known before its engine starts."""
    argv = None
    if job.settings.launch.name not in EMULATING:
        with suppress(ServebenchError):
            argv = list(engine_command(job.settings, registry).argv)
    return {
        **{"study_id": "", "overrides": job.overrides, "config": job.resolved},
        **{"command": {"argv": argv}, "machine": capture_cores()},
    }


def study_conclusions(path: Path) -> Conclusions:
    """Return what a stored study says. Raises StoreError, OSError."""
    study = read.load_study(path)
    options = Options(name=read.command_words(path), words=study.words, limits=True)
    return conclude(study.runs, [study], options, earlier=read.runs_beside(study))
