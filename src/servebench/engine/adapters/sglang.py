"""SGLang: `sglang serve`, or its launch module if the executable is a Python interpreter.

Checked against the flags and responses of 0.5.23 and run, patched, on the CPU.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from servebench.contracts.engine import (
    Command,
    ContainerImage,
    Dialect,
    Engine,
    LaunchContext,
    PhaseMarker,
    RunningEngine,
    ServerTimings,
)
from servebench.contracts.limits import Limit
from servebench.engine.adapters.engine_package import log_hints, read_emulation
from servebench.engine.adapters.flags import FlagTable, is_python, missing_executable, spans_environment
from servebench.engine.adapters.knobs import FEWER_BITS, LONGER_STEPS, argument, engine_knobs
from servebench.protocol.json_values import between, load_object, milliseconds
from servebench.protocol.kinds.table import kind_named
from servebench.util.bounded_file import open_regular

FLAGS = FlagTable(
    flags={
        "tensor_parallel_size": "--tp-size",
        "max_model_len": "--context-length",
        "dtype": "--dtype",
        "quantization": "--quantization",
        "gpu_memory_fraction": "--mem-fraction-static",
        "max_num_seqs": "--max-running-requests",
        "seed": "--random-seed",
    },
    # the radix cache is on unless it is turned off: it has no flag to turn it on
    switches={"prefix_caching": ([], ["--disable-radix-cache"])},
    several_values=True,
)


KNOBS = engine_knobs(
    FLAGS,
    {
        Limit.KV_CACHE: (argument("kv-cache-dtype", value="fp8_e4m3", cost=FEWER_BITS),),
        # 2048 to 16384, by GPU
        Limit.TOKEN_BUDGET: (argument("chunked-prefill-size", default=2048, factor=4.0, cost=LONGER_STEPS),),
        Limit.FRONT_END: (argument("tokenizer-worker-num", default=1, cost="a CPU core and some memory for each"),),
    },
    max_num_seqs=2048,
)
METRICS = {
    "requests_running": ("sglang:num_running_reqs",),
    "requests_waiting": ("sglang:num_queue_reqs",),
    "kv_cache_usage": ("sglang:token_usage",),
    # every prompt token is looked up in the radix cache
    "prefix_cache_queries_tokens": ("sglang:prompt_tokens_total",),
    "prefix_cache_hits_tokens": ("sglang:cached_tokens_total",),
    "preemptions": ("sglang:num_retracted_requests_total",),
    "queue_time_s_sum": ("sglang:queue_time_seconds_sum",),
    "queue_time_s_count": ("sglang:queue_time_seconds_count",),
    "prompt_tokens": ("sglang:prompt_tokens_total",),
    "generation_tokens": ("sglang:generation_tokens_total",),
}
"""`sglang/srt/observability/metrics_collector.py` of 0.5.23, with `--enable-metrics`."""


LINE_BYTES_MAX = 64 << 20
"""Of one request in the files of its metrics: with its prompt, as text and as ids."""


class SglangEngine(Engine):
    """SGLang's OpenAI-compatible server."""

    name = "sglang"
    from_hub = True
    default_port = 30000
    # while idle, /health generates a token by default; /ready does not
    health_path = "/ready"
    dialect = Dialect(exact_output={"ignore_eos": True}, model_checked=False)
    container = ContainerImage(image="lmsysorg/sglang:latest")
    version_path = "/server_info"
    tokenize_path = "/tokenize"
    metrics = METRICS
    reset_path = "/flush_cache"
    settings_paths = ("/server_info",)
    knobs = KNOBS
    timings_sources = ("spans", "after_load")
    timings_in_files = True
    emulation = read_emulation("servebench.engine.adapters", "sglang")
    phases = (
        PhaseMarker("weights_loading", r"Load weight begin"),
        PhaseMarker("weights_loaded", r"Load weight end"),
        PhaseMarker("graphs_captured", r"Capture .{0,200}graph end"),
        PhaseMarker("engine_ready", r"max_total_num_tokens="),
        PhaseMarker("serving", r"The server is fired up and ready to roll"),
    )
    hints = log_hints(out_of_memory=r"CUDA out of memory|Not enough memory|out of memory", build="this build of sglang")

    def check(self, context: LaunchContext) -> list[str]:
        """Report settings without a flag, and a missing executable."""
        return FLAGS.unsupported(context.engine) + missing_executable(
            context.engine, "sglang", 'pip install "sglang[all]"'
        )

    def command(self, context: LaunchContext) -> Command:
        """Return `sglang serve --model-path MODEL ...`, with metrics and cached-token counts enabled."""
        settings = context.engine
        executable = settings.executable or "sglang"
        start = [executable, "-m", "sglang.launch_server"] if is_python(executable) else [executable, "serve"]
        model = context.model
        arguments = ["--model-path", model.path or model.name, "--served-model-name", model.name]
        arguments += ["--host", settings.host, "--port", str(context.port), "--enable-metrics", "--enable-cache-report"]
        # the sampling defaults of the model's own file would differ from those of other engines
        arguments += ["--sampling-defaults", "openai"]
        arguments += [] if kind_named(context.api).answers_text else ["--is-embedding"]
        if context.model.revision is not None:
            arguments += ["--revision", context.model.revision]
        env = spans_environment(context)
        if context.spans_endpoint is not None:
            arguments += ["--enable-trace", "--otlp-traces-endpoint", context.spans_endpoint]
            # without a span for each token
            env["SGLANG_TRACE_LEVEL"] = "1"
        if settings.request_timings == "after_load":
            arguments += ["--export-metrics-to-file", "--export-metrics-to-file-dir", str(context.kept_folder)]
        return FLAGS.command(settings, *start, *arguments, env=env)

    def timings_after_load(self, context: LaunchContext, running: RunningEngine) -> Mapping[str, ServerTimings]:
        """Return the times in the files of `--export-metrics-to-file`, and empty them: the server only appends, whole lines."""
        found: dict[str, ServerTimings] = {}
        for path in sorted(context.kept_folder.glob("sglang-request-metrics-*.log")):
            with suppress(OSError):
                found |= dict(_read_and_empty(path))
        return found


def _read_and_empty(path: Path) -> Iterator[tuple[str, ServerTimings]]:
    """Yield what a file says, and empty it unless a line is just being written. Raises OSError."""
    read, line = 0, b""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        while read < size and (line := file.readline(LINE_BYTES_MAX)):
            read += len(line)
            yield from _kept_timings(line)
    if line.endswith(b"\n") and path.stat().st_size == read:
        os.truncate(path, 0)


def _kept_timings(line: bytes) -> Iterator[tuple[str, ServerTimings]]:
    """Yield the id and the times of a line, a JSON object: the `meta_info` of an answer.

    Its `queue_time` is a duration; the others are moments in seconds, of which only differences count
    (`sglang/srt/observability/req_time_stats.py` and `request_metrics_exporter.py` of 0.5.23).
    """
    answer = load_object(line)
    if answer is not None and isinstance(answer.get("id"), str):
        timings = ServerTimings(
            queue_ms=milliseconds(answer.get("queue_time"), 1000.0),
            prefill_ms=between(answer, "forward_entry_time", "prefill_finished_time"),
            decode_ms=between(answer, "prefill_finished_time", "request_finished_ts"),
            e2e_ms=between(answer, "request_received_ts", "request_finished_ts"),
        )
        yield answer["id"], timings
