"""How many starts `study.starts=auto` takes: as many as a verdict needs, in a time that is said before, or one of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from servebench.analysis.decided import same_question
from servebench.analysis.pairing import seconds_per_start
from servebench.analysis.setups import circumstances, each_starts, runs_alike
from servebench.analysis.verdict.foresight import another_start_pays
from servebench.analysis.verdict.model import THROUGHPUT
from servebench.config import Job, settings_from_dict
from servebench.contracts.emulation import EMULATING
from servebench.contracts.events import StartsChosen
from servebench.contracts.precision import seconds_of
from servebench.contracts.stored import RunData, mapping
from servebench.load.plan.levels import plan_levels
from servebench.registry.registry import Registry
from servebench.run.session import RunTask
from servebench.store.layout import outputs_folder
from servebench.store.manifest import capture_machine
from servebench.store.studies import load_outputs
from servebench.study.outlook import load_seconds, plan_of, start_seconds

LEAST_S, TIMES = 300.0, 3.0
"""A study may take so long for a verdict, or so many times as long as one start of each, if that is more."""
SIMULATED_STARTS = 8
"""The most starts of a simulated engine: equal ones that differ by 1% from start to start are known to be equal before."""
LONG_START_S = 60.0
"""From here on a start is weighed against longer points."""
FACTS = ("engine", "launch", "model", "gpu")
"""What makes cold starts alike."""


def with_starts(jobs: Sequence[Job], registry: Registry) -> tuple[Sequence[Job], StartsChosen | None]:
    """Return the jobs of a new study as `study.starts=auto` has them measured, and what it has chosen; None where there is
    nothing to choose: no verdict is possible, or engines cannot be started again."""
    if not _may_decide(jobs, registry):
        return jobs, None
    chosen = StartsChosen(most=SIMULATED_STARTS)
    if not all(registry.launcher(job.settings.launch.name).simulated for job in jobs):
        outputs = outputs_folder(jobs[0].settings.study.dir)
        chosen = choose_starts(jobs, [run for study in load_outputs(outputs) for run in study.runs])
    if chosen.budget_s is None and chosen.most is None:
        return jobs, chosen
    own = {"until": "decided", "starts": chosen.most or "auto"}
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
        and all(any(same_question(a.resolved, b.resolved) for b in jobs if b is not a) for a in jobs)
        and not plan_of([RunTask(str(number), job) for number, job in enumerate(jobs)], registry).unequal
    )


def choose_starts(jobs: Sequence[Job], earlier: Sequence[RunData]) -> StartsChosen:
    """Return how the runs of a study are measured, by what earlier runs took."""
    study, known = jobs[0].settings.study, [_times(job, earlier) for job in jobs]
    loads = [load_s for _, load_s, _ in known if load_s is not None]
    each_s = sum(cold_s for cold_s, *_ in known) + sum(loads) if len(loads) == len(jobs) else None
    budget_s = min(seconds_of("study.budget", study.budget), max(LEAST_S, TIMES * (each_s or 0.0)))
    chosen = replace(weigh_starts(jobs, earlier), each_s=each_s)
    if not chosen.pays:
        return chosen
    if each_s is not None and 2 * each_s > budget_s:
        return StartsChosen(each_s=each_s, limit=str(study.budget))
    return replace(chosen, budget_s=budget_s)


def weigh_starts(jobs: Iterable[Job], earlier: Sequence[RunData]) -> StartsChosen:
    """Return the longest start of the jobs' engines, if it takes minutes, by earlier runs of these engines and models, and
    whether another one pays."""
    real = [(job, *_times(job, earlier)) for job in jobs if job.settings.launch.name not in EMULATING]
    job, cold_s, load_s, alike = max(real, key=lambda one: one[1], default=(None, 0.0, None, []))
    if job is None or cold_s < LONG_START_S:
        return StartsChosen()
    pays = load_s is None or another_start_pays(cold_s, load_s, each_starts(alike).get(THROUGHPUT.name, ()))
    return StartsChosen(engine=job.chosen("engine"), start_s=cold_s, load_s=load_s, pays=pays)


def _times(job: Job, earlier: Sequence[RunData]) -> tuple[float, float | None, list[RunData]]:
    """How long an engine takes to start and its load, by earlier runs or as planned (None: unknown), and the runs like it."""
    names = [mapping(job.resolved.get(name)).get("name") for name in FACTS]
    of_engine = [run for run in earlier if [run.fact(name) for name in FACTS] == names]
    seconds = [mapping(run.manifest.get("cold_start")).get("seconds") for run in of_engine]
    known = [float(one) for one in seconds if isinstance(one, (int, float))]
    cold_s = median(known) if known else start_seconds(job)
    alike = runs_alike({circumstances(job.resolved, capture_machine())}, of_engine)
    load_s = load_seconds(plan_levels(job.settings.load, job.settings.workload.seed))
    taken = next((one for run in alike if (one := seconds_per_start(run)) is not None), None)
    return cold_s, max(0.0, taken - cold_s) if load_s is None and taken is not None else load_s, alike
