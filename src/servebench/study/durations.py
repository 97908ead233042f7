"""How long engines take to start and to be loaded, before a study begins: by earlier runs of its outputs folder, or as usual."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

from servebench.analysis.setups import LEVEL_KEYS, circumstances
from servebench.config import Job
from servebench.contracts.age import seconds_of_age
from servebench.contracts.point_id import PointId
from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import RunData, is_number, mapping
from servebench.contracts.weights import weights_gb
from servebench.load.plan.levels import plan_levels
from servebench.load.plan.slices import seconds_in_slices
from servebench.registry.registry import registry
from servebench.store.manifest import capture_machine
from servebench.store.overview import listed_rows
from servebench.store.studies import load_newest
from servebench.study.at_once import places_at_once
from servebench.util.units import MS_PER_S, NS_PER_S

STUDIES_MAX, RUNS_MAX = 200, 20
"""Of how many of the newest studies runs are read, and of how many runs like a job the times: thousands would take seconds."""
FACTS = ("engine", "launch", "model", "gpu")
"""What makes cold starts alike."""
TURNS = 2
"""Engines that take turns in slices share the time of their levels; most studies have two."""


@dataclass(frozen=True)
class StartTime:
    """How long an engine takes to start and the load takes after that, in seconds (None: unknown); `earlier`: by earlier runs."""

    start_s: float
    load_s: float | None
    earlier: bool = False


def earlier_runs(outputs: Path) -> list[RunData]:
    """Return the runs of the newest studies of an outputs folder, the newest last."""
    return [run for study in load_newest(outputs, STUDIES_MAX, listed_rows)[0] for run in study.runs]


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
    planned = [None if one.requests is not None else one.duration_s for one in levels]
    if in_turns:
        answers_s = _answers_s(alike)
        planned = [
            None
            if point_s is None
            else seconds_in_slices(point_s, answers_s.get(one.id.level, 0.0), until=bool(one.targets))
            for point_s, one in zip(planned, levels, strict=True)
        ]
    each = [
        median(seconds[level.id.level]) if level.id.level in seconds else one
        for level, one in zip(levels, planned, strict=True)
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
