"""How near an engine comes to the data sheet of its GPUs: the roofline of `emulator.cost`, without its efficiencies."""

from collections.abc import Callable, Mapping
from typing import Any

from servebench.contracts.stored import is_number, mapping
from servebench.contracts.weights import kv_token_bytes, weight_bytes_per_parameter
from servebench.util.units import MS_PER_S

GIGA, TERA = 1e9, 1e12
SHARE_MAX = 1.05
"""Of a peak, with the rounding of data sheets."""


Means = Callable[[str], float | None]
"""Returns the mean of a column over the points of a level; None where it is unknown."""


def memory_share(config: Mapping[str, Any], mean: Means) -> float | None:
    """Return the bytes that a decode step must read (weights, and keys and values of its requests) over what the GPUs' memory
    could deliver in its time, the mean ITL; None unless the config describes model and GPU, and for more than all of it.

    By Little's law, request rate times decode time requests decode at once.
    """
    model, gpu = mapping(config.get("model")), mapping(config.get("gpu"))
    shape = [positive(model.get(name)) for name in ("parameters_b", "layers", "kv_heads", "head_dim")]
    pace = [mean(f"{name}_mean") for name in ("itl_ms", "input_tokens", "output_tokens")]
    known = (*shape, positive(gpu.get("bandwidth_gb_s")), _gpus(config), mean("request_throughput_req_s"), *pace)
    if not all(known):
        return None
    parameters, layers, kv_heads, head_dim, bandwidth, gpus, rate, step_ms, prompt, answer = (
        one or 0.0 for one in known
    )
    decode_ms = (mean("e2e_ms_mean") or 0.0) - (mean("ttft_ms_mean") or 0.0)
    together = max(1.0, rate * decode_ms / MS_PER_S)
    active = (positive(model.get("active_parameters_b")) or parameters) / parameters
    touched = 1.0 if active >= 1.0 else 1.0 - (1.0 - active) ** together
    context = together * (prompt + answer / 2)
    read = parameters * GIGA * weight_bytes(config) * touched + context * kv_token_bytes(layers, kv_heads, head_dim)
    return _possible(read / (bandwidth * GIGA * gpus * step_ms / MS_PER_S))


def compute_share(config: Mapping[str, Any], mean: Means) -> float | None:
    """Return the operations of the tokens that were computed (two for each active parameter; attention left out) over what
    the GPUs could do in that time; None unless the config describes model and GPU, and for more than all of it."""
    model, gpu = mapping(config.get("model")), mapping(config.get("gpu"))
    active = positive(model.get("active_parameters_b")) or positive(model.get("parameters_b"))
    fp8 = positive(gpu.get("fp8_tflops")) if weight_bytes(config) <= 1.0 else None
    peak, gpus, rate = fp8 or positive(gpu.get("bf16_tflops")), _gpus(config), mean("request_throughput_req_s")
    prompt, answer = mean("input_tokens_mean"), mean("output_tokens_mean")
    if not (active and peak and gpus and rate and prompt and answer):
        return None
    tokens = prompt * (1.0 - (mean("prefix_cache_hit_rate") or 0.0)) + answer
    return _possible(2 * active * GIGA * tokens * rate / (peak * TERA * gpus))


def _possible(share: float) -> float | None:
    """Return a share of a peak; None for more than there is: then the described GPU or model is not the one that was measured, or
    a step gives several tokens (speculation), and nothing follows."""
    return share if share <= SHARE_MAX else None


def weight_bytes(config: Mapping[str, Any]) -> float:
    """Return the bytes of a parameter of the configured model."""
    engine, name = mapping(config.get("engine")), mapping(config.get("model")).get("name")
    words = (str(engine[key]) if engine.get(key) else None for key in ("quantization", "dtype"))
    return weight_bytes_per_parameter(str(name or ""), *words)


def _gpus(config: Mapping[str, Any]) -> float:
    """Return the GPUs that one copy of the model is spread over."""
    parallel = positive(mapping(config.get("engine")).get("tensor_parallel_size"))
    return parallel or positive(mapping(config.get("gpu")).get("count")) or 0.0


def positive(value: Any) -> float | None:
    """Return a value as a number above 0; None for any other."""
    return float(value) if is_number(value) and value > 0 else None
