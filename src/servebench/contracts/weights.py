"""The size of weights."""

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
