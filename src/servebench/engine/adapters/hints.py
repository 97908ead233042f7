"""The failures that every engine can have, recognized by its log lines, with the advice for each."""

from servebench.contracts.engine import LogHint

MODEL_NOT_FOUND = r"is not a local folder and is not a valid model identifier|Repository Not Found"
"""What the Hugging Face libraries log, which most engines use."""
NO_TRACING = r"OpenTelemetry is not available|opentelemetry package is not installed"
"""vLLM (`vllm/tracing/otel.py`) and SGLang (`srt/observability/trace.py`)."""
TRACING_PACKAGES = "opentelemetry-sdk and opentelemetry-exporter-otlp"


def log_hints(
    *,
    out_of_memory: str,
    memory_advice: str = "lower engine.gpu_memory_fraction or engine.max_model_len, free the GPU, or use more GPUs",
    model_missing: str = MODEL_NOT_FOUND,
    model_advice: str = "model not found: check model.name, or set model.path=",
    unknown_flag: str = r"unrecognized arguments|invalid choice|error: argument [^:]*: |error: ambiguous option",
    flag_advice: str = "unknown flag or wrong value: check engine.extra_args against this version",
    wrong_cuda: str = r"CUDA driver version is insufficient|no kernel image is available",
    build: str,
    port_in_use: str = r"[Aa]ddress already in use",
) -> tuple[LogHint, ...]:
    """Return the hints, from a pattern for each failure. `build` names what may not support the GPU, such as `this image`."""
    return (
        LogHint(out_of_memory, "out_of_memory", f"out of GPU memory: {memory_advice}"),
        LogHint(model_missing, "model_missing", model_advice),
        LogHint(unknown_flag, "unknown_flag", flag_advice),
        LogHint(wrong_cuda, "wrong_cuda", f"{build} does not support the GPU or its driver"),
        LogHint(port_in_use, "port_in_use", "the port is in use; choose another engine.port"),
        LogHint(
            NO_TRACING, "other", f"engine.request_timings=spans needs {TRACING_PACKAGES} where the engine is installed"
        ),
    )
