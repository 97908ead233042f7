"""The contract of an engine: what it is told, what it must say, and what a launcher does with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from servebench.contracts.emulation import Emulation
from servebench.contracts.request import Request
from servebench.contracts.settings import EngineSettings, GpuSettings, LaunchSettings, ModelSettings, WorkloadSettings

Say = Callable[[str], None]
"""Tells the user what is going on, in one short line (a download, a build)."""


@dataclass(frozen=True, kw_only=True)
class LaunchContext:
    """All that composing a command may depend on. `port` is resolved (never 0); `cache_dir` is where big files are kept."""

    engine: EngineSettings
    model: ModelSettings
    gpu: GpuSettings
    port: int
    cache_dir: Path


@dataclass(frozen=True, kw_only=True)
class Command:
    """An exact command. `env` is what is added to the environment. Printing it quoted gives something to paste."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


@dataclass(frozen=True)
class PhaseMarker:
    """A phase of the cold start ends when a log line matches `pattern` (a regular expression, searched)."""

    phase: str
    pattern: str


@dataclass(frozen=True)
class LogHint:
    """If `pattern` is found in the log of an engine that failed, the failure is of `kind` and `advice` is told."""

    pattern: str
    kind: str
    advice: str


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How an engine is spoken to. Paths are below the base URL, which ends in `/v1`.

    `exact_output`: body fields that make the answer exactly as long as asked (empty: the engine cannot).
    `stream_fields`: body fields sent with each streamed request, usage in the stream among them.
    `sends_done`: whether a stream ends with `[DONE]`. `takes_seed`: whether `seed` may be sent. `json_schema`: whether
    `response_format` of type json_schema is enforced; where it is not, none is sent.
    """

    chat_path: str = "/chat/completions"
    completions_path: str = "/completions"
    exact_output: Mapping[str, Any] = field(default_factory=dict)
    stream_fields: Mapping[str, Any] = field(
        default_factory=lambda: {"stream": True, "stream_options": {"include_usage": True}}
    )
    sends_done: bool = True
    takes_seed: bool = True
    json_schema: bool = True
    model_checked: bool = True


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Something that was made before the start and is kept (a built engine): how long it took when it was made, and
    whether it was only found again."""

    name: str
    seconds: float
    reused: bool


class Engine:
    """Base of every engine. A plugin's engine is a subclass with a `name` and a `command`; the rest has defaults.

    An instance is cheap, holds no state and does no I/O when constructed. `check` and `prepare` run before the launch,
    `command` must be pure, so that it can be printed without starting anything.
    """

    name: ClassVar[str]
    settings_type: ClassVar[type[EngineSettings]] = EngineSettings
    default_port: ClassVar[int] = 8000
    dialect: ClassVar[Dialect] = Dialect()
    health_path: ClassVar[str | None] = "/health"
    """Below the server's root; null when there is none. 200 is necessary for readiness, never sufficient."""
    tokenize_path: ClassVar[str | None] = None
    """Below the server's root: `POST {"content": text}` answers `{"tokens": [...]}`; null when there is none."""
    metrics_path: ClassVar[str | None] = "/metrics"
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Word of `contracts.telemetry.VOCABULARY` -> the names that the engine has for it in the Prometheus text behind
    `metrics_path`; the first that is there counts. A JSON endpoint's names are paths with dots."""
    settings_paths: ClassVar[Sequence[str]] = ()
    """Below the server's root: each GET answers JSON that tells the settings as the engine resolved them."""
    reset_path: ClassVar[str | None] = None
    """Below the server's root: a POST empties the prefix cache; null when the engine cannot."""
    version_path: ClassVar[str | None] = None
    """Below the server's root: a GET answers JSON with a key `version`; null when there is none."""
    phases: ClassVar[Sequence[PhaseMarker]] = ()
    hints: ClassVar[Sequence[LogHint]] = ()
    needs_gpu: ClassVar[bool] = True
    container: ClassVar[ContainerImage | None] = None
    """For `launch=docker`; null when the engine has no official image, so that the user must name one."""
    launchable: ClassVar[bool] = True
    """False for an endpoint that only somebody else starts (`openai`)."""
    emulation: ClassVar[Emulation] = Emulation()
    """How `launch=emulated` plays this engine; the default is a plain server with continuous batching."""

    def check(self, context: LaunchContext) -> list[str]:
        """What makes this command impossible, one line each: a setting that the engine has no flag for, a missing
        executable with the way to install it. Reads the machine, changes nothing."""
        return []

    def unsupported_settings(self, context: LaunchContext) -> list[str]:
        """What `check` says of settings, and not of what this machine lacks: a line about a setting begins with its key,
        `engine.`. This is what counts for a launcher that does not run the engine's program from this machine."""
        return [
            line
            for line in self.check(context)
            if line.startswith("engine.") and not line.startswith("engine.executable")
        ]

    def emulated_as(self, context: LaunchContext) -> Emulation:
        """The emulation under these settings, where they change more than the shared keys tell (a mode of its own)."""
        return self.emulation

    def prepare(self, context: LaunchContext, say: Say) -> None:
        """Bring what the command needs (a model file). May take long and say so. Raises EngineError."""

    def preparations(self, context: LaunchContext) -> Sequence[Preparation]:
        """What the last `prepare` for this context made or found, as it is told on disk. Never raises."""
        return ()

    def prepare_commands(self, context: LaunchContext) -> Sequence[Command]:
        """The commands that `prepare` runs if what they make is not there yet, to be shown. Pure."""
        return ()

    def command(self, context: LaunchContext) -> Command:
        """The exact command. Pure. Raises ConfigError for a setting that cannot be expressed."""
        raise NotImplementedError

    def served_model(self, model: ModelSettings) -> str:
        """The name by which requests ask for the model."""
        return model.name

    def version(self, context: LaunchContext) -> str | None:
        """The engine's version as found on this machine, or null. Never raises."""
        return None

    def body(self, request: Request, model: str, workload: WorkloadSettings) -> tuple[str, dict[str, Any]]:
        """Path below the base URL and JSON body of a streamed request, with only fields that the engine knows."""
        dialect = self.dialect
        body: dict[str, Any] = {"model": model}
        if request.messages is not None:
            path = dialect.chat_path
            body["messages"] = [{"role": m.role, "content": m.content} for m in request.messages]
        else:
            path = dialect.completions_path
            body["prompt"] = request.prompt
        body["max_tokens"] = request.output_tokens
        body["temperature"] = request.temperature
        body.update(dialect.stream_fields)
        if request.seed is not None and dialect.takes_seed:
            body["seed"] = request.seed
        if request.exact_output:
            body.update(dialect.exact_output)
        if request.schema is not None and dialect.json_schema:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": dict(request.schema), "strict": True},
            }
        body.update(request.extra)
        return path, body


@dataclass(frozen=True, kw_only=True)
class ContainerImage:
    """The engine's official image. `entrypoint`: the words of the engine's command that the image supplies itself.

    `caches` maps folders below the user's home to where the image expects them (model downloads, compiled kernels):
    they are mounted, so that a second start finds them. `arguments` are further words of `docker run`.
    """

    image: str
    entrypoint: tuple[str, ...] = ()
    executable: str | None = None
    """What `engine.executable` is inside the image, where the engine's default is another."""
    caches: Mapping[str, str] = field(default_factory=lambda: {".cache/huggingface": "/root/.cache/huggingface"})
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StartPhase:
    """A phase of the cold start, by when it was over. Nanoseconds, CLOCK_REALTIME."""

    name: str
    ended_ns: int


@dataclass(frozen=True, kw_only=True)
class StopReport:
    """How the engine stopped, and the proof that nothing is left. `leftover` names what could not be removed."""

    stopped: bool
    forced: bool
    seconds: float
    killed_pids: tuple[int, ...] = ()
    leftover: tuple[str, ...] = ()


class RunningEngine(Protocol):
    """An engine that answers. `base_url` ends in `/v1`; `root_url` is the server's root."""

    base_url: str
    root_url: str
    model: str
    pid: int | None
    command: Command | None
    log_path: Path | None
    version: str | None
    started_ns: int
    phases: tuple[StartPhase, ...]
    headers: tuple[tuple[str, str], ...]
    verify_tls: bool

    def died(self) -> str | None:
        """One line when the engine is gone (with its last words), null while it lives. Cheap; called often."""
        ...

    def stop(self) -> StopReport:
        """Stop what was started, and prove it. Safe to call twice, and from a signal handler's aftermath."""
        ...


class Launcher:
    """A launch strategy. `attach` starts nothing; `process` starts one process group."""

    name: ClassVar[str]
    settings_type: ClassVar[type[LaunchSettings]] = LaunchSettings
    local: ClassVar[bool] = True
    """Whether servebench starts and stops the server. False for a server that is already running (`attach`)."""
    emulated: ClassVar[bool] = False
    """Whether the server only imitates the engine, so that its numbers do not describe the real one."""
    needs_executable: ClassVar[bool] = True
    """Whether the engine's own program on this machine is run, so that all of its `check` and `prepare` apply. Otherwise a
    local launcher checks the engine's settings only (a container, an emulation)."""

    def check(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> list[str]:
        """What makes this launch impossible, one line each. Changes nothing."""
        return []

    def command(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> Command:
        """What `--cfg command` prints. Pure. Raises ConfigError."""
        return engine.command(context)

    def launch(
        self, engine: Engine, context: LaunchContext, settings: LaunchSettings, *, log_path: Path, say: Say
    ) -> RunningEngine:
        """Start (or find) the engine and return once it has truly generated a token. Raises EngineError; whatever was
        started is gone by then, also on KeyboardInterrupt."""
        raise NotImplementedError
