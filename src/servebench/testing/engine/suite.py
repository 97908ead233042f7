"""What all conformance tests of an engine share."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import httpx
import pytest

from servebench.contracts.emulation import EmulatedFaults, EmulationSpec, Loading
from servebench.contracts.engine import Engine, LaunchContext, RunningEngine
from servebench.contracts.exchange import PhaseReport, PlannedRequest, PointPlan, StopReason
from servebench.contracts.phase import PhaseFacts
from servebench.contracts.request import Message, Request
from servebench.contracts.results import Record
from servebench.contracts.settings import GpuSettings, LaunchSettings, ModelSettings
from servebench.engine.launchers.emulated import EmulatedSettings, spec_of
from servebench.engine.launchers.process import ProcessLauncher
from servebench.engine.supervisor.ports import free_port
from servebench.load.client.progress import Counts
from servebench.load.client.spool import read_spool
from servebench.load.coordinator.drive import drive
from servebench.measure.derive import record
from servebench.protocol.kinds.table import compose
from servebench.run.phase import target_of
from servebench.testing.server import FAST, write_stand_in
from servebench.util.errors import FailureKind

HOST = "127.0.0.1"
KINDS = {
    *(FailureKind.OUT_OF_MEMORY, FailureKind.MODEL_MISSING, FailureKind.WRONG_CUDA),
    *(FailureKind.PORT_IN_USE, FailureKind.UNKNOWN_FLAG, FailureKind.OTHER),
}
BUSY = (429, 503)
UNPROCESSABLE = 422

SAMPLES: Mapping[str, tuple[Any, ...]] = {
    "tensor_parallel_size": (2,),
    "max_model_len": (4096,),
    "dtype": ("bfloat16",),
    "quantization": ("awq",),
    "gpu_memory_fraction": (0.625,),
    "max_num_seqs": (24,),
    "prefix_caching": (True, False),
    "seed": (1234567,),
}
"""Values of each shared setting that are not its default."""

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "rain": {"type": "boolean"}},
    "required": ["city", "rain"],
    "additionalProperties": False,
}

CHAT = Request(request_id="chat", messages=(Message("user", "Say something."),), output_tokens=12)
TEXT = Request(request_id="text", prompt="Once upon a time", output_tokens=12)


def ignore(_: str) -> None:
    """Ignore a message."""


def launch_process(engine: Engine, context: LaunchContext, *, log_path: Path) -> RunningEngine:
    """Start an engine with `launch=process` and wait for a first token. Raises EngineError."""
    return ProcessLauncher().launch(engine, context, LaunchSettings(name="process"), log_path=log_path, say=ignore)


@dataclass(frozen=True, kw_only=True)
class Life:
    """A program to start: its launch context, and whether it is the engine's own."""

    context: LaunchContext
    real: bool


LifeOf = Callable[..., Life]
Launch = Callable[[LaunchContext], RunningEngine]


class EngineSuite:
    """The attributes, hooks and fixtures of an engine's conformance tests.

    Attributes:
        engine: the class under test.
        program: the file name of its executable, for the stand-in; null runs the life cycle only if the engine is installed.
        settings: engine settings of a real start, small enough for a test.
        model: the model in composed commands; `real_model` returns the one of a real start.
        own_defaults: values of shared settings that need no argument because they are the engine's defaults.
        known_fields: the top-level fields of a request body that the engine accepts; null if it ignores unknown ones.
        sample_log: log lines of a real start, in order. They must contain every declared phase.
        failures: for each kind of failure a line of the engine's log.
        rejection: how a full engine rejects requests: a status, or `event` for an error event inside HTTP 200.
        has_timings: whether answers of a real start must have request timings.
        overload: how many requests are sent at once to overload it.
    """

    engine: ClassVar[type[Engine]]
    program: ClassVar[str | None] = None
    settings: ClassVar[Mapping[str, Any]] = {}
    model: ClassVar[ModelSettings] = ModelSettings(name="org/model", path="/models/model")
    own_defaults: ClassVar[Mapping[str, Any]] = {}
    known_fields: ClassVar[tuple[str, ...] | None] = None
    sample_log: ClassVar[Sequence[str]] = ()
    failures: ClassVar[Mapping[str, str]] = {}
    rejection: ClassVar[int | Literal["event"]] = 503
    has_timings: ClassVar[bool] = False
    overload: ClassVar[int] = 12

    # hooks: a plugin may override these

    def real_model(self) -> ModelSettings:
        """Return the model of a real start."""
        return self.model

    def real_cache_dir(self, folder: Path) -> Path:
        """Return the folder where a real start keeps large files."""
        return folder / "cache"

    def stand_in_settings(self, folder: Path, stand_in: Path) -> Mapping[str, Any]:
        """Return the settings that make the command run the stand-in instead of the program."""
        return {"executable": str(stand_in)}

    def stand_in_exit_codes(self) -> Mapping[str, int]:
        """Return the first arguments with which the program does not serve, with the exit code of each."""
        return {}

    def context(
        self, cache_dir: Path, *, port: int = 8123, model: ModelSettings | None = None, **settings: Any
    ) -> LaunchContext:
        """Return a launch context of this engine."""
        return LaunchContext(
            engine=self.engine.settings_type(name=self.engine.name, **settings),
            model=model or self.model,
            gpu=GpuSettings(name="none"),
            port=port,
            cache_dir=cache_dir,
        )

    def skip_unless_launchable(self) -> None:
        """Skip the test if servebench cannot start the engine."""
        if not self.engine.launchable:
            pytest.skip(f"{self.engine.name} cannot be started by servebench")

    def composed(self, context: LaunchContext) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """Return the command's arguments and variables."""
        command = self.engine().command(context)
        return command.argv, command.env

    def server(self, port: int = 8123, max_running: int | None = None, step_ms: float = 1.0) -> EmulationSpec:
        """Return the emulated engine, which is strict about fields: it rejects more than `max_running` requests at once, and a
        token takes it `step_ms`."""
        spec = spec_of(self.engine(), self.context(Path(), port=port), EmulatedSettings(name="emulated"))
        busy: dict[str, Any] = (
            {"overload": "event"} if self.rejection == "event" else {"overload_status": self.rejection}
        )
        emulation = replace(
            spec.emulation,
            **{"overload": "status", **busy},
            strict_fields=None if self.known_fields is None else UNPROCESSABLE,
            step_overhead_ms=step_ms,
            loading_status=None,
            loading=(Loading(line="the stand-in listens"),),
        )
        faults = EmulatedFaults(reject_above=max_running)
        return replace(spec, emulation=emulation, faults=faults, known_fields=self.known_fields, model=FAST)

    def why_not_real(self, folder: Path) -> str | None:
        """Return why the engine's own program cannot run here; None if it can."""
        if not self.engine.launchable:
            return f"{self.engine.name} cannot be started by servebench"
        context = self.context(self.real_cache_dir(folder), model=self.real_model(), **self.settings)
        problems = self.engine().check(context)
        return problems[0] if problems else None

    @pytest.fixture
    def life_of(self, tmp_path: Path) -> LifeOf:
        """Return a function that makes the program to test: the engine's own if it is installed, else the stand-in with the
        given behavior."""

        def make(*, dies_with: tuple[str, int] | None = None, stand_in_only: bool = False, **behavior: Any) -> Life:
            reason = self.why_not_real(tmp_path)
            port = free_port(HOST)
            settings: dict[str, Any] = {"stop_timeout_s": 5.0, "ready_timeout_s": 120.0, **self.settings}
            if reason is None and not stand_in_only:
                cache_dir = self.real_cache_dir(tmp_path)
                context = self.context(cache_dir, port=port, model=self.real_model(), **settings)
                self.engine().prepare(context, ignore)
                return Life(context=context, real=True)
            if self.program is None:
                pytest.skip(reason or "there is no stand-in for this engine")
            stand_in = write_stand_in(
                tmp_path / "bin" / self.program,
                self.server(port, **behavior),
                log=self.sample_log,
                dies_with=dies_with,
                exit_codes=self.stand_in_exit_codes(),
            )
            settings.update(self.stand_in_settings(tmp_path, stand_in))
            return Life(context=self.context(tmp_path / "cache", port=port, **settings), real=False)

        return make

    @pytest.fixture
    def launch(self, tmp_path: Path) -> Iterator[Launch]:
        """Return a function that launches with `launch=process`; engines still running after the test are stopped."""
        started: list[RunningEngine] = []

        def start(context: LaunchContext) -> RunningEngine:
            running = launch_process(self.engine(), context, log_path=tmp_path / "engine.log")
            started.append(running)
            return running

        yield start
        for running in started:
            running.stop()

    def drive(
        self,
        running: RunningEngine,
        requests: Sequence[Request],
        folder: Path,
        watch: Callable[[Counts], StopReason | None] = lambda _: None,
    ) -> tuple[PhaseReport, list[Record]]:
        """Send all requests at once in this engine's dialect, as a run does; return the report and the records."""
        planned = []
        for request in requests:
            path, body = compose(self.engine(), request, running.model)
            path = httpx.URL(running.base_url).path.rstrip("/") + path
            planned.append(PlannedRequest(request_id=request.request_id, path=path, body=json.dumps(body).encode()))
        plan = PointPlan(requests=planned, concurrency=len(planned), timeout_s=120.0, connect_timeout_s=10.0)
        spool = folder / f"{time.monotonic_ns()}.spool"
        report = drive(target_of(running), plan, spool=spool, watch=watch)
        asked = {request.request_id: (None, request.output_tokens, False) for request in requests}
        facts = PhaseFacts(
            run_id="conformance", point="0", warmup=False, concurrency=None, repeat=0, planned=asked, keep_ids=True
        )
        return report, [record(exchange, facts, self.engine().request_timings) for exchange in read_spool(spool)]
