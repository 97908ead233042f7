"""A running engine and everything that the points of one run share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servebench.config import Job
from servebench.contracts.events import Activity, Doing, Events
from servebench.contracts.exchange import ClientFloor
from servebench.contracts.point_id import PointId
from servebench.contracts.request import Tokenizer
from servebench.contracts.results import Point
from servebench.contracts.settings import RunSettings
from servebench.contracts.telemetry import Subject
from servebench.contracts.turns import Turn
from servebench.engine.pool import EngineLease, EnginePool
from servebench.engine.tokenize import engine_tokenizer
from servebench.load.ray.nodes import ray_nodes
from servebench.registry.registry import Registry
from servebench.run.ledger import Entry
from servebench.run.live import LiveLoad
from servebench.run.prompts import PromptSource
from servebench.run.scorers import SelectedScorers
from servebench.run.simulated import SimulatedLoad
from servebench.store.layout import RunFolder
from servebench.store.tables import RecordWriter
from servebench.telemetry.sampler import Telemetry
from servebench.util.clock import utc_time


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A run to execute, or a turn of it."""

    job: Job
    run_id: str
    folder: RunFolder
    registry: Registry
    events: Events
    pool: EnginePool
    gpus: tuple[str, ...]
    """The GPUs of this machine, as the driver names them."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """What the machine is, as its manifest has it."""
    done: Mapping[PointId, Point] = field(default_factory=dict)
    """Points that earlier attempts measured, by their first attempt. They are kept unchanged."""
    attempts: Mapping[PointId, int] = field(default_factory=dict)
    """Number of earlier attempts at a point, by its first attempt. Each attempt has its own prompts and name."""
    floor: ClientFloor | None = None
    """Precision of the client on this machine, if it was measured."""
    quality: SelectedScorers = field(default_factory=SelectedScorers)
    """The scorers of the run; empty for `quality=none`."""
    turn: Turn = field(default_factory=Turn)
    """The part of the run to execute now."""
    prompts: Path | None = None
    """Where the study keeps the prompts that its runs share; null if they share none."""


@dataclass(frozen=True, kw_only=True)
class RunSession:
    """A running engine and everything that the points of one run share. Of earlier runs on the same engine (`lease.uses`)
    the prompts may be in its cache."""

    request: RunRequest
    lease: EngineLease
    load: LiveLoad | SimulatedLoad
    prompts: PromptSource
    tokenizer: Tokenizer
    writer: RecordWriter
    ledger: list[Entry]
    telemetry: Telemetry

    @property
    def settings(self) -> RunSettings:
        """The settings of the run."""
        return self.request.job.settings

    @property
    def start_id(self) -> str:
        """The start of the engine: when servebench started it, or `attached` for a server that it did not start."""
        return utc_time(self.lease.running.started_ns) if self.lease.launcher.local else "attached"


def open_telemetry(request: RunRequest, lease: EngineLease) -> Telemetry:
    """Open the telemetry sources that work for this engine. A simulated engine has none."""
    settings = request.job.settings
    if lease.launcher.simulated:
        return Telemetry(settings.telemetry)
    subject = Subject(engine=lease.engine, running=lease.running, gpu=settings.gpu)
    return Telemetry.open(request.registry.kinds["telemetry"].values(), subject, settings.telemetry)


def open_load(request: RunRequest, lease: EngineLease) -> LiveLoad | SimulatedLoad:
    """Return what sends the load of a run: processes to a server, or a client on the virtual clock of a simulated engine."""
    settings = request.job.settings
    if lease.launcher.simulated:
        return SimulatedLoad(lease.running, settings.telemetry.interval_s if settings.telemetry.enabled else None)
    return LiveLoad(
        engine=lease.engine,
        running=lease.running,
        local=lease.launcher.local,
        folder=request.folder,
        events=request.events,
        timeout_s=settings.load.timeout_s,
        api=settings.workload.api,
        nodes=ray_nodes() if settings.load.workers == "ray" else (),
    )


def open_session(
    request: RunRequest, lease: EngineLease, *, writer: RecordWriter, ledger: list[Entry], telemetry: Telemetry
) -> RunSession:
    """Return the session of a run on a leased engine, with workload and tokenizer loaded. Raises ServebenchError."""
    settings = request.job.settings
    request.events(Doing(Activity.LOADING_PROMPTS))
    workload = request.registry.find("workload", settings.workload.name)(settings.workload)
    tokenizer = engine_tokenizer(lease.engine, lease.running, settings.model)
    return RunSession(
        request=request,
        lease=lease,
        load=open_load(request, lease),
        prompts=PromptSource(workload, tokenizer, settings, request.prompts),
        tokenizer=tokenizer,
        writer=writer,
        ledger=ledger,
        telemetry=telemetry,
    )
