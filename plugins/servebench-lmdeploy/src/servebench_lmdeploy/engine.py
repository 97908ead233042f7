"""The engine `lmdeploy`: `lmdeploy serve api_server MODEL`.

Flags, log lines and responses are those of 0.18 (`lmdeploy/cli/serve.py`, `lmdeploy/serve/openai/`); the commands
composed here are checked with the argument parser of that release. Never started: it needs a GPU.
"""

from dataclasses import dataclass
from typing import Literal

from servebench.plugin import (
    MODEL_NOT_FOUND,
    Command,
    ContainerImage,
    Dialect,
    Engine,
    EngineSettings,
    FlagTable,
    LaunchContext,
    PhaseMarker,
    command_output,
    is_python,
    log_hints,
    missing_executable,
    read_emulation,
)

VERSION_TIMEOUT_S = 60.0
"""Its command imports torch before it prints anything."""

FLAGS = FlagTable(
    flags={
        "tensor_parallel_size": "--tp",
        "max_model_len": "--session-len",
        "dtype": "--dtype",
        "quantization": "--model-format",
        "gpu_memory_fraction": "--cache-max-entry-count",
        "max_num_seqs": "--max-batch-size",
    },
    # off is the default, and there is no flag for it
    switches={"prefix_caching": (["--enable-prefix-caching"], [])},
    unsupported_reasons={"seed": "requests carry one (workload.seed)"},
    several_values=True,
)

METRICS = {
    "requests_running": ("lmdeploy:num_requests_running",),
    "requests_waiting": ("lmdeploy:num_requests_waiting",),
    "kv_cache_usage": ("lmdeploy:gpu_cache_usage_perc",),
    "prefix_cache_queries_tokens": ("lmdeploy:prompt_tokens_total",),
    "prefix_cache_hits_tokens": ("lmdeploy:cached_tokens_total",),
    "queue_time_s_sum": ("lmdeploy:request_queue_time_seconds_sum",),
    "queue_time_s_count": ("lmdeploy:request_queue_time_seconds_count",),
    "prompt_tokens": ("lmdeploy:prompt_tokens_total",),
    "generation_tokens": ("lmdeploy:generation_tokens_total",),
    "spec_draft_tokens": ("lmdeploy:spec_decode_num_draft_tokens_total",),
    "spec_accepted_tokens": ("lmdeploy:spec_decode_num_accepted_tokens_total",),
}
"""`lmdeploy/metrics/loggers.py`. The gauges are updated every 10 s."""


@dataclass(frozen=True, kw_only=True)
class LmdeploySettings(EngineSettings):
    """`backend` is one of its two engines. TurboMind falls back to PyTorch, with a line in the log, for unknown models."""

    backend: Literal["turbomind", "pytorch"] = "turbomind"


class LmdeployEngine(Engine):
    """LMDeploy's OpenAI-compatible server."""

    name = "lmdeploy"
    from_hub = True
    settings_type = LmdeploySettings
    default_port = 23333
    container = ContainerImage(image="openmmlab/lmdeploy:latest", arguments=("--ipc", "host"))
    dialect = Dialect(exact_output={"ignore_eos": True})
    metrics = METRICS
    emulation = read_emulation("servebench_lmdeploy", "lmdeploy")
    phases = (
        PhaseMarker("weights_loading", r"Building Model\."),
        PhaseMarker("kernels_ready", r"Building GraphRunner and warmup ops"),
        PhaseMarker("cache_ready", r"Building CacheEngine"),
        PhaseMarker("engine_ready", r"Engine warmup completed in"),
        PhaseMarker("serving", r"HINT:\s++Please open"),
    )
    hints = log_hints(
        out_of_memory=r"CUDA out of memory|out of memory|No enough gpu memory|cudaErrorMemoryAllocation",
        memory_advice="lower engine.gpu_memory_fraction (a share of the memory left after the weights) or "
        "engine.max_model_len, or free the GPU",
        model_missing=MODEL_NOT_FOUND + "|RepositoryNotFoundError",
        wrong_cuda=r"CUDA driver version is insufficient|no kernel image is available|Found no NVIDIA driver|"
        r"libcudart\.so|libcuda\.so",
        build="this build of lmdeploy",
    )

    def check(self, context: LaunchContext) -> list[str]:
        """Report settings without a flag, and a missing executable."""
        return FLAGS.unsupported(context.engine) + missing_executable(
            context.engine, "lmdeploy", "pip install lmdeploy"
        )

    def command(self, context: LaunchContext) -> Command:
        """Return `lmdeploy serve api_server MODEL ...`, with a log level that shows the phases."""
        settings = context.engine
        assert isinstance(settings, LmdeploySettings)
        model = context.model
        arguments = ["serve", "api_server", model.path or model.name, "--model-name", model.name]
        arguments += ["--server-name", settings.host, "--server-port", str(context.port), "--backend", settings.backend]
        # the sampling defaults of the model's own file would differ from those of other engines
        arguments += ["--generation-config", "lmdeploy"]
        if "log-level" not in settings.extra_args:
            arguments += ["--log-level", "INFO"]
        if model.revision is not None:
            arguments += ["--revision", model.revision]
        return FLAGS.command(settings, *_program(settings), *arguments)

    def version(self, context: LaunchContext) -> str | None:
        """Return the output of `lmdeploy --version`."""
        output = command_output([*_program(context.engine), "--version"], VERSION_TIMEOUT_S)
        return output.splitlines()[-1] if output else None


def _program(settings: EngineSettings) -> list[str]:
    executable = settings.executable or "lmdeploy"
    return [executable, "-m", "lmdeploy"] if is_python(executable) else [executable]
