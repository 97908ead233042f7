"""How an engine is emulated: its scheduling, its API and its start.

An engine class has an `Emulation` as its attribute `emulation`; the defaults are a plain OpenAI-compatible server with
continuous batching. The emulator runs it as a server process.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from servebench.contracts.settings import Seconds, SecondsOrZero, StrictSettings
from servebench.contracts.weights import weight_bytes_per_parameter

FirstChunk = Literal["none", "role_empty", "role_only", "role_null", "role_early", "role_every"]
"""The first chunk of a chat: no role-only chunk; a role with content ""; with no content key; with content null; a role
sent before the engine has begun; or no chunk of its own and the role in every delta."""

BIG_GPU_GB = 70.0

Overload = Literal["queue", "status", "event"]
"""What a full queue does: accept everything; return HTTP 503 (or 429); return HTTP 200 with one error event."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """One phase of the cold start. `seconds` on real hardware, plus `seconds_per_gb` of weights; then `line` is logged."""

    line: str
    seconds: float = 0.0
    seconds_per_gb: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Emulation:
    """How an engine behaves where a client can see it.

    Scheduling: at most `max_num_seqs` run at once; a step computes at most `token_budget` tokens; `.._big` on cards
    of BIG_GPU_GB and more. `chunked_prefill` cuts prompts to that budget, `mixed_steps` lets a step decode and
    prefill at once (else prompts go first). `reserve_output` admits a request only when its longest answer fits
    (nothing is ever preempted then). `longest_prefix_first` orders the queue by what is cached. `batch_sizes` are
    captured: a decode batch is padded to the next one and larger ones run eagerly. `queue_limit` requests may wait
    (null: any number), then `overload` says what happens; `queue_limit_flag` is the engine's flag for that number,
    `token_budget_flag` that for the budget and `front_end_flag` that for the number of its front-end processes.

    Costs: `step_overhead_ms` a step, `sequence_overhead_ms` for each sequence in it, `request_overhead_ms` of front
    end for each request, one after another; `memory_efficiency` and `compute_efficiency` are shares of the data
    sheet's rates. `structured_ms` for each sequence whose answer a schema constrains.

    Speech: see `FirstChunk`; `finish_alone` sends the finish reason in a chunk of its own; `usage` says where usage
    is: in a chunk of its own when asked for, in the finish chunk always, or nowhere; `cached_tokens` whether it tells
    of the prefix cache; `zero_usage` puts a usage of zeros into every chunk of a completion; `line_end` is between an
    event's JSON and its end of line. `strict_fields` refuses unknown body fields with this status. `loading_status`
    is what requests get before the engine is ready; null: nobody listens until then.

    `timings` maps a field that comes with the usage to its own fields, and these to `queue`, `prefill`, `decode` or `e2e` with
    a unit: `{metrics: {queue_time_ms: queue_ms}}`. `spans` says whose spans it sends if it is traced; `kept` whether it keeps the
    times of its requests as SGLang (`file`) or as TensorRT-LLM (`list`) until they are asked for, with
    `engine.request_timings=after_load`.

    Metrics that the engine's class names in `metrics` are served under those names. `metrics` here adds others: a name to
    a word of `contracts.telemetry.VOCABULARY`, or to `prompt_tokens_computed`. `metric_labels` goes into each line, with
    `{model}` for the model.
    """

    max_num_seqs: int = 256
    max_num_seqs_big: int | None = None
    token_budget: int = 2048
    token_budget_big: int | None = None
    chunked_prefill: bool = True
    mixed_steps: bool = True
    reserve_output: bool = False
    longest_prefix_first: bool = False
    prefix_cache_default: bool = True
    block_tokens: int = 16
    batch_sizes: tuple[int, ...] = ()
    queue_limit: int | None = None
    overload: Overload = "queue"
    overload_status: int = 503
    queue_limit_flag: str | None = None
    token_budget_flag: str | None = None
    front_end_flag: str | None = None

    step_overhead_ms: float = 1.0
    sequence_overhead_ms: float = 0.01
    request_overhead_ms: float = 1.0
    memory_efficiency: float = 0.85
    compute_efficiency: float = 0.55
    structured_ms: float = 0.05
    memory_fraction: float = 0.9

    first_chunk: FirstChunk = "role_empty"
    finish_alone: bool = False
    usage: Literal["asked", "finish", "never"] = "asked"
    completion_usage: Literal["asked", "finish", "never"] = "asked"
    cached_tokens: bool = True
    zero_usage: bool = False
    line_end: str = ""
    error_shape: Literal["nested", "flat", "detail"] = "nested"
    strict_fields: int | None = None
    loading_status: int | None = None

    loading: tuple[Loading, ...] = (
        Loading(line="loading weights", seconds=2.0),
        Loading(line="weights loaded", seconds_per_gb=0.5),
        Loading(line="Application startup complete.", seconds=1.0),
    )
    out_of_memory_line: str = "CUDA out of memory"
    timings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    spans: Literal["vllm", "sglang"] | None = None
    kept: Literal["file", "list"] | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)
    metric_labels: str = ""


@dataclass(frozen=True, kw_only=True)
class EmulatedFaults(StrictSettings):
    """Faults of an emulated engine. Numbers of requests count from the start of the server, its probes left out.

    `die_in_loading` and `hang_in_loading` before it is ready; with `out_of_memory_at` requests in the server it dies; every n-th
    request is silent for good after four tokens (`stall_every`), is ten times slower (`slow_every`) or has its connection reset
    after four tokens (`reset_every`); with `reject_above` requests in the server it rejects more in its usual way; `usage_factor`
    multiplies the output tokens in its usage; every n-th request gets HTTP 429 with a Retry-After of 2 seconds (`refuse_every`);
    `leave_child` has it leave behind a process in a session of its own.
    """

    die_in_loading: bool = False
    hang_in_loading: bool = False
    out_of_memory_at: Annotated[int, Ge(1)] | None = None
    stall_every: Annotated[int, Ge(1)] | None = None
    slow_every: Annotated[int, Ge(1)] | None = None
    reset_every: Annotated[int, Ge(1)] | None = None
    reject_above: Annotated[int, Ge(0)] | None = None
    refuse_every: Annotated[int, Ge(1)] | None = None
    ignore_sigterm: bool = False
    usage_factor: Annotated[float, Gt(0)] = 1.0
    leave_child: bool = False


EMULATING = ("emulated", "simulated")
"""The launchers whose engine is imitated, as stored files name them."""


def imitated(launches: Iterable[str | None]) -> str:
    """Return how engines were imitated that were started like this: `emulated`, `simulated`, both, or nothing for none."""
    found = set(launches)
    return " and ".join(name for name in EMULATING if name in found)


Spread = Annotated[float, Ge(0), Le(2)]
"""A standard deviation of the logarithm of a duration."""
Milliseconds = Annotated[float, Ge(0), Le(60_000)]


@dataclass(frozen=True, kw_only=True)
class Variation:
    """How a simulated engine differs from one that is always equally fast. All shares are of the duration of a step.

    `slowdown` multiplies every duration: 1.05 is an engine that is 5% slower. `start_sd`: standard deviation of the speed
    between starts, drawn once a start. `wander_sd`: standard deviation of a speed that wanders within a start, with a
    correlation that falls to 1/e in `wander_s` seconds (an Ornstein-Uhlenbeck process). `drift`: share by which the engine
    slows down each minute. `shift`: share by which it is slower for good from `shift_s` seconds on, after a change that takes
    `shift_over_s`. `step_noise`: standard deviation of independent steps. Factors are log-normal. `machine_sd` and `machine_s`
    are such a wander of the machine: at one moment of virtual time the same for all engines with the same `machine_seed`.

    `front_end_ms` is added to what the front end needs for each request, one after another, and `network_ms` to the way of each
    request to the server, at any load.

    `failure_rate` of the requests are answered with HTTP 500, in bursts of `failure_burst` in a row. `client_lateness_ms`:
    mean of the exponential delay with which a client of one process sends; several share the work.
    """

    slowdown: Annotated[float, Ge(1e-3), Le(1e3)] = 1.0
    start_sd: Spread = 0.01
    wander_sd: Spread = 0.02
    wander_s: Seconds = 5.0
    drift: Annotated[float, Ge(-1), Le(1)] = 0.0
    shift: Annotated[float, Gt(-1), Le(1e3)] = 0.0
    shift_s: SecondsOrZero = 0.0
    shift_over_s: SecondsOrZero = 0.0
    step_noise: Spread = 0.03
    machine_sd: Spread = 0.0
    machine_s: Seconds = 60.0
    machine_seed: int = 0
    front_end_ms: Milliseconds = 0.0
    network_ms: Milliseconds = 0.0
    failure_rate: Annotated[float, Ge(0), Lt(1)] = 0.0
    failure_burst: Annotated[int, Ge(1), Le(1_000_000)] = 1
    client_lateness_ms: Milliseconds = 0.0


DEFAULT_MODEL: Mapping[str, Any] = {
    "parameters_b": 7.0,
    "layers": 32,
    "hidden_size": 4096,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
}
"""The assumed shape of a model that the config does not describe."""


@dataclass(frozen=True, kw_only=True)
class EmulationSpec:
    """The configuration of an emulator process: made by the launcher, passed as JSON.

    `model` and `gpu` hold the fields of their settings (and `dtype` and `quantization` of the engine's); what is missing
    there has a stated default. `time_scale` multiplies the seconds of the cold start only. `exact_output` are the body
    fields by which a request asks for an answer of exactly its length; `speculative_tokens` the mean of tokens a step.
    """

    engine: str
    model_name: str
    host: str
    port: int
    seed: int = 0
    time_scale: float = 1.0
    emulation: Emulation = field(default_factory=Emulation)
    faults: EmulatedFaults = field(default_factory=EmulatedFaults)
    health_path: str | None = "/health"
    metrics_path: str | None = "/metrics"
    version_path: str | None = None
    reset_path: str | None = None
    settings_paths: tuple[str, ...] = ()
    tokenize_path: str | None = None
    sends_done: bool = True
    model_checked: bool = True
    schema_enforced: bool = True
    exact_output: Mapping[str, object] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    model: Mapping[str, object] = field(default_factory=dict)
    gpu: Mapping[str, object] = field(default_factory=dict)
    tensor_parallel: int = 1
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    kv_tokens: int | None = None
    queue_limit: int | None = None
    token_budget: int | None = None
    front_ends: int = 1
    gpu_memory_fraction: float | None = None
    prefix_caching: bool | None = None
    eager: bool = False
    speculative_tokens: float = 1.0
    variant: str | None = None
    spans_endpoint: str | None = None
    kept_folder: str | None = None
    adapters: tuple[str, ...] = ()
    known_fields: tuple[str, ...] | None = None
    answers: Mapping[str, str] = field(default_factory=dict)
    wanted: Mapping[str, str] = field(default_factory=dict)
    """Headers (names in lower case) that each request needs, and its query under `?`; others get HTTP 401, as at a gateway."""

    @property
    def bytes_per_parameter(self) -> float:
        """The bytes per parameter of its weights."""
        name, *words = (self.model.get(key) for key in ("name", "quantization", "dtype"))
        return weight_bytes_per_parameter(str(name or ""), *(None if one is None else str(one) for one in words))

    @property
    def weight_gb(self) -> float:
        """The size of its weights, in GB."""
        parameters_b = self.model.get("parameters_b")
        return float(str(parameters_b or DEFAULT_MODEL["parameters_b"])) * self.bytes_per_parameter

    def cold_start(self) -> Iterator[tuple[float, str]]:
        """Yield how many seconds each phase of the cold start takes, before `time_scale`, and the line that ends it."""
        for stage in self.emulation.loading:
            seconds = stage.seconds + stage.seconds_per_gb * self.weight_gb
            yield seconds, stage.line.replace("{gb}", f"{self.weight_gb:.2f}")


def to_json(spec: EmulationSpec) -> str:
    """Return the spec as JSON without defaults: short enough for a command line."""
    from pydantic import TypeAdapter  # slow to import, and the emulator's server does not need it

    return TypeAdapter(EmulationSpec).dump_json(spec, exclude_defaults=True).decode()
