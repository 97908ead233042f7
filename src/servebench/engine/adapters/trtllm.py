"""TensorRT-LLM: `trtllm-serve`, with its PyTorch backend or, up to 1.2, with its TensorRT backend.

Settings that it reads only from its YAML (dtype, prefix caching, graphs) are passed as a config file that the command itself
writes, so that the printed command can be pasted. Never run here: flags and responses are those of the 1.2 sources
(`commands/serve.py`, `llmapi/llm_args.py`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from servebench.contracts.engine import (
    Command,
    ContainerImage,
    Dialect,
    Engine,
    LaunchContext,
    LogHint,
    PhaseMarker,
    RunningEngine,
    ServerTimings,
)
from servebench.contracts.limits import Limit
from servebench.contracts.settings import EngineSettings, ModelSettings
from servebench.engine.adapters.engine_package import log_hints, read_emulation
from servebench.engine.adapters.flags import FlagTable, extra_arguments, missing_executable
from servebench.engine.adapters.knobs import LONGER_STEPS, argument, engine_knobs
from servebench.engine.supervisor.endpoint import json_at
from servebench.protocol.json_values import between, object_at
from servebench.util.bounded_http import client

FLAGS = FlagTable(
    flags={
        "tensor_parallel_size": "--tp_size",
        "max_model_len": "--max_seq_len",
        "gpu_memory_fraction": "--kv_cache_free_gpu_memory_fraction",
        "max_num_seqs": "--max_batch_size",
    },
    # written to the YAML (see `llm_options`); listed here because it is supported
    switches={"prefix_caching": ([], [])},
    unsupported_reasons={
        "quantization": "trtllm-serve reads it from the checkpoint; use a quantized model",
        "seed": "trtllm-serve has none; requests may carry one",
        "dtype": "a TensorRT engine has that of its weights; use engine.backend=pytorch",
    },
)


KEPT_MAX = 100_000
"""Requests of which the server keeps the times until they are read, after each point."""
KEPT_BYTES_MAX = 128 << 20
KEPT_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class TrtllmSettings(EngineSettings):
    """`backend` is `pytorch`, or `tensorrt` (up to 1.2): then `model.path` may be a built engine, and `model.tokenizer` names its
    tokenizer."""

    backend: Literal["pytorch", "tensorrt"] = "pytorch"


def llm_options(settings: EngineSettings) -> dict[str, Any]:
    """Return the contents of the YAML of `--config`. Structured output needs its backend there."""
    options: dict[str, Any] = {"guided_decoding_backend": "xgrammar", "return_perf_metrics": True}
    if settings.request_timings == "after_load":
        options["perf_metrics_max_requests"] = KEPT_MAX
    if settings.dtype is not None:
        options["dtype"] = settings.dtype
    if settings.prefix_caching is not None:
        options["kv_cache_config"] = {"enable_block_reuse": settings.prefix_caching}
    return options


KNOBS = engine_knobs(
    FLAGS,
    {
        Limit.TOKEN_BUDGET: (
            argument("max_num_tokens", default=8192, factor=2.0, cost=LONGER_STEPS),
            argument("enable_chunked_prefill", value=True, cost="long prompts take several steps"),
        ),
        Limit.FRONT_END: (argument("num_postprocess_workers", value=4, cost="a CPU core and some memory for each"),),
    },
    max_num_seqs=2048,
)


def kept_timings(item: Mapping[str, Any]) -> ServerTimings:
    """Return the times in an item of `GET /perf_metrics`: moments in seconds, of which only differences count
    (`serve/openai_server.py`)."""
    times = object_at(item, "perf_metrics", "timing_metrics")
    return ServerTimings(
        queue_ms=between(times, "arrival_time", "first_scheduled_time"),
        prefill_ms=between(times, "first_scheduled_time", "first_token_time"),
        decode_ms=between(times, "first_token_time", "last_token_time"),
    )


METRICS = {
    "requests_running": ("trtllm_num_requests_running",),
    "requests_waiting": ("trtllm_num_requests_waiting",),
    "kv_cache_usage": ("trtllm_kv_cache_utilization",),
    "queue_time_s_sum": ("trtllm_request_queue_time_seconds_sum",),
    "queue_time_s_count": ("trtllm_request_queue_time_seconds_count",),
    "prompt_tokens": ("trtllm_prompt_tokens_total",),
    "generation_tokens": ("trtllm_generation_tokens_total",),
}
"""`GET /prometheus/metrics`, with `return_perf_metrics`. 1.2 has only cache utilization and queue time; the others
are newer."""


class TrtllmEngine(Engine):
    """TensorRT-LLM's OpenAI-compatible server."""

    name = "trtllm"
    from_hub = True
    settings_type = TrtllmSettings
    default_port = 8000
    metrics_path = "/prometheus/metrics"
    # an unknown field is an error 400
    dialect = Dialect(exact_output={"ignore_eos": True})
    container = ContainerImage(
        image="nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
        arguments=("--ulimit", "memlock=-1", "--ulimit", "stack=67108864"),
    )
    version_path = "/version"
    metrics = METRICS
    settings_paths = ("/server_info",)
    knobs = KNOBS
    timings_sources = ("after_load",)
    emulation = read_emulation("servebench.engine.adapters", "trtllm")
    phases = (
        PhaseMarker("weights_loading", r"Prefetching .{0,200}checkpoint files|Loading safetensors weights in parallel"),
        PhaseMarker("autotuned", r"\[Autotuner\] Autotuning process ends"),
        PhaseMarker("graphs_captured", r"Creating CUDA graph instances for"),
        PhaseMarker("engine_built", r"Loading model done"),
        PhaseMarker("serving", r"Application startup complete"),
    )
    hints = (
        *log_hints(
            out_of_memory=r"out of memory|OutOfMemory",
            memory_advice="lower engine.gpu_memory_fraction (a share of the memory left after the weights), "
            "engine.max_num_seqs or engine.max_model_len",
            unknown_flag=r"[Nn]o such option",
            wrong_cuda=r"CUDA driver version is insufficient|no kernel image is available|Unsupported .{0,200}sm",
            build="this build of TensorRT-LLM",
        ),
        LogHint(
            r"Invalid value for '--backend'",
            "unknown_flag",
            "TensorRT-LLM after 1.2 has no TensorRT backend: use engine.backend=pytorch, or install 1.2",
        ),
        LogHint(r"libmpi|MPI_Init", "other", "TensorRT-LLM needs OpenMPI: apt-get install libopenmpi-dev"),
    )

    def check(self, context: LaunchContext) -> list[str]:
        """Report unsupported settings and a missing executable."""
        settings = context.engine
        problems = FLAGS.unsupported(settings)
        if isinstance(settings, TrtllmSettings) and settings.backend == "pytorch":
            problems = [line for line in problems if not line.startswith("engine.dtype=")]
        return problems + missing_executable(settings, "trtllm-serve", "pip install tensorrt-llm")

    def command(self, context: LaunchContext) -> Command:
        """Return `trtllm-serve MODEL ... --config FILE`, in a shell that first writes the file and is then replaced."""
        settings, model = context.engine, context.model
        assert isinstance(settings, TrtllmSettings)
        config = context.cache_dir / "trtllm" / f"options-{context.port}.yaml"
        arguments = [settings.executable or "trtllm-serve", model.path or model.name, "--backend", settings.backend]
        if settings.backend == "tensorrt" and model.tokenizer is not None:
            arguments += ["--tokenizer", model.tokenizer]
        arguments += ["--host", settings.host, "--port", str(context.port), *FLAGS.arguments(settings)]
        arguments += [*extra_arguments(settings.extra_args), "--config", str(config)]
        script = 'mkdir -p "$(dirname "$1")" && printf "%s\\n" "$2" > "$1" && shift 2 && exec "$@"'
        # JSON is YAML
        options = json.dumps(llm_options(settings))
        return Command(argv=("sh", "-c", script, "trtllm", str(config), options, *arguments), env=dict(settings.env))

    def timings_after_load(self, context: LaunchContext, running: RunningEngine) -> Mapping[str, ServerTimings]:
        """Return the times of `GET /perf_metrics`, which empties the server's list. Newer versions name answers by the same
        number (`serve/postprocess_handlers.py`); those of older ones are not found."""
        options: Any = {"verify_tls": running.verify_tls, "timeout_s": KEPT_TIMEOUT_S, "bytes_max": KEPT_BYTES_MAX}
        with client(running.headers, **options) as http:
            listed = json_at(http, f"{running.root_url}/perf_metrics")
        found: dict[str, ServerTimings] = {}
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict) and isinstance(one.get("request_id"), int):
                timings = kept_timings(one)
                found |= {f"{kind}-{one['request_id']}": timings for kind in ("chatcmpl", "cmpl")}
        return found

    def served_model(self, model: ModelSettings) -> str:
        """Return the last part of a local folder, else the model's name: the server takes no other name."""
        return model.path.rstrip("/").rsplit("/", 1)[-1] if model.path else model.name
