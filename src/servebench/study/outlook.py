"""What a study will do: how long its engines take, how many starts of each it takes; and what it says at its end."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from servebench.analysis.conclude import Conclusions, Options, conclude
from servebench.analysis.decided import same_question
from servebench.analysis.fairness import compare_manifests, varied_keys
from servebench.analysis.setups import LEVEL_KEYS, circumstances, each_starts, runs_alike
from servebench.analysis.verdict.looks import another_start_pays
from servebench.analysis.verdict.model import THROUGHPUT
from servebench.config import Job, settings_from_dict
from servebench.contracts.age import seconds_of_age
from servebench.contracts.emulation import EMULATING, imitated
from servebench.contracts.events import PlanReady, StartsChosen, StudyTime, TunePlanned, UnequalRuns
from servebench.contracts.labels import labels_of, source_of_job
from servebench.contracts.point_id import PointId
from servebench.contracts.point_row import PointRow
from servebench.contracts.precision import seconds_of
from servebench.contracts.stored import RunData, is_number, mapping
from servebench.contracts.tuning import TRIALS_MIN
from servebench.contracts.weights import weights_gb
from servebench.load.plan.levels import PlannedPoint, plan_levels
from servebench.load.plan.slices import AddedStarts, seconds_in_slices
from servebench.registry.registry import Registry, registry
from servebench.report.wording.comparison import unequal_text
from servebench.run.fits import memory_note
from servebench.run.session import RunTask
from servebench.store import studies as read
from servebench.store.layout import outputs_folder
from servebench.store.manifest import capture_cores, capture_machine
from servebench.store.overview import listed_rows
from servebench.study.at_once import places_at_once, questions
from servebench.study.show_commands import engine_command
from servebench.util.errors import ServebenchError
from servebench.util.gpus import find_gpus
from servebench.util.units import MS_PER_S, NS_PER_S

STUDIES_MAX, RUNS_MAX = 200, 20
"""Of how many of the newest studies runs are read, and of how many runs like a job the times: thousands would take seconds."""
FACTS = ("engine", "launch", "model", "gpu")
"""What makes cold starts alike."""
TURNS = 2
"""Engines that take turns in slices share the time of their levels; most studies have two."""
LEAST_S, TIMES = 300.0, 3.0
"""A study may take so long for a verdict, or so many times as long as one start of each, if that is more."""
SIMULATED_STARTS = 8
"""The most starts of a simulated engine: equal ones that differ by 1% from start to start are known to be equal before."""
ANSWER_S = 0.6
"""How long an answer takes where nothing is known: four levels of real llama.cpp in slices then take 85 s, as they do."""
LONG_START_S = 60.0
"""From here on a start is weighed against longer points."""


@dataclass(frozen=True)
class StartTime:
    """How long an engine takes to start and the load takes after that, in seconds (None: unknown); `earlier`: by earlier runs."""

    start_s: float
    load_s: float | None
    earlier: bool = False


def earlier_runs(outputs: Path) -> list[RunData]:
    """Return the runs of the newest studies of an outputs folder, the newest last."""
    return [run for study in read.load_newest(outputs, STUDIES_MAX, listed_rows)[0] for run in study.runs]


def start_times(jobs: Sequence[Job], earlier: Iterable[RunData], *, several: bool = False) -> list[StartTime]:
    """Return how long one start of each job's engine takes, and its load; `several`: each is started several times."""
    known, numbered = list(earlier), {str(number): job for number, job in enumerate(jobs)}
    turns = places_at_once(numbered, registry(), several=several)
    return [start_time(job, known, in_turns=name in turns) for name, job in numbered.items()]


def start_time(job: Job, earlier: Iterable[RunData], *, in_turns: bool = False) -> StartTime:
    """Return how long one start of a job's engine takes, and its load; `in_turns`: slice by slice with that of others."""
    names = [mapping(job.resolved.get(name)).get("name") for name in FACTS]
    of_engine = [run for run in earlier if [run.fact(name) for name in FACTS] == names]
    known = [one for run in of_engine if is_number(one := mapping(run.manifest.get("cold_start")).get("seconds"))]
    start_s, load = median(known) if known else usual_start_s(job), job.settings.load
    start_s += seconds_of_age(job.settings.engine.age) or 0.0
    here = circumstances(job.resolved, capture_machine(), LEVEL_KEYS)
    alike = [one for one in of_engine if circumstances(one.config, one.manifest.get("machine"), LEVEL_KEYS) == here]
    seconds, totals = defaultdict[str, list[float]](list), []
    for found, starts in (_measured(one, in_turns=in_turns) for one in alike[-RUNS_MAX:]):
        totals += [sum(one for _, one in found) / starts] if starts else []
        for level, one in found:
            seconds[level].append(one)
    if load.search is not None:
        return StartTime(start_s, median(totals) if totals else load.search.budget_s, bool(totals))
    levels = plan_levels(load, job.settings.workload.seed)
    if totals and load.while_growing:
        # earlier runs have the levels up to where throughput stopped growing
        levels = tuple(one for one in levels if one.id.level in seconds)
    study = job.settings.study
    if study.starts == "auto":
        study = replace(study, until=study.until or "decided")
    answers_s = _answers_s(alike) if in_turns else None
    added = AddedStarts.of(replace(job.settings, study=study), start_s)
    each = [
        median(seconds[one.id.level]) if one.id.level in seconds else _planned_s(one, answers_s, added)
        for one in levels
    ]
    load_s = None if None in each else sum(one or 0.0 for one in each)
    return StartTime(start_s, load_s, bool(known) and all(one.id.level in seconds for one in levels))


def seconds_of_each(times: Sequence[StartTime]) -> float | None:
    """Return how long one start of each takes with its load; None where that of one is unknown."""
    return None if None in [one.load_s for one in times] else sum(one.start_s + (one.load_s or 0.0) for one in times)


def usual_start_s(job: Job) -> float:
    """Return how long a start of a job's engine usually takes: as its emulation does, which has the order of magnitude of large
    GPUs; 0 for a running server."""
    settings = job.settings
    size_gb = weights_gb(asdict(settings.model), asdict(settings.engine)) or 0.0
    local = registry().launcher(settings.launch.name).local
    stages = registry().engine(settings.engine.name).emulation.loading if local else ()
    scale = getattr(settings.launch, "time_scale", 1.0)
    return float(scale * sum(one.seconds + one.seconds_per_gb * size_gb for one in stages))


def _planned_s(level: PlannedPoint, answers_s: Mapping[str, float] | None, added: AddedStarts | None) -> float | None:
    """Return how long a level of a fixed time takes; with `answers_s`, how long an answer takes at each level, in slices."""
    point_s = None if level.requests is not None else level.duration_s
    if point_s is None or answers_s is None:
        return point_s
    # slices of a fixed time do not depend on it much
    answer_s = answers_s.get(level.id.level, ANSWER_S if added is not None and level.targets else 0.0)
    added = replace(added, users=level.concurrency) if added is not None else None
    # of most levels each stream has one (`warmup_in_turns`)
    warm_up_s = answer_s if level.warmup_requests else 0.0
    return warm_up_s + seconds_in_slices(point_s, answer_s, until=bool(level.targets), added=added)


def _answers_s(runs: Iterable[RunData]) -> dict[str, float]:
    """Return how long an answer took at each level, in the newest of some runs that has it."""
    rows = (row for run in runs for row in run.point_rows if row.e2e_ms_mean is not None)
    return {PointId.parse(row.point).level: (row.e2e_ms_mean or 0.0) / MS_PER_S for row in rows}


def _measured(run: RunData, *, in_turns: bool) -> tuple[list[tuple[str, float]], int]:
    """Return how long the levels of a run took that were measured in turns, or were not: each from the end of the one before it,
    or the start of the engine, to the end of its window; and how many starts they had."""
    starts, found = defaultdict[str | None, list[PointRow]](list), []
    for row in run.point_rows:
        if row.window_ns is not None and bool(row.slice_group) == in_turns:
            starts[row.start_id].append(row)
    cold = mapping(run.manifest.get("cold_start"))
    for start, rows in starts.items():
        before = float("inf")
        # an engine that was running before, for another run or to age, has no beginning here, nor has one of a killed run
        with suppress(KeyError, ValueError, TypeError):
            if not cold.get("shared") and not mapping(run.config.get("engine")).get("age"):
                before = datetime.fromisoformat(str(start)).timestamp() + cold["seconds"]
        for row in sorted(rows, key=lambda one: one.window_ns or (0, 0)):
            began, ended = (one / NS_PER_S for one in row.window_ns or (0, 0))
            taken = ended - min(before, began)
            found.append((PointId.parse(row.point).level, taken / (TURNS if row.slice_group else 1)))
            before = ended
    return found, len(starts)


def tune_planned(job: Job, budget_s: float | None, earlier: Sequence[RunData] = ()) -> TunePlanned:
    """Return what a verdict of a tune takes at least, by the stock job of its engine and earlier runs."""
    time, cost_usd = start_time(job, earlier), _cost_usd([job], budget_s)
    load_s = time.load_s and time.load_s / job.settings.load.repeats
    return TunePlanned(starts=TRIALS_MIN, start_s=time.start_s, load_s=load_s, budget_s=budget_s, cost_usd=cost_usd)


def plan_of(
    tasks: Sequence[RunTask], registry: Registry, starts: StartsChosen | None = None, earlier: Sequence[RunData] = ()
) -> PlanReady:
    """Return what these tasks will do, and of which the difference is likely at most; `starts` is what
    `study.starts=auto` has chosen, and `earlier` runs say how long it takes."""
    sources = [source_of_job(task.name, "", task.job.overrides, task.job.resolved) for task in tasks]
    labels = {name: label.text for name, label in labels_of(sources).items()}
    chosen = list(dict.fromkeys(word.lstrip("+") for task in tasks for word in task.job.by_machine))
    drivers = Counter(f"{gpu.name} (driver {gpu.driver})" for gpu in (find_gpus() if chosen else ()))
    real = [one for one in (task.job.settings for task in tasks) if not registry.launcher(one.launch.name).emulated]
    plan = PlanReady(
        labels=labels,
        unequal=_unequal(tasks, labels, registry),
        starts=starts,
        gpus=[f"{number} x {name}" for name, number in drivers.items()],
        by_machine=chosen,
        notes=[*dict.fromkeys(filter(None, map(memory_note, real))), *_swept_levels([task.job for task in tasks])],
        imitated=imitated(task.job.settings.launch.name for task in tasks),
    )
    return _with_time(plan, tasks, start_times([task.job for task in tasks], earlier)) if tasks else plan


def _swept_levels(jobs: Sequence[Job]) -> list[str]:
    """Return a note for levels of load that are runs of their own: whatever else the loads have, each is there with several."""
    loads = [job.settings.load for job in jobs]
    kinds = Counter(
        repr(replace(one, concurrency=None, rate=None)) for one in {repr(one): one for one in loads}.values()
    )
    found = []
    for key, values in (("concurrency", [one.concurrency for one in loads]), ("rate", [one.rate for one in loads])):
        swept = dict.fromkeys(tuple(one or ()) for one in values)
        if kinds and min(kinds.values()) > 1 and all(len(one) == 1 for one in swept):
            levels = ",".join(f"{level:g}" for (level,) in swept)
            found.append(
                f"load.{key}={levels} makes a run of each level; with 'load.{key}=[{levels}]' they are levels of one run, "
                "which share starts and are judged together"
            )
    return found


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


def with_starts(jobs: Sequence[Job], registry: Registry) -> tuple[Sequence[Job], StartsChosen | None]:
    """Return the jobs of a new study as `study.starts=auto` has them measured, and what it has chosen; None where there is
    nothing to choose: what runs differ by is likely at most, or engines cannot be started again."""
    if not _may_decide(jobs, registry):
        return jobs, None
    chosen = StartsChosen(most=SIMULATED_STARTS)
    if not all(registry.launcher(job.settings.launch.name).simulated for job in jobs):
        chosen = choose_starts(jobs, earlier_runs(outputs_folder(jobs[0].settings.study.dir)))
    if chosen.budget_s is None and chosen.most is None:
        return jobs, chosen
    own = {"until": "decided", "starts": chosen.most or "auto"} | ({"slices": "never"} if chosen.alone else {})
    plain = [{**job.resolved, "study": {**job.resolved["study"], **own}} for job in jobs]
    found = [settings_from_dict(one, registry) for one in plain]
    return [replace(job, settings=a, resolved=b) for job, a, b in zip(jobs, found, plain, strict=True)], chosen


def _may_decide(jobs: Sequence[Job], registry: Registry) -> bool:
    settings = [job.settings for job in jobs]
    return (
        len(jobs) > 1
        and jobs[0].launcher is None
        and all(one.study.starts == "auto" and one.study.until is None and one.load.search is None for one in settings)
        and len({(one.study.margin, one.study.budget, one.study.metrics) for one in settings}) == 1
        and all(registry.launcher(one.launch.name).local for one in settings)
        and all(len(group) > 1 for group in questions(jobs))
        and not plan_of([RunTask(str(number), job) for number, job in enumerate(jobs)], registry).unequal
    )


def choose_starts(jobs: Sequence[Job], earlier: Sequence[RunData]) -> StartsChosen:
    """Return how the runs of a study are measured, by what earlier runs took."""
    study = jobs[0].settings.study
    in_turns_s, alone_s = (seconds_of_each(start_times(jobs, earlier, several=one)) for one in (True, False))
    most_s = seconds_of("study.budget", study.budget)
    alone = (
        study.slices == "auto"
        and in_turns_s is not None
        and alone_s is not None
        and 2 * in_turns_s > most_s >= 2 * alone_s
    )
    each_s = alone_s if alone else in_turns_s
    chosen = replace(weigh_starts(jobs, earlier), each_s=each_s, alone=alone)
    if not chosen.pays:
        return replace(chosen, alone=False)
    if each_s is not None and 2 * each_s > most_s:
        return StartsChosen(each_s=each_s, limit=str(study.budget))
    return replace(chosen, budget_s=min(most_s, max(LEAST_S, TIMES * (each_s or 0.0))))


def weigh_starts(jobs: Iterable[Job], earlier: Sequence[RunData]) -> StartsChosen:
    """Return the longest start of the jobs' engines, if it takes minutes, by earlier runs of these engines and models, and
    whether another one pays."""
    real = [(job, start_time(job, earlier)) for job in jobs if job.settings.launch.name not in EMULATING]
    job, time = max(real, key=lambda one: one[1].start_s, default=(None, StartTime(0.0, None)))
    if job is None or time.start_s < LONG_START_S:
        return StartsChosen()
    alike = runs_alike({circumstances(job.resolved, capture_machine())}, earlier)
    known = each_starts(alike).get(THROUGHPUT.name, ())
    pays = time.load_s is None or another_start_pays(time.start_s, time.load_s, known)
    return StartsChosen(engine=job.chosen("engine"), start_s=time.start_s, load_s=time.load_s, pays=pays)


def study_conclusions(path: Path) -> Conclusions:
    """Return what a stored study says. Raises StoreError, OSError."""
    study = read.load_study(path)
    options = Options(name=read.command_words(path), words=study.words, limits=True)
    return conclude(study.runs, [study], options, earlier=read.runs_beside(study))
