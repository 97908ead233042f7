"""The duration of a step: a roofline of the model on the GPU, or a profile fitted to published numbers.

Roofline (Williams, Waterman, Patterson 2009: time is the larger of bytes / bandwidth and operations / rate). A step that
computes `tokens` tokens (one per decoding sequence, any number of a prompt) over `context` cached tokens takes, in seconds,

    memory  = (weights * touched + context * kv_bytes) / (n * bandwidth * memory_efficiency)
    compute = (2 * active * tokens + 4 * layers * heads * head_dim * attended) / (n * rate * compute_efficiency)
    step    = max(memory, compute) + overhead + sequences * sequence_overhead + communication

- `weights` bytes of all parameters, `active` the parameters that one token uses: 2 operations each, multiply and add;
- `touched`: a mixture of experts reads the experts that any token of the step uses: 1 - (1 - active / total) ** tokens;
- `kv_bytes` per cached token: 2 (key and value) * layers * kv_heads * head_dim * bytes per value;
- attention: 2 products of 2 operations per value and pair of tokens; `attended` counts the pairs;
- communication with tensor parallelism over n GPUs: two all-reduces per layer (Shoeybi et al. 2019, Megatron-LM), each
  ALL_REDUCE_LATENCY_S + 2 * (n - 1) / n * tokens * hidden * 2 bytes / LINK_GB_S.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from servebench.contracts.emulation import DEFAULT_MODEL, EmulationSpec
from servebench.contracts.weights import kv_token_bytes

MS = 1e-3
GIGA = 1e9
TERA = 1e12

ALL_REDUCE_LATENCY_S = 12e-6
LINK_GB_S = 300.0
"""One direction of an SXM GPU's NVLink without protocol overhead: an order of magnitude, not a measurement."""

EAGER_MS_PER_LAYER = 0.22
"""Cost per step of launching each kernel of a layer from Python: the 4090 article's eager vLLM takes 10.6 ms per token, its
compiled engines 4.4, with 28 layers."""

DEFAULT_GPU = {"bandwidth_gb_s": 40.0, "bf16_tflops": 1.0, "memory_gb": 16.0}
"""Without a described GPU: the order of magnitude of a desktop's CPU and memory."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A model and its machine, in SI units. Rates are for all GPUs together."""

    parameters: float
    active: float
    weight_bytes: float
    layers: int
    hidden: int
    heads: int
    head_dim: int
    kv_token_bytes: float
    bandwidth: float
    rate: float
    memory_bytes: float
    gpus: int


@dataclass(frozen=True, kw_only=True)
class BatchStep:
    """What one step computes: `decoding` sequences after padding, `prompt` tokens of prompts, `context` cached tokens read,
    `structured` sequences with a schema."""

    decoding: int
    prompt: int = 0
    context: int = 0
    structured: int = 0
    eager: bool = False


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The duration of a step, fitted to published numbers: few parameters, the same at every load level.

    A step takes `decode_ms + sequence_ms * (sequences - 1) ** exponent` plus, from `wide_from` sequences on,
    `wide_ms + wide_sequence_ms * sequences`; each token of a prompt adds `prompt_token_ms`. The front end takes `request_ms`
    for each request, one after another; `latency_ms` is the load-independent delay before the queue, log-normal with
    `latency_sigma`. `max_num_seqs`, `token_budget`, `mixed_steps`, `batch_sizes` and `kv_tokens` replace the engine's own
    values if the article's numbers show others.
    """

    decode_ms: float
    sequence_ms: float = 0.0
    exponent: float = 1.0
    wide_from: int | None = None
    wide_ms: float = 0.0
    wide_sequence_ms: float = 0.0
    prompt_token_ms: float = 0.0
    request_ms: float = 0.0
    latency_ms: float = 0.0
    latency_sigma: float = 0.0
    max_num_seqs: int | None = None
    token_budget: int | None = None
    mixed_steps: bool | None = None
    batch_sizes: tuple[int, ...] | None = None
    kv_tokens: int | None = None


def _with_defaults(described: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {**defaults, **{key: value for key, value in described.items() if value is not None}}


def model_shape(spec: EmulationSpec) -> ModelShape:
    """Return model and machine of a specification, with the defaults above for missing values."""
    model, gpu = _with_defaults(spec.model, DEFAULT_MODEL), _with_defaults(spec.gpu, DEFAULT_GPU)
    gpus = max(1, spec.tensor_parallel)
    fast = spec.bytes_per_parameter <= 1.0 and spec.gpu.get("fp8_tflops")
    return ModelShape(
        parameters=model["parameters_b"] * GIGA,
        active=model.get("active_parameters_b", model["parameters_b"]) * GIGA,
        weight_bytes=spec.weight_gb * GIGA,
        layers=model["layers"],
        hidden=model["hidden_size"],
        heads=model["heads"],
        head_dim=model["head_dim"],
        kv_token_bytes=kv_token_bytes(model["layers"], model["kv_heads"], model["head_dim"]),
        bandwidth=gpus * gpu["bandwidth_gb_s"] * GIGA,
        rate=gpus * gpu["fp8_tflops" if fast else "bf16_tflops"] * TERA,
        memory_bytes=gpus * gpu["memory_gb"] * GIGA,
        gpus=gpus,
    )


class StepCost:
    """The duration of steps and of the front end."""

    def __init__(self, spec: EmulationSpec, profile: Profile | None = None) -> None:
        """A `profile` replaces the roofline."""
        self.shape = model_shape(spec)
        self.profile = profile
        self._emulation = spec.emulation
        self._eager = spec.eager
        self._speculative = spec.speculative_tokens

    @property
    def request_s(self) -> float:
        """The front-end time of each request, one after another."""
        return MS * (self._emulation.request_overhead_ms if self.profile is None else self.profile.request_ms)

    def latency_s(self, rng: random.Random) -> float:
        """Return a random delay between a request and the queue, independent of the load."""
        if self.profile is None or not self.profile.latency_ms:
            return 0.0
        return self.profile.latency_ms * MS * rng.lognormvariate(0.0, self.profile.latency_sigma)

    def seconds(self, step: BatchStep, now_s: float = 0.0) -> float:
        """Return the duration of a step that begins at `now_s`, which only an engine that is not always equally fast uses."""
        base = self._roofline(step) if self.profile is None else _fitted(self.profile, step)
        if self._speculative > 1:
            # the passes of a draft model, and the verification of all its tokens at once
            base *= 1.0 + DRAFT_SHARE * self._speculative
        extra = step.structured * self._emulation.structured_ms * MS
        if self._eager or step.eager:
            extra += EAGER_MS_PER_LAYER * self.shape.layers * MS
        return base + extra

    def _roofline(self, step: BatchStep) -> float:
        shape, own = self.shape, self._emulation
        tokens = step.decoding + step.prompt
        share = shape.active / shape.parameters
        touched = 1.0 if share >= 1.0 else 1.0 - (1.0 - share) ** max(1, tokens)
        memory = (shape.weight_bytes * touched + step.context * shape.kv_token_bytes) / (
            shape.bandwidth * own.memory_efficiency
        )
        attended = step.context + step.prompt * step.prompt / 2
        operations = 2 * shape.active * tokens + 4 * shape.layers * shape.heads * shape.head_dim * attended
        compute = operations / (shape.rate * own.compute_efficiency)
        overhead = (own.step_overhead_ms + own.sequence_overhead_ms * step.decoding) * MS
        return max(memory, compute) + overhead + self._communication(tokens)

    def _communication(self, tokens: int) -> float:
        shape = self.shape
        if shape.gpus == 1:
            return 0.0
        sent = 2 * (shape.gpus - 1) / shape.gpus * tokens * shape.hidden * 2
        return 2 * shape.layers * (ALL_REDUCE_LATENCY_S + sent / (LINK_GB_S * GIGA))


DRAFT_SHARE = 0.08
"""The cost of each drafted token, as a fraction of a step of the model itself."""


def _fitted(profile: Profile, step: BatchStep) -> float:
    sequences = max(1, step.decoding)
    duration_ms = profile.decode_ms + profile.sequence_ms * (sequences - 1) ** profile.exponent
    if profile.wide_from is not None and sequences >= profile.wide_from:
        duration_ms += profile.wide_ms + profile.wide_sequence_ms * sequences
    return float(duration_ms + step.prompt * profile.prompt_token_ms) * MS


def kv_capacity(spec: EmulationSpec, shape: ModelShape) -> int:
    """Return how many tokens of keys and values fit next to the weights. A model that does not fit still gets memory for one
    request of its context length: the emulator imitates the schedule, not the memory of the weights."""
    if spec.kv_tokens is not None:
        return spec.kv_tokens
    fraction = spec.gpu_memory_fraction or spec.emulation.memory_fraction
    free = shape.memory_bytes * fraction - shape.weight_bytes
    return max(spec.max_model_len or 4096, int(free / shape.kv_token_bytes))


def with_profile(spec: EmulationSpec, profile: Profile | None) -> EmulationSpec:
    """Return the specification with the scheduler settings that a profile replaces."""
    if profile is None:
        return spec
    changes: dict[str, Any] = {
        name: value
        for name in ("max_num_seqs", "token_budget", "mixed_steps", "batch_sizes")
        if (value := getattr(profile, name)) is not None
    }
    # a profile's values apply to its GPU, whatever its size
    changes |= {f"{name}_big": None for name in ("max_num_seqs", "token_budget") if name in changes}
    capacity = profile.kv_tokens if profile.kv_tokens is not None else spec.kv_tokens
    return replace(spec, emulation=replace(spec.emulation, **changes), kv_tokens=capacity)


@cache
def stored_profiles() -> list[dict[str, Any]]:
    """Return all stored profiles."""
    path = files("servebench.emulator") / "data" / "profiles.json"
    stored: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return stored


def profile_for(spec: EmulationSpec) -> Profile | None:
    """Return the profile of this engine, GPU, number of GPUs and model; None if there is none (the roofline is used). A profile
    with a `variant` applies only to that backend of the engine."""
    for entry in stored_profiles():
        if (
            entry["engine"] == spec.engine
            and entry["gpu"] == spec.gpu.get("name")
            and entry["gpus"] == spec.tensor_parallel
            and str(spec.model.get("name") or "").rsplit("/", 1)[-1].lower() in entry["models"]
            and entry.get("variant") in (None, spec.variant)
        ):
            numbers = dict(entry["profile"])
            if "batch_sizes" in numbers:
                numbers["batch_sizes"] = tuple(numbers["batch_sizes"])
            return Profile(**numbers)
    return None
