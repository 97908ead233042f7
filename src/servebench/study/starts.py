"""How many starts `study.starts=auto` takes: as many as a verdict needs, in a time that is said before, or one of each."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from servebench.analysis.decided import same_question
from servebench.analysis.setups import circumstances, each_starts, runs_alike
from servebench.analysis.verdict.looks import another_start_pays
from servebench.analysis.verdict.model import THROUGHPUT
from servebench.config import Job, settings_from_dict
from servebench.contracts.emulation import EMULATING
from servebench.contracts.events import StartsChosen
from servebench.contracts.precision import seconds_of
from servebench.contracts.stored import RunData
from servebench.registry.registry import Registry
from servebench.run.session import RunTask
from servebench.store.layout import outputs_folder
from servebench.store.manifest import capture_machine
from servebench.study.durations import StartTime, earlier_runs, seconds_of_each, start_time, start_times
from servebench.study.outlook import plan_of

LEAST_S, TIMES = 300.0, 3.0
"""A study may take so long for a verdict, or so many times as long as one start of each, if that is more."""
SIMULATED_STARTS = 8
"""The most starts of a simulated engine: equal ones that differ by 1% from start to start are known to be equal before."""
LONG_START_S = 60.0
"""From here on a start is weighed against longer points."""


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
        and all(any(same_question(a.resolved, b.resolved) for b in jobs if b is not a) for a in jobs)
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
