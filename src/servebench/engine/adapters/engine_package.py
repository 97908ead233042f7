"""What an engine has in addition to its class: the hooks of a plugin with one engine, `emulations.yaml`, and the failures that
every engine can have, recognized by its log lines, with the advice for each."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from servebench.contracts.emulation import Emulation, Loading
from servebench.contracts.engine import Engine, LogHint
from servebench.contracts.hooks import hookimpl
from servebench.util.bounded_file import load_yaml

EngineHooks = tuple[Callable[[], Sequence[type[Engine]]], Callable[[], Sequence[str]]]
MODEL_NOT_FOUND = r"is not a local folder and is not a valid model identifier|Repository Not Found"
"""What the Hugging Face libraries log, which most engines use."""
NO_TRACING = r"OpenTelemetry is not available|opentelemetry package is not installed"
"""vLLM (`vllm/tracing/otel.py`) and SGLang (`srt/observability/trace.py`)."""
TRACING_PACKAGES = "opentelemetry-sdk and opentelemetry-exporter-otlp"


@cache
def _stored(package: str) -> dict[str, dict[str, Any]]:
    text = files(package).joinpath("emulations.yaml").read_text(encoding="utf-8")
    stored: dict[str, dict[str, Any]] = load_yaml(text)
    return stored


def read_emulation(package: str, engine: str) -> Emulation:
    """Return how an engine is emulated: its entry in `emulations.yaml` of the package, with the fields of Emulation that
    differ from their defaults."""
    values = _stored(package)[engine]
    phases = tuple(Loading(**one) for one in values["loading"])
    return Emulation(**{**values, "batch_sizes": tuple(values.get("batch_sizes", ())), "loading": phases})


def engine_hooks(engine: type[Engine]) -> EngineHooks:
    """Return `servebench_engines` and `servebench_config_paths` of an engine whose package has a folder `conf`."""

    @hookimpl
    def servebench_engines() -> Sequence[type[Engine]]:
        return (engine,)

    @hookimpl
    def servebench_config_paths() -> Sequence[str]:
        return (f"pkg://{engine.__module__.partition('.')[0]}.conf",)

    return servebench_engines, servebench_config_paths


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
