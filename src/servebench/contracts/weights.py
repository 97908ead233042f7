"""The size of weights, and of keys and values."""

import re
from collections.abc import Mapping
from typing import Any

FP8_NAMES = ("fp8", "fp4", "mxfp4", "int8", "w8a8", "awq", "gptq", "q4", "q8", "gguf")
BITS = {"fp4": 0.53, "mxfp4": 0.53, "awq": 0.56, "gptq": 0.56, "q4": 0.6}
"""Bytes per parameter of formats with 4-bit values and scales."""

DTYPE_BYTES = {"float32": 4.0, "fp32": 4.0, "float": 4.0}


def weight_bytes_per_parameter(name: str, quantization: str | None, dtype: str | None) -> float:
    """Return the bytes per parameter, from the engine's settings or else from the model's name."""
    description = f"{quantization or ''} {name}".lower()
    for word, size in BITS.items():
        if word in description or (word == "mxfp4" and "gpt-oss" in description):
            return size
    if any(word in description for word in FP8_NAMES):
        return 1.0
    return DTYPE_BYTES.get((dtype or "").lower(), 2.0)


NAMED_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)
"""The parameters in a model's name, in billions: `Qwen/Qwen2.5-7B-Instruct`."""


def weights_gb(model: Mapping[str, Any], engine: Mapping[str, Any]) -> float | None:
    """Return the size of a model's weights, from its parameters, or those that its name says; null if neither is known."""
    name = str(model.get("name") or "")
    named = NAMED_SIZE.findall(name)
    parameters = model.get("parameters_b") or (float(named[-1]) if named else None)
    return parameters and parameters * weight_bytes_per_parameter(name, engine.get("quantization"), engine.get("dtype"))


def kv_token_bytes(layers: float, kv_heads: float, head_dim: float, value_bytes: float = 2.0) -> float:
    """Return the bytes of the keys and values of a token: one of each, of all layers and heads."""
    return 2 * layers * kv_heads * head_dim * value_bytes
