"""A fake engine, its launcher, a workload, and a fake load: whole runs without sockets, processes or waiting."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pluggy

from servebench.config import Job
from servebench.contracts.engine import Engine, Launcher, StopReport
from servebench.contracts.exchange import PhaseReport, StopReason
from servebench.contracts.request import Request, Workload
from servebench.contracts.settings import EngineSettings, LaunchSettings, LoadSettings, WorkloadSettings
from servebench.engine.tokenize import EmulatedTokenizer
from servebench.load.client.progress import Counts
from servebench.registry.registry import Registry
from servebench.util.errors import EngineError, FailureKind
from support.records import MS, SENT_NS, record
from support.settings import run_settings


class FakeRunning:
    """A running engine that dies when the test sets `death`."""

    base_url, root_url, model = "http://127.0.0.1:9/v1", "http://127.0.0.1:9", "m"
    pid = command = log_path = version = None
    started_ns = requests_served = 0
    phases = headers = query = ()
    verify_tls = True
    names: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.death: str | None = None
        self.stops = 0

    def died(self) -> str | None:
        return self.death

    def stop(self) -> StopReport:
        self.stops += 1
        return StopReport(stopped=True, forced=False, seconds=0.0)


class FakeEngine(Engine):
    name = "fake"
    needs_gpu = False


class FakeLauncher(Launcher):
    """Keeps what it starts in `started`; `refuses` makes the next start fail."""

    name = "fake"
    needs_executable = False
    started: list[FakeRunning] = []
    refuses: str | None = None

    def launch(self, engine: Engine, context: Any, settings: Any, *, log_path: Path, say: Any) -> Any:
        if self.refuses is not None:
            raise EngineError(self.refuses, kind=FailureKind.NOT_READY)
        self.started.append(FakeRunning())
        return self.started[-1]


class FakeTokenizer:
    name, exact = "fake", False

    def count(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def truncate(self, text: str, tokens: int) -> str:
        return " ".join(text.split()[:tokens])


class CoarseTokenizer(EmulatedTokenizer):
    """Counts fewer tokens than the emulated engines': one for every five characters and a third."""

    name = "coarse"

    def count(self, texts: Sequence[str]) -> list[int]:
        return [-(-len(text) * 3 // 16) for text in texts]


class FakeWorkload(Workload):
    """Any number of short prompts; keeps the streams that were requested."""

    reference_keys = ()
    streams: list[str] = []

    def requests(self, count: int, *, stream: str, tokenizer: object) -> list[Request]:
        self.streams.append(stream)
        return [
            Request(request_id=f"{stream}-{n}", prompt=f"p{n}", output_tokens=2, prompt_tokens=10) for n in range(count)
        ]


def fake_registry(**kinds: dict[str, type]) -> Registry:
    """Return a registry of fresh fakes; `kinds` replaces whole kinds."""
    launcher = type("OwnLauncher", (FakeLauncher,), {"started": []})
    workload = type("OwnWorkload", (FakeWorkload,), {"streams": []})
    known: dict[str, Any] = {
        "engine": {"fake": FakeEngine},
        "launch": {"fake": launcher},
        "workload": {"fake": workload},
        "telemetry": {},
        "quality": {},
    }
    return Registry(pluggy.PluginManager("servebench"), (), {**known, **kinds})


def fake_job(**changes: Any) -> Job:
    """Return a job on the fake engine: concurrency 1 and 2, four requests a point, no warm-up."""
    load = LoadSettings(
        name="l", concurrency=(1, 2), requests=4, warmup_requests=0, self_check="never", hold_level=False
    )
    groups = {
        "engine": EngineSettings(name="fake"),
        "launch": LaunchSettings(name="fake"),
        "workload": WorkloadSettings(name="fake", api="completions"),
        "load": load,
    }
    return Job((), run_settings(**(groups | changes)), {})


@dataclass
class FakeLoad:
    """Stands in for `LiveLoad.drive`. All requests succeed, unless `on_phase` (called with the name of each phase before
    it) raises or returns a reason to stop after half of them; `outcomes` replaces the outcome of a phase's requests."""

    on_phase: Callable[[str], StopReason | None] = lambda name: None
    outcomes: dict[str, str] = field(default_factory=dict)
    phases: list[str] = field(default_factory=list)

    def __call__(
        self, plan: Any, facts: Any, watch: Any, looks: Any = None, *, workers: int = 1
    ) -> tuple[PhaseReport, list[Any]]:
        name = facts.point + (" warm-up" if facts.warmup else "")
        self.phases.append(name)
        stopped = self.on_phase(name) or watch(Counts())
        ids = list(facts.planned)
        sent = ids[: len(ids) // 2] if stopped else ids
        outcome = self.outcomes.get(name, "ok")
        records = [self._record(request_id, index, facts, outcome) for index, request_id in enumerate(sent)]
        span_ns = (len(sent) + 1) * 10 * MS
        report = PhaseReport(
            started_ns=SENT_NS, ended_ns=SENT_NS + span_ns, planned=len(ids), sent=len(sent), elapsed_s=span_ns / 1e9,
            cpu_s=0.001, loop_lag_ms_p99=0.0, loop_lag_ms_max=0.0, clock_step_ns=0, stamp_source="kernel",
            stopped=stopped, error="killed" if stopped is StopReason.WORKER_DIED else None,
        )  # fmt: skip
        return report, records

    @staticmethod
    def _record(request_id: str, index: int, facts: Any, outcome: str) -> Any:
        made = record(
            request_id, sent_ns=SENT_NS + index * 10 * MS, run_id=facts.run_id, point=facts.point, warmup=facts.warmup,
            response_id=request_id if facts.keep_ids else None,
        )  # fmt: skip
        if outcome == "ok":
            return made
        return replace(
            made, outcome=outcome, event_ns=[], first_event_ns=None, first_output_ns=None, last_event_ns=None,
            output_tokens=None, counted_by=None, finish_reason=None, http_status=None, error=outcome,
        )  # fmt: skip
