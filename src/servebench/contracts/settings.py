"""The typed, frozen form of a composed config. Only the config package handles Hydra's DictConfig.

Field names are the public config keys (`engine.port`, `load.concurrency`). A plugin adds its own keys by subclassing
`EngineSettings`, `LaunchSettings`, `WorkloadSettings` or `QualitySettings` and naming the subclass as `settings_type` on its
class.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt

from servebench.contracts.precision import LOOKS
from servebench.util.wheel_file import PackagedFile


class StrictSettings:
    """Base class of the parts of a config, whose unknown keys are an error."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}


PositiveInt = Annotated[int, Ge(1)]
TOKENS_MAX = 10_000_000
"""The longest prompt or answer: the longest context of any model so far."""
REQUESTS_MAX = 10_000_000
"""The most requests of one point: all are in memory before the first is sent. Longer points use `duration_s`."""
RATE_AUTO_S = 30.0
"""`requests: auto` at a rate: half a minute of arrivals."""
TokenCount = Annotated[int, Ge(1), Le(TOKENS_MAX)]
RequestCount = Annotated[int, Ge(1), Le(REQUESTS_MAX)]
CountOrZero = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
SECONDS_MAX = 7 * 24 * 3600
"""The longest time that a setting may say: a week."""
Seconds = Annotated[float, Gt(0), Le(SECONDS_MAX)]
SecondsOrZero = Annotated[float, Ge(0), Le(SECONDS_MAX)]
LevelBound = Annotated[float, Gt(0), Le(1_000_000)]
"""A concurrency or a rate: more no client can send."""
PORT_MAX = 65535
Port = Annotated[int, Ge(0), Le(PORT_MAX)]
Fraction = Annotated[float, Gt(0), Le(1)]


@dataclass(frozen=True, kw_only=True)
class EngineSettings(StrictSettings):
    """Settings that all engines share, in one vocabulary; null means the engine's own default.

    `port` 0 means any free port. `extra_args` maps a flag of the engine (without its dashes) to a value: true is a
    bare flag, null and false leave it out, a list gives several values, as the engine reads them. `env` is added to the engine's
    environment. `request_timings` has the engine report its own times with each answer, if it can; `spans` also receives its
    OpenTelemetry spans at `spans_address` (port 0: any free one), and `after_load` also asks it after the load for the times that
    it has kept. `age` is that of the server at each point (`contracts.age`): `fresh`, `warm` or a time such as `60m`; null: as it
    comes.
    """

    name: str
    host: str = "127.0.0.1"
    port: Port = 0
    tensor_parallel_size: PositiveInt | None = None
    max_model_len: PositiveInt | None = None
    dtype: str | None = None
    quantization: str | None = None
    gpu_memory_fraction: Fraction | None = None
    max_num_seqs: PositiveInt | None = None
    prefix_caching: bool | None = None
    seed: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    extra_args: Mapping[str, Any] = field(default_factory=dict)
    executable: str | None = None
    ready_timeout_s: Seconds = 900.0
    stop_timeout_s: Seconds = 30.0
    request_timings: bool | Literal["spans", "after_load"] = True
    spans_address: str = "127.0.0.1:0"
    reuse: bool = True
    age: str | None = None

    @property
    def spans_listener(self) -> tuple[str, int]:
        """The host and port of `spans_address`. Raises ValueError for anything else."""
        host, _, port = self.spans_address.rpartition(":")
        if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > PORT_MAX:
            raise ValueError(
                f"engine.spans_address must be HOST:PORT, such as 127.0.0.1:4318 (got {self.spans_address!r})"
            )
        return host.removeprefix("[").removesuffix("]"), int(port)


@dataclass(frozen=True, kw_only=True)
class LaunchSettings(StrictSettings):
    """How the engine is started or found: `process`, `attach`, and others by hook."""

    name: str


@dataclass(frozen=True, kw_only=True)
class ModelSettings(StrictSettings):
    """The model. `name` is any id; `path` a local folder or file; `gguf` and `gguf_hub` where a GGUF file can be fetched.

    `parameters_b` (billions, total), `active_parameters_b`, `layers`, `hidden_size`, `heads`, `kv_heads`, `head_dim`
    describe its shape for estimates.
    """

    name: str
    path: str | None = None
    revision: str | None = None
    tokenizer: str | None = None
    gguf: PackagedFile | None = None
    gguf_hub: str | None = None
    license: str | None = None
    parameters_b: PositiveFloat | None = None
    active_parameters_b: PositiveFloat | None = None
    layers: PositiveInt | None = None
    hidden_size: PositiveInt | None = None
    heads: PositiveInt | None = None
    kv_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    context_length: PositiveInt | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a `gguf_hub` that is not OWNER/REPOSITORY/FILE: it becomes a path in the cache."""
        if self.gguf_hub is not None and not re.fullmatch(r"(?:(?!\.\.?(?:/|$))[\w.-]+(?:/(?!$)|$)){3}", self.gguf_hub):
            raise ValueError(f"gguf_hub must be OWNER/REPOSITORY/FILE (got {self.gguf_hub!r})")


@dataclass(frozen=True, kw_only=True)
class GpuSettings(StrictSettings):
    """The GPU as configured. Rates are peak dense figures from the manufacturer's data sheet."""

    name: str
    count: CountOrZero = 0
    memory_gb: PositiveFloat | None = None
    bandwidth_gb_s: PositiveFloat | None = None
    bf16_tflops: PositiveFloat | None = None
    fp8_tflops: PositiveFloat | None = None
    price_usd_per_hour: Annotated[float, Ge(0)] | None = None


@dataclass(frozen=True, kw_only=True)
class LengthSettings(StrictSettings):
    """A distribution of counts: of tokens, or of the turns of a session. `fixed` uses `mean`; `uniform` uses `min` and `max`;
    `normal` and `lognormal` use `mean` and `stdev` (of the count itself) and are clipped to `min` and `max`, from 1 up.
    In a config `8..24` is short for `{kind: uniform, min: 8, max: 24}`."""

    kind: Literal["fixed", "uniform", "normal", "lognormal"] = "fixed"
    mean: Annotated[float, Ge(1), Le(TOKENS_MAX)] | None = None
    stdev: Annotated[float, Ge(0), Le(TOKENS_MAX)] | None = None
    min: TokenCount | None = None
    max: TokenCount | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for parameters that the kind lacks, does not use, or that contradict each other."""
        needed, optional = _PARAMETERS[self.kind]
        given = {name for name in ("mean", "stdev", "min", "max") if getattr(self, name) is not None}
        if missing := [name for name in needed if name not in given]:
            raise ValueError(f"kind={self.kind} needs {' and '.join(missing)}")
        if unused := sorted(given - {*needed, *optional}):
            raise ValueError(
                f"{unused[0]}={getattr(self, unused[0]):g} has no effect with kind={self.kind}, which uses "
                f"{' and '.join((*needed, *optional))}; leave it out, or choose another kind"
            )
        low, high = self.min or 1, self.max or TOKENS_MAX
        if low > high:
            raise ValueError(f"min={low} must not be above max={high}")
        if self.mean is not None and not low <= self.mean <= high:
            limit = f"below min={low}" if self.mean < low else f"above max={high}"
            raise ValueError(f"mean={self.mean:g} must not be {limit}")

    @property
    def bounded(self) -> bool:
        """Whether the shortest count is the user's choice, and not the tail of a distribution."""
        return self.kind in ("fixed", "uniform") or self.min is not None

    @property
    def shortest(self) -> int:
        """The least count that may be drawn."""
        return round(self.mean) if self.kind == "fixed" and self.mean is not None else self.min or 1

    @property
    def longest(self) -> int:
        """The greatest count that may be drawn."""
        return round(self.mean) if self.kind == "fixed" and self.mean is not None else self.max or TOKENS_MAX


_PARAMETERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "fixed": (("mean",), ()),
    "uniform": (("min", "max"), ()),
    "normal": (("mean", "stdev"), ("min", "max")),
    "lognormal": (("mean", "stdev"), ("min", "max")),
}
"""The parameters of each kind of length: those that it needs, and those that it may have."""


@dataclass(frozen=True, kw_only=True)
class ImageSettings(StrictSettings):
    """Synthetic PNG images in the first message of a user: how many, and their size in pixels."""

    count: PositiveInt = 1
    width: Annotated[int, Ge(1), Le(8192)] = 512
    height: Annotated[int, Ge(1), Le(8192)] = 512


@dataclass(frozen=True, kw_only=True)
class WorkloadSettings(StrictSettings):
    """Settings that all workloads share. Null lengths leave the choice to the data set.

    `cache`: `cold` salts prompts or resets the cache, so that only prefixes shared within the workload hit; `warm` keeps
    what the warm-up left; `as_is` does nothing. `exact_output` makes the engine ignore its end token.
    `adapters` are names of LoRA adapters that the engine serves: each request names one in place of the model, the k-th
    with a weight of 1 / k^`adapter_skew`, or with the weight that a mapping of names has for it. `images` go with each prompt.
    `priorities` are drawn uniformly and sent as `priority`. `body` are further fields of
    each request's body, and `headers` further headers of each request; they replace what the workload sends itself.
    """

    name: str
    seed: int = 0
    api: str = "chat"
    input_tokens: TokenCount | LengthSettings | None = None
    output_tokens: TokenCount | LengthSettings | None = None
    exact_output: bool = False
    temperature: Annotated[float, Ge(0)] | None = 0.0
    cache: Literal["cold", "warm", "as_is"] = "as_is"
    adapters: tuple[str, ...] | Mapping[str, PositiveFloat] | None = None
    adapter_skew: Annotated[float, Ge(0)] = 0.0
    images: ImageSettings | None = None
    priorities: tuple[int, ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SearchSettings(StrictSettings):
    """A search for the highest level that meets the SLO, instead of a list of levels. Each probe is a point; no level outside the
    bounds is measured.

    `of` is the kind of level. `confidence` is that of each end of the bracket, which is `tolerance` wide in the end. A level that
    could not be judged is measured `probes_per_level` times. No probe is begun after `max_probes`, or after `budget_s` seconds of
    windows.
    """

    of: Literal["concurrency", "rate"] = "concurrency"
    lower: LevelBound = 1.0
    upper: LevelBound = 256.0
    confidence: Annotated[float, Ge(0.5), Lt(1)] = 0.95
    tolerance: PositiveFloat = 0.1
    probes_per_level: PositiveInt = 3
    max_probes: PositiveInt = 24
    budget_s: Seconds | None = 3600.0


@dataclass(frozen=True, kw_only=True)
class RampSettings(StrictSettings):
    """How a point's load rises to its level over `over_s` seconds, from `start` (a share of the level); `steps` is the
    number of equal steps of `shape=steps`. In a closed loop streams join; in an open loop the rate rises."""

    over_s: Seconds
    shape: Literal["linear", "steps", "exponential"] = "linear"
    start: Annotated[float, Ge(0), Lt(1)] = 0.1
    steps: PositiveInt = 5


@dataclass(frozen=True, kw_only=True)
class ReplaySettings(StrictSettings):
    """Arrival times to replay: those of the file `path`; null means the times that the workload gives its requests.

    A file is a Mooncake .jsonl, a BurstGPT or Azure .csv, or a requests.parquet of servebench with its `point`.
    """

    path: str | None = None
    point: str | None = None


@dataclass(frozen=True, kw_only=True)
class LoadSettings(StrictSettings):
    """Load levels and how each is driven. Exactly one of `concurrency`, `rate`, `search` and `replay` names the levels.

    `requests` is the number a point sends: a count, or `auto` (ten a stream and at least 50). With `duration_s` the point
    runs for that long instead; with `until` it ends as soon as it is precise (a share, or one for each metric), after at
    least `min_requests` and at most `max_duration_s`. A fixed number or time turns `until` off. With `while_growing` a level
    that does not raise output throughput by 5% is the last, on a run of one start without repeats. `warmup_requests` are sent
    before each point and not measured (`auto`: two a stream, at most 32). `workers` processes send the load (`auto`: one for
    each 2,000 streams, at most a quarter of the cores). `timeout_s` limits one request. `drain_s` is how long a point that is
    ended by time waits for its last answers (`auto`: four times the longest answer so far, at least 30 s).

    With `stagger` the streams of a closed loop start at random moments over one answer's time, as the warm-up shows it, and
    not all at once. With `hold_level` it keeps its level with requests that are not measured until the measured ones have
    ended. The window excludes the first `warmup_s`, the last `cooldown_s` and the last `cooldown_requests`. The
    client abandons `cancel_fraction` of the requests `cancel_after_s` after sending. `time_scale` stretches the times of a
    trace (0.5: twice as fast). `span_headers` sends `traceparent` and `x-session-id` with each request. `self_check` measures
    the client's own error before the study (`auto`: once a day on a machine).
    """

    name: str
    concurrency: tuple[Annotated[int, Ge(1), Le(1_000_000)], ...] | None = None
    rate: tuple[LevelBound, ...] | None = None
    search: SearchSettings | None = None
    replay: ReplaySettings | None = None
    time_scale: PositiveFloat = 1.0
    ramp: RampSettings | None = None
    stagger: bool = True
    hold_level: bool = True
    arrival: Literal["constant", "poisson", "gamma"] = "poisson"
    burstiness: PositiveFloat = 1.0
    max_concurrency: PositiveInt | None = None
    requests: RequestCount | Literal["auto"] | None = "auto"
    duration_s: Seconds | None = None
    until: str | float | Mapping[str, str | float] | None = None
    max_duration_s: Seconds = 60.0
    min_requests: PositiveInt = 30
    while_growing: bool = False
    warmup_requests: CountOrZero | Literal["auto"] = "auto"
    warmup_s: SecondsOrZero = 0.0
    cooldown_requests: CountOrZero = 0
    cooldown_s: SecondsOrZero = 0.0
    cancel_fraction: Annotated[float, Ge(0), Le(1)] = 0.0
    cancel_after_s: Seconds = 1.0
    timeout_s: Seconds = 600.0
    drain_s: Seconds | Literal["auto"] = "auto"
    connect_timeout_s: Seconds = 10.0
    span_headers: bool = False
    workers: PositiveInt | Literal["auto"] = "auto"
    repeats: PositiveInt = 1
    order: Literal["ascending", "shuffled", "interleaved"] = "ascending"
    self_check: Literal["auto", "always", "never"] = "auto"


@dataclass(frozen=True, kw_only=True)
class QualitySettings(StrictSettings):
    """Which scorer tests the running engine after the load; `none` skips this, `all` uses every scorer that can run.

    `tasks`: with `all` the scorers to use (empty: every one), with a harness its tasks. `items` questions are drawn by
    `seed`, or `all`. They are asked once at each `concurrency`, which shows quality under load. `path` is a local data
    file in place of the scorer's own; `shots` solved examples precede each question; `max_tokens` replaces the scorer's
    own limit of an answer. `timeout_s` limits one request.
    """

    name: str
    tasks: tuple[str, ...] = ()
    items: PositiveInt | Literal["all"] = 400
    concurrency: tuple[PositiveInt, ...] = (8,)
    seed: int = 0
    path: str | None = None
    shots: CountOrZero = 0
    api: str = "chat"
    max_tokens: PositiveInt | None = None
    timeout_s: Seconds = 300.0

    @property
    def count(self) -> int:
        """The most questions that are drawn."""
        return sys.maxsize if self.items == "all" else self.items


@dataclass(frozen=True, kw_only=True)
class SloSettings(StrictSettings):
    """The limits that a good request meets; null limits are not tested. `attainment` is the share that must be good."""

    ttft_ms: PositiveFloat | None = None
    tpot_ms: PositiveFloat | None = None
    e2e_ms: PositiveFloat | None = None
    attainment: Fraction = 0.99

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return (self.ttft_ms, self.tpot_ms, self.e2e_ms) != (None, None, None)


@dataclass(frozen=True, kw_only=True)
class TelemetrySettings(StrictSettings):
    """Sampling of the engine's processes and metrics while load runs; `interval_s` between samples."""

    enabled: bool = True
    interval_s: Seconds = 1.0


@dataclass(frozen=True, kw_only=True)
class TrackingSettings(StrictSettings):
    """Where parameters and metrics go: `mlflow` or `none`. A null `uri` is `MLFLOW_TRACKING_URI`, else a sqlite file
    in the outputs folder. `timeout_s` limits the wait for a dead server."""

    name: Literal["mlflow", "none"] = "mlflow"
    uri: str | None = None
    experiment: str = "servebench"
    timeout_s: Seconds = 5.0


@dataclass(frozen=True, kw_only=True)
class StudySettings(StrictSettings):
    """The study: `dir` is the outputs folder, `name` the study's folder in it (null: made from time and content).

    Each run is measured on `starts` starts of its engine; the runs take turns, one start each. Two starts of one engine
    differ, so a verdict on engines needs several: `auto` takes as many in a time that is said before, or one each where that
    is not possible. With `until: decided` the runs take turns until each pair of them is faster, slower or equal within
    `margin` at each level, or until the engines have run for `budget`; `starts`, if more than one, is then the most. With
    `until: gate` they take turns until it is known whether a run is worse than the first by more than `margin`, in `metrics`.
    With `slices` the engines that take turns are alive at once, and the load goes from one to the other every few seconds:
    `auto` where several starts are measured and the machine allows it. Before a level of an engine that servebench has
    started it waits while other programs take much of the machine, at most for `quiet_wait_s` in all.
    """

    dir: str = "outputs"
    name: str | None = None
    starts: PositiveInt | Literal["auto"] = "auto"
    until: Literal["decided", "gate"] | None = None
    margin: str | float = "3%"
    budget: str | float = "60m"
    metrics: tuple[str, ...] | None = None
    slices: Literal["auto", "never", "always"] = "auto"
    quiet_wait_s: SecondsOrZero = 60.0

    @property
    def most_starts(self) -> int:
        """The starts of each run, or the most if the study ends when it has decided."""
        given = 1 if self.starts == "auto" else self.starts
        return given if self.until is None or given > 1 else LOOKS[-1]

    @property
    def listed_starts(self) -> int:
        """The starts of each run that may ever be measured: `servebench resume --budget` goes on beyond the planned most."""
        return self.most_starts if self.until is None else max(self.most_starts, LOOKS[-1])


@dataclass(frozen=True, kw_only=True)
class RunSettings(StrictSettings):
    """The whole config of one run."""

    engine: EngineSettings
    launch: LaunchSettings
    model: ModelSettings
    gpu: GpuSettings
    workload: WorkloadSettings
    load: LoadSettings
    quality: QualitySettings
    slo: SloSettings
    telemetry: TelemetrySettings
    tracking: TrackingSettings
    study: StudySettings

    @property
    def sends_span_headers(self) -> bool:
        """Whether each request has a `traceparent`: spans are joined with requests by it."""
        return self.load.span_headers or self.engine.request_timings == "spans"
