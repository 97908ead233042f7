"""The engine: `text-generation-launcher --model-id MODEL`.

Flags, log lines and replies are those of 3.3.7 (`launcher/src/main.rs`, `router/src/`), as read in its sources. It was
never started here: it needs a GPU, and comes as an image or a source build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

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
    PositiveInt,
    Request,
    WorkloadSettings,
    extra_arguments,
    missing_executable,
)
from servebench_tgi.emulation import TGI

LAUNCHER = "text-generation-launcher"
NO_ADAPTER = "tgi"
"""The model of a request is read as the name of a LoRA adapter, unless it is this."""

FLAGS = FlagTable(
    flags={
        "tensor_parallel_size": "--num-shard",
        "max_model_len": "--max-total-tokens",
        "dtype": "--dtype",
        "quantization": "--quantize",
        "gpu_memory_fraction": "--cuda-memory-fraction",
        "max_num_seqs": "--max-batch-size",
    },
    # an environment variable (see `command`); here it only counts as known
    switches={"prefix_caching": ([], [])},
    unsupported_reasons={"seed": "requests carry one (workload.seed)"},
)

METRICS = {
    "requests_running": ("tgi_batch_current_size",),
    "requests_waiting": ("tgi_queue_size",),
    "queue_time_s_sum": ("tgi_request_queue_duration_sum",),
    "queue_time_s_count": ("tgi_request_queue_duration_count",),
    "prompt_tokens": ("tgi_request_input_length_sum",),
    "generation_tokens": ("tgi_request_generated_tokens_sum",),
}
"""`router/src/server.rs`, `backends/v3/`. It tells no cache use, no prefix hits, no preemptions."""


@dataclass(frozen=True, kw_only=True)
class TgiSettings(EngineSettings):
    """`max_concurrent_requests`: how many it lets in (its own default: 128); the next is answered 429."""

    max_concurrent_requests: PositiveInt | None = None


class TgiEngine(Engine):
    """Text Generation Inference.

    Its launcher puts every shard and the router in process groups of their own and ends them itself: a SIGTERM to the
    launcher's group reaches the launcher alone, as it must, and what outlives `engine.stop_timeout_s` is found as a
    descendant and killed.
    """

    name = "tgi"
    settings_type = TgiSettings
    default_port = 3000
    # there is no way to an exact length, and the model's name is not checked
    dialect = Dialect(exact_output={}, model_checked=False)
    container = ContainerImage(
        image="ghcr.io/huggingface/text-generation-inference:3.3.7",
        entrypoint=(LAUNCHER,),
        caches={".cache/huggingface/hub": "/data"},
    )
    version_path = "/info"
    metrics: ClassVar[Mapping[str, Sequence[str]]] = METRICS
    settings_paths: ClassVar[Sequence[str]] = ("/info",)
    emulation = TGI
    phases = (
        PhaseMarker("downloading", r"Starting check and download process"),
        PhaseMarker("downloaded", r"Successfully downloaded weights"),
        PhaseMarker("weights_loaded", r"Shard ready in"),
        PhaseMarker("warming_up", r"Warming up model"),
        PhaseMarker("engine_ready", r"Setting max batch total tokens to"),
        PhaseMarker("serving", r"\bConnected\b"),
    )
    hints = (
        LogHint(
            r"CUDA out of memory|out of memory|Not enough memory to handle",
            "out_of_memory",
            "lower engine.max_model_len, engine.gpu_memory_fraction or engine.extra_args.max-batch-prefill-tokens, "
            "free the GPU, or use more of them",
        ),
        LogHint(
            r"RepositoryNotFoundError|Repository Not Found|is not a local folder and is not a valid model identifier|"
            r"No local weights found",
            "model_missing",
            "check model.name, or give model.path=",
        ),
        LogHint(
            r"unexpected argument '|invalid value '", "unknown_flag", "check engine.extra_args against this version"
        ),
        LogHint(
            r"CUDA driver version is insufficient|no kernel image is available|Found no NVIDIA driver",
            "wrong_cuda",
            "this build of TGI does not fit the GPU or its driver",
        ),
        LogHint(r"[Aa]ddress already in use|AddrInUse", "port_in_use", "choose another engine.port"),
    )

    def check(self, context: LaunchContext) -> list[str]:
        """Settings without a flag, settings that exclude each other, and a missing executable."""
        settings = context.engine
        faults = FLAGS.unsupported(settings)
        if settings.dtype is not None and settings.quantization is not None:
            faults.append(
                f"engine.dtype={settings.dtype} and engine.quantization={settings.quantization}: tgi takes only one of them"
            )
        install = "it comes as the image ghcr.io/huggingface/text-generation-inference"
        return faults + missing_executable(settings, LAUNCHER, install)

    def command(self, context: LaunchContext) -> Command:
        """`text-generation-launcher --model-id MODEL ...`. Without `--num-shard` it would take all GPUs that it sees."""
        settings = context.engine
        assert isinstance(settings, TgiSettings)
        words = [settings.executable or LAUNCHER, "--model-id", context.model.path or context.model.name]
        words += ["--hostname", settings.host, "--port", str(context.port)]
        if settings.tensor_parallel_size is None:
            words += ["--num-shard", "1"]
        if context.model.revision is not None:
            words += ["--revision", context.model.revision]
        if settings.max_concurrent_requests is not None:
            words += ["--max-concurrent-requests", str(settings.max_concurrent_requests)]
        env = dict(settings.env)
        if settings.prefix_caching is not None:
            env = {"PREFIX_CACHING": "true" if settings.prefix_caching else "false", **env}
        return Command(argv=(*words, *FLAGS.arguments(settings), *extra_arguments(settings.extra_args)), env=env)

    def served_model(self, model: ModelSettings) -> str:
        """Its own name, whatever the model."""
        return NO_ADAPTER

    def body(self, request: Request, model: str, workload: WorkloadSettings) -> tuple[str, dict[str, Any]]:
        """With the schema in the shape that it reads: the tag and its value side by side. Completions take none."""
        path, body = super().body(request, model, workload)
        if "response_format" in body and "response_format" not in request.extra:
            wanted = body.pop("response_format")
            if request.messages is not None:
                body["response_format"] = {"type": "json_schema", "value": wanted["json_schema"]}
        return path, body
