"""How long engines take to start and to be loaded, before a study begins: by earlier runs of its outputs folder, or as usual."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

from servebench.analysis.setups import LEVEL_KEYS, circumstances
from servebench.config import Job
from servebench.contracts.point_id import PointId
from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import RunData, mapping
from servebench.contracts.weights import weights_gb
from servebench.load.plan.levels import PlannedPoint, plan_levels
from servebench.registry.registry import registry
from servebench.store.manifest import capture_machine
from servebench.store.overview import listed_rows
from servebench.store.studies import load_newest
from servebench.util.units import NS_PER_S

STUDIES_MAX, RUNS_MAX = 200, 20
"""Of how many of the newest studies runs are read, and of how many runs like a job the times: thousands would take seconds."""
FACTS = ("engine", "launch", "model", "gpu")
"""What makes cold starts alike."""
TURNS = 2
"""Engines that take turns in slices share the time of their levels; most studies have two."""


@dataclass(frozen=True, kw_only=True)
class StartTime:
    """How long an engine takes to start and the load takes after that, in seconds (None: unknown); `earlier`: by earlier runs."""

    start_s: float
    load_s: float | None
    earlier: bool = False


def earlier_runs(outputs: Path) -> list[RunData]:
    """Return the runs of the newest studies of an outputs folder, the newest last."""
    return [run for study in load_newest(outputs, STUDIES_MAX, listed_rows)[0] for run in study.runs]


def start_time(job: Job, earlier: Iterable[RunData], levels: Sequence[PlannedPoint] | None = None) -> StartTime:
    """Return how long one start of a job's engine takes, and the load of these levels (None: those of one start)."""
    names = [mapping(job.resolved.get(name)).get("name") for name in FACTS]
    of_engine = [run for run in earlier if [run.fact(name) for name in FACTS] == names]
    known = [float(one) for run in of_engine if isinstance(one := _cold_start(run).get("seconds"), (int, float))]
    here = circumstances(job.resolved, capture_machine(), LEVEL_KEYS)
    alike = [run for run in of_engine if circumstances(run.config, run.manifest.get("machine"), LEVEL_KEYS) == here][
        -RUNS_MAX:
    ]
    load = job.settings.load
    if load.search is not None:
        totals = [
            sum(map(sum, found.values())) / starts for run in alike for found, starts in [_measured(run)] if found
        ]
        load_s = median(totals) if totals else load.search.budget_s
        return StartTime(start_s=median(known) if known else usual_start_s(job), load_s=load_s, earlier=bool(totals))
    seconds: dict[str, list[float]] = {}
    for run in alike:
        for level, own in _measured(run)[0].items():
            seconds.setdefault(level, []).extend(own)
    listed = plan_levels(load, job.settings.workload.seed) if levels is None else levels
    # of levels up to where throughput stops growing, earlier runs have those that were measured
    unmeasured = 0.0 if seconds and load.while_growing else None
    each = [
        median(seconds[one.id.level]) if one.id.level in seconds else planned_s(one) if unmeasured is None else 0.0
        for one in listed
    ]
    return StartTime(
        start_s=median(known) if known else usual_start_s(job),
        load_s=None if None in each else sum(one or 0.0 for one in each),
        earlier=bool(known) and all(one.id.level in seconds or unmeasured is not None for one in listed),
    )


def seconds_of_each(times: Sequence[StartTime]) -> float | None:
    """Return how long one start of each takes with its load; None where that of one is unknown."""
    loads = [one.load_s for one in times]
    return None if None in loads else sum(one.start_s + (one.load_s or 0.0) for one in times)


def planned_s(level: PlannedPoint) -> float | None:
    """Return how long a level takes at most; None where requests end it."""
    return level.duration_s if level.requests is None else None


def usual_start_s(job: Job) -> float:
    """Return how long a start of a job's engine usually takes: as its emulation does, which has the order of magnitude of large
    GPUs; 0 for a running server."""
    settings = job.settings
    launcher = registry().launcher(settings.launch.name)
    size_gb = weights_gb(asdict(settings.model), asdict(settings.engine)) or 0.0
    stages = registry().engine(settings.engine.name).emulation.loading if launcher.local else ()
    scale = getattr(settings.launch, "time_scale", 1.0)
    return float(scale * sum(one.seconds + one.seconds_per_gb * size_gb for one in stages))


def _cold_start(run: RunData) -> Mapping[str, object]:
    return mapping(run.manifest.get("cold_start"))


def _measured(run: RunData) -> tuple[dict[str, list[float]], int]:
    """Return how long the levels of a run took, each from the end of the one before it, or the start of the engine, to the end of
    its window; and how many starts they had."""
    starts: dict[str, list[PointRow]] = {}
    for row in run.point_rows:
        if row.window_ns is not None:
            starts.setdefault(row.start_id or "", []).append(row)
    found: dict[str, list[float]] = {}
    cold = _cold_start(run)
    for start, rows in starts.items():
        before: float | None = None
        # an engine that was running before, for another run, has no beginning here
        with suppress(ValueError):
            cold_s = cold.get("seconds")
            if not cold.get("shared") and isinstance(cold_s, (int, float)):
                before = datetime.fromisoformat(start).timestamp() + cold_s
        for row in sorted(rows, key=lambda one: one.window_ns or ()):
            began, ended = (one / NS_PER_S for one in row.window_ns or (0, 0))
            taken = ended - (began if before is None else min(before, began))
            found.setdefault(PointId.parse(row.point).level, []).append(taken / (TURNS if row.slice_group else 1))
            before = ended
    return found, len(starts)
