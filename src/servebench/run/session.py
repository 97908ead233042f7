"""A running engine and everything that the points of one run share, such as their prompts: those that another run of the study
has sized, else new ones."""

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from servebench.config import Job
from servebench.contracts.events import Doing, Events
from servebench.contracts.exchange import ClientFloor
from servebench.contracts.quality import Scorer
from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import RunSettings
from servebench.contracts.telemetry import Subject
from servebench.contracts.turns import Turn
from servebench.engine.launchers.emulated import SimulatedEngine
from servebench.engine.pool import EngineLease, EnginePool
from servebench.engine.tokenize import engine_tokenizer
from servebench.registry.registry import Registry
from servebench.run.live import LiveLoad
from servebench.run.outcome import Entry
from servebench.run.prior import PriorProgress
from servebench.run.simulated import SimulatedLoad
from servebench.store.layout import RunFolder, StudyFolder
from servebench.store.prompts import SizedPrompts, keep_prompts, prompts_file, read_prompts
from servebench.store.tables import RecordWriter
from servebench.telemetry.sampler import Telemetry
from servebench.util.clock import utc_time
from servebench.util.units import NS_PER_S

SAMPLE = 20
"""How many prompts are counted to find how many tokens of one tokenizer a token of another is."""

SAME_COUNT = 0.02
"""Tokenizers whose counts differ by no more, as a share, are taken for the same."""


@dataclass(frozen=True)
class RunTask:
    """A run to execute, and what earlier attempts left of it: its points are kept unchanged, and each attempt at a point has its
    own prompts and name."""

    name: str
    job: Job
    earlier: PriorProgress = field(default_factory=PriorProgress)


@dataclass(frozen=True, kw_only=True)
class SelectedScorers:
    """The scorers that can run, each with the file of its questions, and why others are left out."""

    scorers: tuple[tuple[Scorer, Path], ...] = ()
    left_out: tuple[str, ...] = ()


class Warmed(NamedTuple):
    """What a warm-up says: its rate, and how long an answer takes; None where it does not."""

    rate_req_s: float | None = None
    answer_s: float | None = None


@dataclass
class Seen:
    """What the starts in one process have shown, for those after them: how long each has waited for a quiet machine, when it was
    found to be quiet (by the monotonic clock), how long the engine of each run goes on to use the CPU after its load, what its
    warm-up at each level said, and how many tokens words have."""

    waited_s: dict[Hashable, float] = field(default_factory=dict)
    quiet_s: dict[Hashable, float] = field(default_factory=dict)
    settle_s: dict[str, float] = field(default_factory=dict)
    warmed: dict[tuple[str, str], Warmed] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)


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
    seen: Seen = field(default_factory=Seen)


@dataclass(frozen=True, kw_only=True)
class RunRequest(RunContext):
    """A run to execute, or a turn of it, with its scorers."""

    task: RunTask
    turn: Turn = field(default_factory=Turn)
    following: RunSettings | None = None
    """Of the run that comes next: if it needs the same engine, the engine keeps running."""
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


@dataclass(frozen=True)
class PromptSource:
    """Sizes the prompts of a run's points; with a study's `folder` it uses those that are stored there, and stores its own."""

    workload: Workload
    tokenizer: Tokenizer
    settings: RunSettings
    folder: Path | None = None

    def prompts(self, count: int, stream: str, *, whole: bool = False) -> SizedPrompts:
        """Return `count` prompts of a stream.

        Where fewer are stored, the others continue them, as long as the stored ones are by this run's tokenizer. `whole`
        streams (a trace) are never continued: they are stored for each number. Raises ConfigError, EngineError, StoreError.
        """
        if self.folder is None:
            return self._sized(count, stream, self.tokenizer)
        name = f"{stream}-of-{count}" if whole else stream
        path = prompts_file(self.folder, self.settings.workload, self.settings.model, name)
        stored = read_prompts(path) or keep_prompts(path, self._sized(count, stream, self.tokenizer))
        ratio = tokens_of(self.tokenizer, stored)
        same = abs(ratio - 1) <= SAME_COUNT
        have = len(stored.requests)
        if have < count:
            scaled = replace(self, tokenizer=self.tokenizer if same else ScaledTokenizer(self.tokenizer, ratio))
            more = scaled.prompts(count - have, f"{stream}-more{have}").requests
            stored = replace(stored, requests=stored.requests + more)
        return SizedPrompts(stored.requests[:count], stored.tokenizer, stored.exact and same)

    def _sized(self, count: int, stream: str, tokenizer: Tokenizer) -> SizedPrompts:
        requests = self.workload.requests(count, stream=stream, tokenizer=tokenizer)
        return SizedPrompts(tuple(requests), tokenizer.name, tokenizer.exact)


def tokens_of(tokenizer: Tokenizer, prompts: SizedPrompts) -> float:
    """Return how many tokens of `tokenizer` a token is by which the prompts were sized; 1 where that is unknown."""
    if not tokenizer.exact:
        return 1.0
    known = [one for one in prompts.requests if one.prompt_tokens and not one.answers][:SAMPLE]
    texts = [text for one in known for text in _texts(one)]
    planned = sum(one.prompt_tokens or 0 for one in known)
    return sum(tokenizer.count(texts)) / planned if planned and texts else 1.0


def _texts(request: Request) -> list[str]:
    return [message.content for message in request.messages or ()] + ([request.prompt] if request.prompt else [])


@dataclass(frozen=True)
class ScaledTokenizer:
    """Counts as the tokenizer that sized the study's first prompts would, from the counts of another: their mean `ratio`."""

    own: Tokenizer
    ratio: float
    exact = False

    @property
    def name(self) -> str:
        """The name of the tokenizer that counts."""
        return f"{self.own.name}, scaled to the study's first prompts"

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the scaled counts, at least 1 for a text that is not empty."""
        return [max(1, round(count / self.ratio)) if count else 0 for count in self.own.count(texts)]

    def truncate(self, text: str, tokens: int) -> str:
        """Return the longest prefix of at most this many scaled tokens."""
        return self.own.truncate(text, max(1, round(tokens * self.ratio)))


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
    if isinstance(lease.running, SimulatedEngine):
        return SimulatedLoad(lease.running, settings.telemetry.interval_s if settings.telemetry.enabled else None)
    return LiveLoad(lease=lease, settings=settings, folder=request.folder, events=request.events)


def open_session(
    request: RunRequest, lease: EngineLease, *, writer: RecordWriter, ledger: list[Entry], telemetry: Telemetry
) -> RunSession:
    """Return the session of a run on a leased engine, with workload and tokenizer loaded. Raises ServebenchError."""
    settings = request.settings
    request.events(Doing("loading_prompts"))
    workload = request.registry.find("workload", settings.workload.name)(settings.workload)
    counts = request.seen.counts.setdefault(request.run_id, {})
    tokenizer = engine_tokenizer(lease.engine, lease.running, settings.model, counts)
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
