"""TensorRT-LLM: `trtllm-serve`, with its PyTorch backend or, up to 1.2, with a built TensorRT engine.

Settings that it reads only from its YAML (dtype, prefix caching, graphs) are passed as a config file that the command itself
writes, so that the printed command can be pasted. Never run here: flags and responses are those of the 1.2 sources
(`commands/serve.py`, `commands/build.py`, `llmapi/llm_args.py`).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson

from servebench.contracts.engine import (
    Command,
    ContainerImage,
    Dialect,
    Engine,
    LaunchContext,
    LogHint,
    PhaseMarker,
    Preparation,
    RunningEngine,
    Say,
    ServerTimings,
)
from servebench.contracts.limits import Limit
from servebench.contracts.settings import EngineSettings, ModelSettings
from servebench.engine.adapters import trtllm_build
from servebench.engine.adapters.engine_package import read_emulation
from servebench.engine.adapters.flags import FlagTable, extra_arguments, missing_executable
from servebench.engine.adapters.hints import log_hints
from servebench.engine.adapters.knobs import LONGER_STEPS, argument, engine_knobs
from servebench.engine.adapters.trtllm_plan import BuildPlan, TrtllmSettings, build_plan, in_folder
from servebench.protocol.json_values import between
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
    },
)


KEPT_MAX = 100_000
"""Requests of which the server keeps the times until they are read, after each point."""
KEPT_BYTES_MAX = 128 << 20
KEPT_TIMEOUT_S = 60.0


def llm_options(settings: EngineSettings, backend: str = "pytorch") -> dict[str, Any]:
    """Return the contents of the YAML of `--config`.

    Structured output needs its backend there. A built engine already contains the type of its weights.
    """
    options: dict[str, Any] = {"guided_decoding_backend": "xgrammar", "return_perf_metrics": True}
    if settings.request_timings == "after_load":
        options["perf_metrics_max_requests"] = KEPT_MAX
    if settings.dtype is not None and backend == "pytorch":
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
    metrics = item.get("perf_metrics")
    times = metrics.get("timing_metrics") if isinstance(metrics, dict) else None
    if not isinstance(times, dict):
        return ServerTimings()
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
        LogHint(r"libmpi|MPI_Init", "other", "TensorRT-LLM needs OpenMPI: apt-get install libopenmpi-dev"),
    )

    def check(self, context: LaunchContext) -> list[str]:
        """Report unsupported settings and a missing executable; for `tensorrt` also what the build lacks."""
        settings = context.engine
        assert isinstance(settings, TrtllmSettings)
        problems = [line for line in FLAGS.unsupported(settings) if not line.startswith("engine.dtype=")]
        if settings.backend == "tensorrt":
            problems += _build_problems(context, settings)
        return problems + missing_executable(settings, "trtllm-serve", "pip install tensorrt-llm")

    def prepare(self, context: LaunchContext, say: Say) -> None:
        """For `tensorrt`: convert and build the engine, or reuse a built one. Raises EngineError."""
        plan = self._plan(context)
        if plan is not None:
            trtllm_build.prepare(plan, self.hints, say)

    def preparations(self, context: LaunchContext) -> Sequence[Preparation]:
        """Return how long the engine's build took, and whether it was reused."""
        plan = self._plan(context)
        return trtllm_build.last_preparation(plan) if plan is not None else ()

    def prepare_commands(self, context: LaunchContext) -> Sequence[Command]:
        """Return conversion and build, with the current folder as their working folder."""
        plan = self._plan(context)
        commands = (plan.convert, plan.build) if plan is not None else ()
        return tuple(in_folder(command, Path()) for command in commands if command is not None)

    def _plan(self, context: LaunchContext) -> BuildPlan | None:
        settings = context.engine
        return build_plan(context) if isinstance(settings, TrtllmSettings) and settings.backend == "tensorrt" else None

    def command(self, context: LaunchContext) -> Command:
        """Return `trtllm-serve MODEL ... --config FILE`, in a shell that first writes the file and is then replaced."""
        settings = context.engine
        assert isinstance(settings, TrtllmSettings)
        config = context.cache_dir / "trtllm" / f"options-{context.port}.yaml"
        model, plan = context.model.path or context.model.name, self._plan(context)
        served = str(plan.engine) if plan is not None else model
        arguments = [settings.executable or "trtllm-serve", served, "--backend", settings.backend]
        if plan is not None:
            arguments += ["--tokenizer", context.model.tokenizer or model]
        arguments += ["--host", settings.host, "--port", str(context.port), *FLAGS.arguments(settings)]
        arguments += [*extra_arguments(settings.extra_args), "--config", str(config)]
        script = 'mkdir -p "$(dirname "$1")" && printf "%s\\n" "$2" > "$1" && shift 2 && exec "$@"'
        # JSON is YAML
        options = json.dumps(llm_options(settings, settings.backend))
        return Command(argv=("sh", "-c", script, "trtllm", str(config), options, *arguments), env=dict(settings.env))

    def timings_after_load(self, context: LaunchContext, running: RunningEngine) -> Mapping[str, ServerTimings]:
        """Return the times of `GET /perf_metrics`, which empties the server's list.

        Newer versions name answers by the same number (`serve/postprocess_handlers.py`); those of older ones are not found.
        """
        options: Any = {"verify_tls": running.verify_tls, "timeout_s": KEPT_TIMEOUT_S, "bytes_max": KEPT_BYTES_MAX}
        try:
            with client(running.headers, **options) as http:
                response = http.get(f"{running.root_url}/perf_metrics")
            listed = orjson.loads(response.content) if response.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, ValueError):
            return {}
        found: dict[str, ServerTimings] = {}
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict) and isinstance(one.get("request_id"), int):
                timings = kept_timings(one)
                found |= {f"{kind}-{one['request_id']}": timings for kind in ("chatcmpl", "cmpl")}
        return found

    def served_model(self, model: ModelSettings) -> str:
        """Return the last part of a local folder, else the model's name: the server takes no other name."""
        return model.path.rstrip("/").rsplit("/", 1)[-1] if model.path else model.name


def _build_problems(context: LaunchContext, settings: TrtllmSettings) -> list[str]:
    problems = []
    if context.model.path is None:
        problems.append("a TensorRT engine (engine.backend=tensorrt) is built from a local folder; set model.path=")
    plan = build_plan(context)
    if plan is None:
        return problems
    versions = trtllm_build.installed_versions(settings.builder)
    newer = trtllm_build.too_new(versions)
    if newer is not None:
        problems.append(
            f"TensorRT-LLM {newer} no longer supports engine.backend=tensorrt (the last version is 1.2); "
            "install 1.2, or use engine.backend=pytorch"
        )
    if plan.convert is not None and settings.convert_script is None:
        problems.append(
            "the model must be converted first (engine.backend=tensorrt); set engine.convert_script= to TensorRT-LLM's "
            "examples/models/core/FAMILY/convert_checkpoint.py, or model.path= to a converted checkpoint"
        )
    elif plan.convert is not None and not Path(settings.convert_script or "").is_file():
        problems.append(f"the conversion script engine.convert_script={settings.convert_script} does not exist")
    if not versions:
        problems.append(f"'{settings.builder}' (engine.builder) is not on PATH; TensorRT-LLM up to 1.2 installs it")
    return problems
