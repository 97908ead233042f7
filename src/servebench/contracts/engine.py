"""The contracts of engines and launchers: what an engine plugin implements, and what a launcher returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from servebench.contracts.emulation import Emulation
from servebench.contracts.limits import Knob, Limit
from servebench.contracts.request import Request, Tokenizer
from servebench.contracts.settings import EngineSettings, GpuSettings, LaunchSettings, ModelSettings
from servebench.util.tls import Trust
from servebench.util.units import NS_PER_S

Say = Callable[[str], None]
"""Shows progress to the user in one short line (a download, a build)."""


@dataclass(frozen=True, kw_only=True)
class LaunchContext:
    """Everything that a command may depend on. `port` is resolved (never 0); `cache_dir` is for large files. `spans_endpoint` is
    the URL to which the engine sends its OpenTelemetry spans (OTLP over HTTP); null if it sends none. `adapters` are the LoRA
    adapters that requests will name; `api` is their kind, and `body` are their further fields."""

    engine: EngineSettings
    model: ModelSettings
    gpu: GpuSettings
    port: int
    cache_dir: Path
    spans_endpoint: str | None = None
    adapters: tuple[str, ...] = ()
    api: str = "chat"
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kept_folder(self) -> Path:
        """Where an engine that keeps its request timings in files writes them (`request_timings=after_load`)."""
        return self.cache_dir / "request-timings" / f"{self.engine.name}-{self.port}"


@dataclass(frozen=True, kw_only=True)
class Command:
    """An exact command, and the variables that it adds to the environment.

    Of servebench's own environment it gets what engines usually need (`servebench.util.children`), and the variables that
    `pass_env` names; a name that ends in `_` stands for all that begin with it.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    pass_env: tuple[str, ...] = ()


@dataclass(frozen=True)
class PhaseMarker:
    """A phase of the cold start ends when a log line matches `pattern` (a regular expression, searched)."""

    phase: str
    pattern: str


@dataclass(frozen=True)
class LogHint:
    """If `pattern` is in the log of a failed engine, the failure has this `kind` (of FailureKind), and `advice` is shown."""

    pattern: str
    kind: str
    advice: str


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The API of an engine, as far as it differs. `paths`: by kind of request, those that differ from the usual ones, below the
    base URL, which ends in `/v1`.

    `exact_output`: body fields that force the requested output length (empty: not supported). `stream_fields`: body fields
    of each streamed request, which ask for usage in the stream. `sends_done`: whether a stream ends with `[DONE]`.
    `names`: body fields that the server knows by another name only, by the usual one. `takes_seed`: whether `seed` may be
    sent. `json_schema`: whether `response_format` of type json_schema is enforced; otherwise none is sent. `model_checked`:
    whether the server rejects unknown model names.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    exact_output: Mapping[str, Any] = field(default_factory=dict)
    stream_fields: Mapping[str, Any] = field(
        default_factory=lambda: {"stream": True, "stream_options": {"include_usage": True}}
    )
    sends_done: bool = True
    names: Mapping[str, str] = field(default_factory=dict)
    takes_seed: bool = True
    json_schema: bool = True
    model_checked: bool = True


@dataclass(frozen=True, kw_only=True)
class ServerTimings:
    """What an engine reports about the time of one request, in milliseconds of its own clock; null where it says nothing.

    `queue_ms`: from its arrival in the engine's queue until it is scheduled first. `prefill_ms`: from then to the first token,
    without `kv_transfer_ms`, the transfer of its KV cache to another worker. `decode_ms`: from the first token to the last.
    `e2e_ms`: all of its time in the server, the HTTP front end included.
    """

    queue_ms: float | None = None
    prefill_ms: float | None = None
    kv_transfer_ms: float | None = None
    decode_ms: float | None = None
    e2e_ms: float | None = None


class Engine:
    """Base class of engines. A subclass needs a `name` and a `command`; everything else has defaults.

    An instance is cheap, has no state and does no I/O when constructed. `check` and `prepare` run before the launch.
    `command` must be pure, so that it can be printed without starting anything.
    """

    name: ClassVar[str]
    settings_type: ClassVar[type[EngineSettings]] = EngineSettings
    default_port: ClassVar[int] = 8000
    dialect: ClassVar[Dialect] = Dialect()
    health_path: ClassVar[str | None] = "/health"
    """Below the server's root; null if there is none. Status 200 is necessary for readiness, but not sufficient; a server
    without this path is ready when it generates."""
    tokenize_path: ClassVar[str | None] = None
    """Below the server's root: `POST {"content": text}` returns `{"tokens": [...]}`; null if there is none."""
    metrics_path: ClassVar[str | None] = "/metrics"
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {}
    """By name in `contracts.telemetry.VOCABULARY`: the engine's own names in the Prometheus text at `metrics_path`, of which
    the first that exists counts. Names in a JSON endpoint are dotted paths."""
    settings_paths: ClassVar[Sequence[str]] = ()
    """Below the server's root: each GET returns JSON with the settings as the engine resolved them."""
    reset_path: ClassVar[str | None] = None
    """Below the server's root: a POST empties the prefix cache; null if that is not supported."""
    version_path: ClassVar[str | None] = None
    """Below the server's root: a GET returns JSON with a key `version`; null if there is none."""
    phases: ClassVar[Sequence[PhaseMarker]] = ()
    hints: ClassVar[Sequence[LogHint]] = ()
    timings_flag: ClassVar[str | None] = None
    """The flag that `command` adds with `engine.request_timings` so that answers have `request_timings`. A version that does not
    know it is started again without it. Null if there is none, or none is needed."""
    knobs: ClassVar[Mapping[Limit, Sequence[Knob]]] = {}
    """The settings that act on each limit, in the order to try them; `engine_knobs` makes those of the shared settings."""
    timings_sources: ClassVar[Sequence[Literal["spans", "after_load"]]] = ()
    """The values of `engine.request_timings` besides true and false that `command` turns into flags: `spans` (it sends
    OpenTelemetry spans to `context.spans_endpoint`) and `after_load` (it has `timings_after_load`)."""
    timings_in_files: ClassVar[bool] = False
    """Whether `timings_after_load` reads files in `context.kept_folder`, which are on this machine only if servebench starts the
    engine's program here. The folder is made before the start, for the user alone, and removed after the stop."""
    needs_gpu: ClassVar[bool] = True
    from_hub: ClassVar[bool] = False
    """Whether `model.name` is the id of a model on the Hugging Face hub, which the engine downloads itself."""
    whole_context: ClassVar[bool] = False
    """Whether a start fails if one request of the model's whole context has no room, unless `max_model_len` is set."""
    container: ClassVar[ContainerImage | None] = None
    """For `launch=docker`; null if the engine has no official image and the user must name one."""
    launchable: ClassVar[bool] = True
    """False for an endpoint that servebench cannot start (`openai`)."""
    emulation: ClassVar[Emulation] = Emulation()
    """How `launch=emulated` imitates this engine; the default is a plain server with continuous batching."""

    def check(self, context: LaunchContext) -> list[str]:
        """Return what makes this command impossible, one line each: a setting without a flag, a missing executable with the
        way to install it. Reads the machine, changes nothing."""
        return []

    def unsupported_settings(self, context: LaunchContext) -> list[str]:
        """Return those lines of `check` that are about settings, which begin with `engine.`, and not about this machine.

        Only these matter to a launcher that does not run the engine's program of this machine.
        """
        return [
            line
            for line in self.check(context)
            if line.startswith("engine.") and not line.startswith("engine.executable")
        ]

    def emulated_as(self, context: LaunchContext) -> Emulation:
        """Return the emulation under these settings, where they change more than the shared keys do."""
        return self.emulation

    def prepare(self, context: LaunchContext, say: Say) -> None:
        """Make what the command needs, such as a model file. May take long and report it with `say`. Raises EngineError."""

    def command(self, context: LaunchContext) -> Command:
        """Return the exact command. Pure. Raises ConfigError for a setting that it cannot express."""
        raise NotImplementedError

    def served_model(self, model: ModelSettings) -> str:
        """Return the name of the model in requests."""
        return model.name

    def version(self, context: LaunchContext) -> str | None:
        """Return the engine's version on this machine, null if unknown. Never raises."""
        return None

    def request_timings(self, answer: Mapping[str, Any], headers: Mapping[str, str]) -> ServerTimings:
        """Return what a complete answer says about its own times. Pure; called after the load; must not raise for anything
        that a server sends (`milliseconds` reads a value leniently).

        `answer` has the fields of its chunks without their text (`id`, `usage`, `metrics`, `timings` ...), where the last
        chunk that has a field counts; `headers` are those of the response, with names in lower case.
        """
        return ServerTimings()

    def timings_after_load(self, context: LaunchContext, running: RunningEngine) -> Mapping[str, ServerTimings]:
        """Return what the engine has kept about the times of its answers, by the `id` of the answer; all of it, or what is new
        since the last call. Called after the load with `engine.request_timings=after_load`, several times while some are missing.

        Reads a bounded number of bytes, and returns nothing for what it cannot read. Raises EngineError where nothing can ever
        be read.
        """
        return {}

    def adapt_body(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        """Return the JSON body of a streamed request with only fields that the engine knows. It was made in the engine's
        dialect by the request's kind; most engines take it as it is."""
        return body


GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
"""The environment variable that names the GPUs of an engine."""


@dataclass(frozen=True, kw_only=True)
class ContainerImage:
    """The engine's official image. `entrypoint`: the first words of the engine's command, which the image supplies.

    `caches` maps folders below the user's home to folders in the image (model downloads, compiled kernels). They are
    mounted, so that a second start finds them. `arguments` are further arguments of `docker run`.
    """

    image: str
    entrypoint: tuple[str, ...] = ()
    executable: str | None = None
    """`engine.executable` inside the image, where it differs from the engine's default."""
    caches: Mapping[str, str] = field(default_factory=lambda: {".cache/huggingface": "/root/.cache/huggingface"})
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StartPhase:
    """A phase of the cold start, and when it ended (CLOCK_REALTIME nanoseconds)."""

    name: str
    ended_ns: int


@dataclass(frozen=True, kw_only=True)
class StopReport:
    """How the engine stopped. `leftover` names what could not be removed; empty when nothing is left."""

    stopped: bool
    forced: bool
    seconds: float
    killed_pids: tuple[int, ...] = ()
    leftover: tuple[str, ...] = ()


@dataclass(kw_only=True)
class RunningEngine:
    """An engine that serves; a launcher's own class adds `died` and `stop`.

    An engine may be several processes with several addresses, such as a router and its workers. Each of `base_urls` takes
    requests and ends in `/v1`; load, metrics and probes go to the first. `pids` are its processes on this machine, that of
    the first address first.
    """

    base_urls: tuple[str, ...]
    model: str
    started_ns: int
    phases: tuple[StartPhase, ...] = ()
    version: str | None = None
    pids: tuple[int, ...] = ()
    command: Command | None = None
    log_path: Path | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    query: tuple[tuple[str, str], ...] = ()
    """Parameters in the query of each generation's URL."""
    verify_tls: Trust = True
    names: Mapping[str, str] = field(default_factory=dict)
    """The `Dialect.names` that the first request has found."""
    tokenizer: Tokenizer | None = None
    """How the server counts tokens, if that is known without asking it."""
    requests_served: int = 0
    """How many requests the load has sent to it, in all of its runs."""

    @property
    def start_s(self) -> float:
        """How long it took to start; 0 where that is not known."""
        return (self.phases[-1].ended_ns - self.started_ns) / NS_PER_S if self.phases else 0.0

    @property
    def base_url(self) -> str:
        """The address to which load goes."""
        return self.base_urls[0]

    @property
    def root_url(self) -> str:
        """The root of the server at `base_url`."""
        return root_of(self.base_url)

    @property
    def pid(self) -> int | None:
        """The process at `base_url`; null if it does not run on this machine."""
        return self.pids[0] if self.pids else None

    def died(self) -> str | None:
        """Return one line with the last log line if the engine has died, null while it runs. Cheap; called often."""
        raise NotImplementedError

    def stop(self) -> StopReport:
        """Stop what was started, and check that nothing is left. Safe to call twice, and after a signal."""
        raise NotImplementedError


def root_of(base_url: str) -> str:
    """Return the server's root: the base URL without its `/v1`."""
    return base_url.removesuffix("/v1")


class Launcher:
    """Base class of launch strategies. `attach` starts nothing; `process` starts one process group."""

    name: ClassVar[str]
    settings_type: ClassVar[type[LaunchSettings]] = LaunchSettings
    local: ClassVar[bool] = True
    """Whether servebench starts and stops the server. False for a server that is already running (`attach`)."""
    emulated: ClassVar[bool] = False
    """Whether the server only imitates the engine, so that its numbers do not describe the real one."""
    simulated: ClassVar[bool] = False
    """Whether there is no server at all: engine and client are computed on a virtual clock. Then also `emulated`."""
    needs_executable: ClassVar[bool] = True
    """Whether the engine's own program on this machine is run, so that all of its `check` and `prepare` apply. Otherwise a
    local launcher checks the engine's settings only (a container, an emulation)."""

    def check(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> list[str]:
        """Return what makes this launch impossible, one line each. Changes nothing."""
        return []

    def command(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> Command:
        """Return the command that `--cfg command` prints. Pure. Raises ConfigError."""
        return engine.command(context)

    def find(
        self, engine: Engine, context: LaunchContext, settings: LaunchSettings, *, say: Say
    ) -> RunningEngine | None:
        """Return a server that is already running once it has generated a token; None from a launcher that starts one.

        Called before anything of a study is made. Raises EngineError with one line if the server cannot be measured.
        """
        return None

    def launch(
        self, engine: Engine, context: LaunchContext, settings: LaunchSettings, *, log_path: Path, say: Say
    ) -> RunningEngine:
        """Start (or find) the engine and return once it has generated a token.

        Raises EngineError after stopping whatever was started, as on KeyboardInterrupt.
        """
        raise NotImplementedError
