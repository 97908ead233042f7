"""TensorRT-LLM, by `trtllm-serve`.

Settings that it takes only in its YAML (dtype, prefix caching, graphs) are passed as a config file that the command
itself writes down, so that what is printed can be pasted. Never run here: flags and replies are those of 1.2 as read in
its sources (`commands/serve.py`, `llmapi/llm_args.py`).
"""

from __future__ import annotations

import json
from typing import Any

from servebench.contracts.engine import Command, ContainerImage, Dialect, Engine, LaunchContext, LogHint, PhaseMarker
from servebench.contracts.settings import EngineSettings, ModelSettings
from servebench.engine.emulations import TRTLLM
from servebench.engine.flags import FlagTable, extra_words, missing_executable

FLAGS = FlagTable(
    flags={
        "tensor_parallel_size": "--tp_size",
        "max_model_len": "--max_seq_len",
        "gpu_memory_fraction": "--kv_cache_free_gpu_memory_fraction",
        "max_num_seqs": "--max_batch_size",
    },
    # these two go into the YAML (see `llm_options`); here they only count as known
    switches={"prefix_caching": ([], [])},
    refused={
        "quantization": "trtllm-serve takes it from the checkpoint; give a quantized model",
        "seed": "trtllm-serve takes none; requests may carry one",
    },
)


def llm_options(settings: EngineSettings) -> dict[str, Any]:
    """What goes into the YAML of `--config`. Structured output needs its backend named there."""
    options: dict[str, Any] = {"guided_decoding_backend": "xgrammar", "return_perf_metrics": True}
    if settings.dtype is not None:
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
    """TensorRT-LLM's OpenAI-compatible server, PyTorch backend."""

    name = "trtllm"
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
        """Settings without a place, and a missing executable."""
        faults = [line for line in FLAGS.faults(context.engine) if not line.startswith("engine.dtype=")]
        return faults + missing_executable(context.engine, "trtllm-serve", "pip install tensorrt-llm")

    def command(self, context: LaunchContext) -> Command:
        """`trtllm-serve MODEL ... --config FILE`, in a shell that writes the file first. The shell is then replaced."""
        settings = context.engine
        config = context.cache_dir / "trtllm" / f"options-{context.port}.yaml"
        words = [
            settings.executable or "trtllm-serve",
            context.model.path or context.model.name,
            "--backend",
            "pytorch",
        ]
        words += ["--host", settings.host, "--port", str(context.port), *FLAGS.words(settings)]
        words += [*extra_words(settings.extra_args), "--config", str(config)]
        script = 'mkdir -p "$(dirname "$1")" && printf "%s\\n" "$2" > "$1" && shift 2 && exec "$@"'
        # JSON is YAML
        options = json.dumps(llm_options(settings))
        return Command(argv=("sh", "-c", script, "trtllm", str(config), options, *words), env=dict(settings.env))

    def served_model(self, model: ModelSettings) -> str:
        """It takes no name: a local folder is served by its last part, anything else by the name given."""
        return model.path.rstrip("/").rsplit("/", 1)[-1] if model.path else model.name
