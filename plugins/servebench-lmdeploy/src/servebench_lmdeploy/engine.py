"""The engine `lmdeploy`: `lmdeploy serve api_server MODEL`.

Flags, log lines and responses are those of 0.18 (`lmdeploy/cli/serve.py`, `lmdeploy/serve/openai/`); the commands
composed here are checked with the argument parser of that release. Never started: it needs a GPU.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from servebench.plugin import (
    Command,
    ContainerImage,
    Dialect,
    Engine,
    EngineSettings,
    FlagTable,
    LaunchContext,
    LogHint,
    ModelSettings,
    PhaseMarker,
    extra_arguments,
    is_python,
    missing_executable,
)
from servebench_lmdeploy.emulation import LMDEPLOY

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
    settings_type = LmdeploySettings
    default_port = 23333
    container = ContainerImage(image="openmmlab/lmdeploy:latest", arguments=("--ipc", "host"))
    dialect = Dialect(exact_output={"ignore_eos": True})
    metrics: ClassVar[Mapping[str, Sequence[str]]] = METRICS
    emulation = LMDEPLOY
    phases = (
        PhaseMarker("weights_loading", r"Building Model\."),
        PhaseMarker("kernels_ready", r"Building GraphRunner and warmup ops"),
        PhaseMarker("cache_ready", r"Building CacheEngine"),
        PhaseMarker("engine_ready", r"Engine warmup completed in"),
        PhaseMarker("serving", r"HINT:\s+Please open"),
    )
    hints = (
        LogHint(
            r"CUDA out of memory|out of memory|No enough gpu memory|cudaErrorMemoryAllocation",
            "out_of_memory",
            "out of GPU memory: lower engine.gpu_memory_fraction (a share of the memory left after the weights) or "
            "engine.max_model_len, or free the GPU",
        ),
        LogHint(
            r"is not a local folder and is not a valid model identifier|Repository Not Found|RepositoryNotFoundError",
            "model_missing",
            "model not found: check model.name, or set model.path=",
        ),
        LogHint(
            r"unrecognized arguments|invalid choice",
            "unknown_flag",
            "unknown flag: check engine.extra_args against this version",
        ),
        LogHint(
            r"CUDA driver version is insufficient|no kernel image is available|Found no NVIDIA driver|"
            r"libcudart\.so|libcuda\.so",
            "wrong_cuda",
            "this build of lmdeploy does not support the GPU or its driver",
        ),
        LogHint(r"[Aa]ddress already in use", "port_in_use", "the port is in use; choose another engine.port"),
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
        executable = settings.executable or "lmdeploy"
        start = [executable, "-m", "lmdeploy"] if is_python(executable) else [executable]
        arguments = [
            "serve",
            "api_server",
            context.model.path or context.model.name,
            "--model-name",
            context.model.name,
        ]
        arguments += ["--server-name", settings.host, "--server-port", str(context.port), "--backend", settings.backend]
        # the sampling defaults of the model's own file would differ from those of other engines
        arguments += ["--generation-config", "lmdeploy"]
        if "log-level" not in settings.extra_args:
            arguments += ["--log-level", "INFO"]
        if context.model.revision is not None:
            arguments += ["--revision", context.model.revision]
        return Command(
            argv=(*start, *arguments, *FLAGS.arguments(settings), *extra_arguments(settings.extra_args)),
            env=dict(settings.env),
        )

    def served_model(self, model: ModelSettings) -> str:
        """Return the name passed with `--model-name`."""
        return model.name

    def version(self, context: LaunchContext) -> str | None:
        """Return the output of `lmdeploy --version`."""
        executable = context.engine.executable or "lmdeploy"
        start = [executable, "-m", "lmdeploy"] if is_python(executable) else [executable]
        try:
            done = subprocess.run(
                [*start, "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip().splitlines()[-1] if done.returncode == 0 and done.stdout.strip() else None
