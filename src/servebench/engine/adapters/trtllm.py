"""TensorRT-LLM, by `trtllm-serve`, with its PyTorch backend or, up to 1.2, with a built TensorRT engine.

Settings that it takes only in its YAML (dtype, prefix caching, graphs) are passed as a config file that the command
itself writes down, so that what is printed can be pasted. Never run here: flags and replies are those of 1.2 as read in
its sources (`commands/serve.py`, `commands/build.py`, `llmapi/llm_args.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from servebench.contracts.engine import (
    Command,
    ContainerImage,
    Dialect,
    Engine,
    LaunchContext,
    LogHint,
    PhaseMarker,
    Preparation,
    Say,
)
from servebench.contracts.settings import EngineSettings, ModelSettings, PositiveFloat
from servebench.engine.adapters import trtllm_build
from servebench.engine.adapters.emulations import TRTLLM
from servebench.engine.adapters.flags import FlagTable, extra_arguments, missing_executable
from servebench.engine.adapters.trtllm_build import BuildPlan

FLAGS = FlagTable(
    flags={
        "tensor_parallel_size": "--tp_size",
        "max_model_len": "--max_seq_len",
        "gpu_memory_fraction": "--kv_cache_free_gpu_memory_fraction",
        "max_num_seqs": "--max_batch_size",
    },
    # these two go into the YAML (see `llm_options`); here they only count as known
    switches={"prefix_caching": ([], [])},
    unsupported_reasons={
        "quantization": "trtllm-serve takes it from the checkpoint; give a quantized model",
        "seed": "trtllm-serve takes none; requests may carry one",
    },
)


@dataclass(frozen=True, kw_only=True)
class TrtllmSettings(EngineSettings):
    """`backend`: `pytorch`, or `tensorrt` for an engine that is built first and kept.

    For `tensorrt`: `convert_script` is TensorRT-LLM's `examples/models/core/FAMILY/convert_checkpoint.py`, not needed where
    `model.path` is a converted checkpoint or a built engine; `convert_args` and `build_args` are further flags of it and of
    `trtllm-build`, as in `extra_args`; `builder` is that program; `build_timeout_s` bounds each of the two steps.
    """

    backend: Literal["pytorch", "tensorrt"] = "pytorch"
    convert_script: str | None = None
    convert_args: Mapping[str, Any] = field(default_factory=dict)
    build_args: Mapping[str, Any] = field(default_factory=dict)
    builder: str = trtllm_build.BUILDER
    build_timeout_s: PositiveFloat = 7200.0


CONVERT_FLAGS = FlagTable(flags={"tensor_parallel_size": "--tp_size", "dtype": "--dtype"})
BUILD_FLAGS = FlagTable(
    flags={"tensor_parallel_size": "--workers", "max_model_len": "--max_seq_len", "max_num_seqs": "--max_batch_size"}
)


def build_plan(context: LaunchContext) -> BuildPlan | None:
    """What must be built for this context; null for a built engine. Looks only at whether `model.path` is one, or a
    converted checkpoint. Paged cache and paged context attention are what reuse of prefixes needs."""
    settings = context.engine
    assert isinstance(settings, TrtllmSettings)
    model = Path(context.model.path or context.model.name)
    if trtllm_build.is_engine(model):
        return None
    checkpoint, convert = str(model), None
    if not trtllm_build.is_checkpoint(model):
        checkpoint = "{work}/checkpoint"
        script = settings.convert_script or "convert_checkpoint.py"
        words = ["python3", script] if script.endswith(".py") else [script]
        words += ["--model_dir", str(model), "--output_dir", checkpoint, *CONVERT_FLAGS.arguments(settings)]
        convert = Command(argv=(*words, *extra_arguments(settings.convert_args)), env=dict(settings.env))
    words = [settings.builder, "--checkpoint_dir", checkpoint, "--output_dir", "{work}/engine"]
    words += ["--kv_cache_type", "paged", "--use_paged_context_fmha", "enable", "--gemm_plugin", "auto"]
    build = Command(
        argv=(*words, *BUILD_FLAGS.arguments(settings), *extra_arguments(settings.build_args)), env=dict(settings.env)
    )
    asked = {
        "model": [context.model.name, str(model), context.model.revision],
        "gpu": [context.gpu.name, context.gpu.count],
        "convert": convert.argv if convert else None,
        "build": build.argv,
        "env": dict(settings.env),
    }
    return BuildPlan(
        home=context.cache_dir / "trtllm" / "engines" / trtllm_build.digest(asked),
        served_name=model.name,
        convert=convert,
        build=build,
        model=model,
        executable=settings.builder,
        timeout_s=settings.build_timeout_s,
    )


def llm_options(settings: EngineSettings, backend: str = "pytorch") -> dict[str, Any]:
    """What goes into the YAML of `--config`. Structured output needs its backend named there. The type of a built engine's
    weights is in the engine."""
    options: dict[str, Any] = {"guided_decoding_backend": "xgrammar", "return_perf_metrics": True}
    if settings.dtype is not None and backend == "pytorch":
        options["dtype"] = settings.dtype
    if settings.prefix_caching is not None:
        options["kv_cache_config"] = {"enable_block_reuse": settings.prefix_caching}
    return options


METRICS = {
    "requests_running": ("trtllm_num_requests_running",),
    "requests_waiting": ("trtllm_num_requests_waiting",),
    "kv_cache_usage": ("trtllm_kv_cache_utilization",),
    "queue_time_s_sum": ("trtllm_request_queue_time_seconds_sum",),
    "queue_time_s_count": ("trtllm_request_queue_time_seconds_count",),
    "prompt_tokens": ("trtllm_prompt_tokens_total",),
    "generation_tokens": ("trtllm_generation_tokens_total",),
}
"""`GET /prometheus/metrics`, with `return_perf_metrics`. The 1.2 line has only cache utilization and queue time; the others
came later."""


class TrtllmEngine(Engine):
    """TensorRT-LLM's OpenAI-compatible server."""

    name = "trtllm"
    settings_type = TrtllmSettings
    default_port = 8000
    metrics_path = "/prometheus/metrics"
    # an unknown field is an error 400 there
    dialect = Dialect(exact_output={"ignore_eos": True})
    container = ContainerImage(
        image="nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
        arguments=("--ulimit", "memlock=-1", "--ulimit", "stack=67108864"),
    )
    version_path = "/version"
    metrics = METRICS
    settings_paths = ("/server_info",)
    emulation = TRTLLM
    phases = (
        PhaseMarker("weights_loading", r"Prefetching .*checkpoint files|Loading safetensors weights in parallel"),
        PhaseMarker("autotuned", r"\[Autotuner\] Autotuning process ends"),
        PhaseMarker("graphs_captured", r"Creating CUDA graph instances for"),
        PhaseMarker("engine_built", r"Loading model done"),
        PhaseMarker("serving", r"Application startup complete"),
    )
    hints = (
        LogHint(
            r"out of memory|OutOfMemory",
            "out_of_memory",
            "lower engine.gpu_memory_fraction (a share of what is free after the weights), max_num_seqs or max_model_len",
        ),
        LogHint(
            r"is not a local folder and is not a valid model identifier|Repository Not Found",
            "model_missing",
            "check model.name, or give model.path=",
        ),
        LogHint(r"No such option|no such option", "unknown_flag", "check engine.extra_args against this version"),
        LogHint(
            r"CUDA driver version is insufficient|no kernel image is available|Unsupported .*sm",
            "wrong_cuda",
            "this build of TensorRT-LLM does not fit the GPU or its driver",
        ),
        LogHint(r"libmpi|MPI_Init", "other", "TensorRT-LLM needs OpenMPI: apt-get install libopenmpi-dev"),
        LogHint(r"[Aa]ddress already in use", "port_in_use", "choose another engine.port"),
    )

    def check(self, context: LaunchContext) -> list[str]:
        """Settings without a place, and a missing executable; for `tensorrt` what the build lacks."""
        settings = context.engine
        assert isinstance(settings, TrtllmSettings)
        faults = [line for line in FLAGS.unsupported(settings) if not line.startswith("engine.dtype=")]
        if settings.backend == "tensorrt":
            faults += _build_faults(context, settings)
        return faults + missing_executable(settings, "trtllm-serve", "pip install tensorrt-llm")

    def prepare(self, context: LaunchContext, say: Say) -> None:
        """For `tensorrt`: convert and build, or find the engine built. Raises EngineError."""
        plan = self._plan(context)
        if plan is not None:
            trtllm_build.prepare(plan, self.hints, say)

    def preparations(self, context: LaunchContext) -> Sequence[Preparation]:
        """How long the engine's build took, and whether it was reused."""
        plan = self._plan(context)
        return trtllm_build.prepared(plan) if plan is not None else ()

    def prepare_commands(self, context: LaunchContext) -> Sequence[Command]:
        """Conversion and build; what they make stands here in the working folder."""
        plan = self._plan(context)
        found = (plan.convert, plan.build) if plan is not None else ()
        return tuple(trtllm_build.filled(one, Path()) for one in found if one is not None)

    def _plan(self, context: LaunchContext) -> BuildPlan | None:
        settings = context.engine
        return build_plan(context) if isinstance(settings, TrtllmSettings) and settings.backend == "tensorrt" else None

    def command(self, context: LaunchContext) -> Command:
        """`trtllm-serve MODEL ... --config FILE`, in a shell that writes the file first. The shell is then replaced."""
        settings = context.engine
        assert isinstance(settings, TrtllmSettings)
        config = context.cache_dir / "trtllm" / f"options-{context.port}.yaml"
        model, plan = context.model.path or context.model.name, self._plan(context)
        served = str(plan.engine) if plan is not None else model
        words = [settings.executable or "trtllm-serve", served, "--backend", settings.backend]
        if plan is not None:
            words += ["--tokenizer", context.model.tokenizer or model]
        words += ["--host", settings.host, "--port", str(context.port), *FLAGS.arguments(settings)]
        words += [*extra_arguments(settings.extra_args), "--config", str(config)]
        script = 'mkdir -p "$(dirname "$1")" && printf "%s\\n" "$2" > "$1" && shift 2 && exec "$@"'
        # JSON is YAML
        options = json.dumps(llm_options(settings, settings.backend))
        return Command(argv=("sh", "-c", script, "trtllm", str(config), options, *words), env=dict(settings.env))

    def served_model(self, model: ModelSettings) -> str:
        """It takes no name: a local folder is served by its last part, anything else by the name given."""
        return model.path.rstrip("/").rsplit("/", 1)[-1] if model.path else model.name


def _build_faults(context: LaunchContext, settings: TrtllmSettings) -> list[str]:
    faults = []
    if context.model.path is None:
        faults.append("a TensorRT engine (engine.backend=tensorrt) is built from a local folder; give model.path=")
    plan = build_plan(context)
    if plan is None:
        return faults
    newer = trtllm_build.too_new(trtllm_build.installed_versions(settings.builder))
    if newer is not None:
        faults.append(
            f"TensorRT-LLM {newer} has no TensorRT engines any more (the last with them is 1.2); "
            "install that, or use engine.backend=pytorch"
        )
    if plan.convert is not None and settings.convert_script is None:
        faults.append(
            "the model must be converted first (engine.backend=tensorrt); give engine.convert_script=, "
            "TensorRT-LLM's examples/models/core/FAMILY/convert_checkpoint.py, or a converted model.path="
        )
    elif plan.convert is not None and not Path(settings.convert_script or "").is_file():
        faults.append(f"there is no {settings.convert_script} here (engine.convert_script)")
    if trtllm_build.installed_versions(settings.builder) == {}:
        faults.append(f"no '{settings.builder}' here (engine.builder); it comes with TensorRT-LLM up to 1.2")
    return faults
