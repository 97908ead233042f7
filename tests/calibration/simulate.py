"""Runs on simulated engines, in memory: the code of real runs, without folders and without the command line."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from servebench.analysis.warnings.catalog import is_usable
from servebench.config import Job, compose_jobs
from servebench.contracts.emulation import Variation
from servebench.contracts.events import Events
from servebench.contracts.exchange import StopReason
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Point, Record
from servebench.contracts.settings import RunSettings
from servebench.contracts.stored import RunData, mapping
from servebench.contracts.telemetry import Reading
from servebench.engine.launchers.emulated import SimulatedEngine, SimulatedLauncher
from servebench.engine.pool import EngineLease, EnginePool, launch_context
from servebench.load.plan.levels import PlannedPoint, level_at
from servebench.load.plan.search import SearchAnswer
from servebench.load.plan.source import level_source
from servebench.registry.registry import Registry, registry
from servebench.run.in_turns import measure_next
from servebench.run.measure import measure_level
from servebench.run.session import PromptSource, RunRequest, RunSession, RunTask, open_load
from servebench.run.steps import PhaseStep, Progress, Steps, alone
from servebench.store.layout import StudyFolder
from servebench.store.tables import RecordWriter
from servebench.telemetry.sampler import Telemetry
from servebench.util.units import NS_PER_S
from support.records import requests_frame

NOWHERE = Path("/nonexistent/servebench-calibration")
EPOCH_NS = 1_700_000_000 * NS_PER_S
"""When the first simulated start begins. Starts are a day apart."""
DAY_NS = 86_400 * NS_PER_S

ENGINE = (
    *("engine=vllm", "launch=simulated", "gpu=rtx5090", "model=qwen2.5-7b-instruct", "workload=unique"),
    "workload.output_tokens=64",
    *("load=quick", "load.until=null", "tracking=none", "telemetry.enabled=false"),
)
"""The set-up of the simulated engines, unless a cell says otherwise: steps of about 10 ms."""


USUAL = Variation()
"""The deviations of `launch=simulated` by default."""
STEADY = replace(USUAL, start_sd=0.0)
"""Without a spread between starts: what is true of one start is true of the engine."""


@dataclass(frozen=True, kw_only=True)
class Plant:
    """What is simulated: the words of the run's command, and the deviations of its engine."""

    words: tuple[str, ...] = ()
    variation: Variation = USUAL

    def planted(self, **changes: Any) -> Plant:
        """Return it with other deviations."""
        return replace(self, variation=replace(self.variation, **changes))


@dataclass(frozen=True)
class SimulatedRun:
    """A run: its points and the records of each, in order, and the answer of its search if it was one."""

    points: tuple[Point, ...]
    records: tuple[tuple[Record, ...], ...]
    search: SearchAnswer | None = None

    @property
    def rows(self) -> list[PointRow]:
        """The rows as they would be stored."""
        return [point.judged_row for point in self.points]


class _Collected(RecordWriter):
    """Keeps the records of a run in memory."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def append(self, records: Sequence[Record]) -> None:
        """Keep a batch."""
        self.records += records

    def taken(self) -> tuple[Record, ...]:
        """Return the measured records since the last call."""
        found = tuple(record for record in self.records if record.measured)
        self.records.clear()
        return found

    def append_telemetry(self, readings: Sequence[Reading], *, run_id: str, point: str) -> None:
        """Keep nothing: what points say of it is in their rows."""

    def close(self) -> None:
        """Do nothing."""


@lru_cache(maxsize=64)
def job_of(words: tuple[str, ...]) -> Job:
    """Return the job of a simulated run; `words` win over those of ENGINE. Raises ConfigError."""
    groups = {word.partition("=")[0] for word in words}
    own = [word for word in ENGINE if word.partition("=")[0] not in groups]
    return compose_jobs([*own, *words], _plugins())[0]


@lru_cache(maxsize=1)
def _plugins() -> Registry:
    return registry()


def simulate_run(plant: Plant, key: str, *, seed: int = 0, starts: int = 1) -> SimulatedRun:
    """Simulate all levels of a run, on each of `starts` starts.

    `key` seeds everything random in the engine and the client, `seed` the requests and their arrival times: two runs that
    are compared share it.
    """
    runs = [_simulate(plant, key, seed, start)[0] for start in range(starts)]
    return SimulatedRun(
        tuple(point for run in runs for point in run.points), tuple(some for run in runs for some in run.records)
    )


def _simulate(
    plant: Plant, key: str, seed: int, start: int, levels: Collection[str] | None = None
) -> tuple[SimulatedRun, SimulatedEngine]:
    """Return the levels with these names, or all, measured on one start, and the engine."""
    settings = _seeded(plant, seed)
    session, writer = open_simulated(settings, plant, f"{key}/{start}", start)
    points: list[Point] = []
    records: list[tuple[Record, ...]] = []
    for level in _listed(settings, start):
        if levels is None or level.id.level in levels:
            points.append(_measure(session, level))
            records.append(writer.taken())
    assert isinstance(session.lease.running, SimulatedEngine)
    return SimulatedRun(tuple(points), tuple(records)), session.lease.running


def simulate_in_turns(plants: Sequence[Plant], key: str, *, seed: int, starts: int = 1) -> list[SimulatedRun]:
    """Simulate a run of each plant, whose starts are alive at once and take turns slice by slice."""
    points: list[list[Point]] = [[] for _ in plants]
    records: list[list[tuple[Record, ...]]] = [[] for _ in plants]

    def levels(number: int, start: int) -> Steps[None]:
        settings = _seeded(plants[number], seed)
        session, writer = open_simulated(settings, plants[number], f"{key}/{number}/{start}", start)
        for level in _listed(settings, start):
            point, _ = yield from measure_level(session, level)
            points[number].append(point)
            records[number].append(writer.taken())

    for start in range(starts):
        runs = [Progress(levels(number, start)) for number in range(len(plants))]
        for one in runs:
            while isinstance(one.step, PhaseStep):
                one.go_alone()
        while alive := [one for one in runs if one.step is not None]:
            measure_next(alive)
    return [SimulatedRun(tuple(own), tuple(of)) for own, of in zip(points, records, strict=True)]


def simulate_start(
    plant: Plant, key: str, *, seed: int, start: int, levels: Collection[str]
) -> tuple[SimulatedRun, float]:
    """Simulate the levels with these names on one start of a run, as `simulate_run` does; return it and the seconds for which
    the engine ran, its cold start included."""
    run, engine = _simulate(plant, key, seed, start, levels)
    return run, (engine.ended_ns - engine.started_ns) / NS_PER_S + cold_start_s(plant)


def cold_start_s(plant: Plant) -> float:
    """Return how long the simulated engine takes to start, in seconds."""
    settings = job_of(plant.words).settings
    context = launch_context(settings, NOWHERE, lambda _: 1)
    return SimulatedLauncher().describe(_plugins().engine(settings.engine.name), context, settings.launch).ready_s


def simulate_search(plant: Plant, key: str, *, seed: int = 0) -> SimulatedRun:
    """Simulate the search of a run, on one start."""
    settings = _seeded(plant, seed)
    source = level_source(settings.load, settings.slo, settings.workload.seed)
    session, writer = open_simulated(settings, plant, key, 0)
    points: list[Point] = []
    while (level := source.next_level()) is not None:
        point = _measure(session, level)
        source.add_point(level, point, usable=is_usable(point.codes))
        points.append(point)
        writer.taken()
    return SimulatedRun(tuple(points), (), source.answer(interrupted=False))


def _seeded(plant: Plant, seed: int) -> RunSettings:
    settings = job_of(plant.words).settings
    return replace(settings, workload=replace(settings.workload, seed=seed))


def run_data(run: SimulatedRun, plant: Plant, name: str) -> RunData:
    """Return a simulated run in the form in which stored runs are analysed."""
    job = job_of(plant.words)
    config = {
        **job.resolved,
        "launch": {**mapping(job.resolved.get("launch")), "network_ms": plant.variation.network_ms},
    }
    frames = {"requests": requests_frame([record for of_point in run.records for record in of_point])}
    return RunData(
        study_id="calibration",
        name=name,
        path=NOWHERE / name,
        state={"status": "finished"},
        manifest={"config": config, "engine_version": "simulated", "overrides": list(job.overrides)},
        rows=lambda: [point.judged_row for point in run.points],
        tables=lambda table, *_: frames.get(table, requests_frame([]).iloc[0:0]),
    )


def _listed(settings: RunSettings, start: int) -> Iterable[PlannedPoint]:
    load = settings.load
    of = "concurrency" if load.concurrency else "rate"
    for value in load.concurrency or load.rate or ():
        for repeat in range(start * load.repeats, (start + 1) * load.repeats):
            yield level_at(load, value, repeat, of=of)


def _measure(session: RunSession, level: PlannedPoint) -> Point:
    """Measure a level. Raises KeyboardInterrupt where a run would store what it has and end."""
    point, evidence = alone(measure_level(session, level))
    if evidence.report.stopped is StopReason.INTERRUPT:
        raise KeyboardInterrupt
    return point


def open_simulated(settings: RunSettings, plant: Plant, key: str, start: int) -> tuple[RunSession, _Collected]:
    """Return a session on a fresh start of the simulated engine, and where its records go."""
    engine = _plugins().engine(settings.engine.name)
    context = launch_context(settings, NOWHERE, lambda _: 1)
    launched = SimulatedLauncher().describe(engine, context, settings.launch)
    running: SimulatedEngine = replace(
        launched, key=key, variation=plant.variation, started_ns=EPOCH_NS + start * DAY_NS, ready_s=0.0, phases=()
    )
    writer = _Collected()
    assert running.tokenizer is not None
    workload = _plugins().find("workload", settings.workload.name)(settings.workload)
    request = RunRequest(
        study=StudyFolder(NOWHERE),
        words=(),
        events=Events(),
        pool=EnginePool(_plugins(), Events(), NOWHERE),
        registry=_plugins(),
        machine={"gpus": ()},
        task=RunTask("run", Job((), settings, {})),
    )
    lease = EngineLease(
        engine=engine,
        launcher=SimulatedLauncher(),
        running=running,
        context=context,
        uses=0,
        owner_log=request.folder.engine_log,
    )
    session = RunSession(
        request=request,
        lease=lease,
        load=open_load(request, lease),
        prompts=PromptSource(workload, running.tokenizer, settings),
        tokenizer=running.tokenizer,
        writer=writer,
        ledger=[],
        telemetry=Telemetry(settings.telemetry),
    )
    return session, writer
