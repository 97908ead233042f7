"""A running engine and everything that the points of one run share."""

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servebench.config import Job
from servebench.contracts.events import Doing, Events
from servebench.contracts.exchange import ClientFloor
from servebench.contracts.request import Tokenizer
from servebench.contracts.settings import RunSettings
from servebench.contracts.telemetry import Subject
from servebench.contracts.turns import Turn
from servebench.engine.pool import EngineLease, EnginePool
from servebench.engine.tokenize import engine_tokenizer
from servebench.registry.registry import Registry
from servebench.run.live import LiveLoad
from servebench.run.outcome import Entry
from servebench.run.prior import PriorProgress
from servebench.run.prompts import PromptSource
from servebench.run.scorers import SelectedScorers
from servebench.run.simulated import SimulatedLoad
from servebench.store.layout import RunFolder, StudyFolder
from servebench.store.tables import RecordWriter
from servebench.telemetry.sampler import Telemetry
from servebench.util.clock import utc_time
from servebench.util.units import NS_PER_S


@dataclass(frozen=True)
class RunTask:
    """A run to execute, and what earlier attempts left of it: its points are kept unchanged, and each attempt at a point has its
    own prompts and name."""

    name: str
    job: Job
    earlier: PriorProgress = field(default_factory=PriorProgress)


@dataclass(frozen=True)
class RunContext:
    """What all runs in one process share. `facts` are added to each manifest."""

    study: StudyFolder
    words: Sequence[str]
    events: Events
    pool: EnginePool
    registry: Registry
    machine: Mapping[str, Any]
    floor: ClientFloor | None = None
    """Precision of the client on this machine, if it was measured."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    prompts: Path | None = None
    """Where the runs keep the prompts that they share; null if there is one run."""
    waited_s: dict[Hashable, float] = field(default_factory=dict)
    """For how long each start has waited for a quiet machine."""


@dataclass(frozen=True, kw_only=True)
class RunRequest(RunContext):
    """A run to execute, or a turn of it, with its scorers."""

    task: RunTask
    turn: Turn = field(default_factory=Turn)
    quality: SelectedScorers = field(default_factory=SelectedScorers)

    @property
    def run_id(self) -> str:
        """`study/run`."""
        return f"{self.study.name}/{self.task.name}"

    @property
    def folder(self) -> RunFolder:
        """The folder of the run."""
        return self.study.run(self.task.name)

    @property
    def settings(self) -> RunSettings:
        """The settings of the run."""
        return self.task.job.settings


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
        return self.request.settings

    @property
    def server_started_ns(self) -> int | None:
        """When servebench started the server; None for one that it did not start."""
        return self.lease.running.started_ns if self.lease.launcher.local else None

    @property
    def age_s(self) -> float | None:
        """How long ago the server was started, by the clock of its load; None for one that servebench did not start."""
        if isinstance(self.load, SimulatedLoad):
            return self.load.now_s
        return None if self.server_started_ns is None else (time.time_ns() - self.server_started_ns) / NS_PER_S

    @property
    def start_id(self) -> str:
        """The start of the engine: when servebench started it, or `attached` for a server that it did not start."""
        return utc_time(self.lease.running.started_ns) if self.lease.launcher.local else "attached"


def open_telemetry(request: RunRequest, lease: EngineLease) -> Telemetry:
    """Open the telemetry sources that work for this engine. A simulated engine has none."""
    settings = request.settings
    if lease.launcher.simulated:
        return Telemetry(settings.telemetry)
    subject = Subject(engine=lease.engine, running=lease.running, gpu=settings.gpu)
    return Telemetry.open(request.registry.kinds["telemetry"].values(), subject, settings.telemetry)


def open_load(request: RunRequest, lease: EngineLease) -> LiveLoad | SimulatedLoad:
    """Return what sends the load of a run: processes to a server, or a client on the virtual clock of a simulated engine."""
    settings = request.settings
    if lease.launcher.simulated:
        return SimulatedLoad(lease.running, settings.telemetry.interval_s if settings.telemetry.enabled else None)
    return LiveLoad(lease=lease, settings=settings, folder=request.folder, events=request.events)


def open_session(
    request: RunRequest, lease: EngineLease, *, writer: RecordWriter, ledger: list[Entry], telemetry: Telemetry
) -> RunSession:
    """Return the session of a run on a leased engine, with workload and tokenizer loaded. Raises ServebenchError."""
    settings = request.settings
    request.events(Doing("loading_prompts"))
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
