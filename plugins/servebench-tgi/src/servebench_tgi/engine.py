"""The engine `tgi`: `text-generation-launcher --model-id MODEL`.

Flags, log lines and responses are those of the 3.3.7 sources (`launcher/src/main.rs`, `router/src/`). Never started here:
it needs a GPU, and comes as an image or a source build.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servebench.plugin import (
    MODEL_NOT_FOUND,
    Command,
    ContainerImage,
    Dialect,
    Engine,
    EngineSettings,
    FlagTable,
    LaunchContext,
    ModelSettings,
    PhaseMarker,
    PositiveInt,
    Request,
    ServerTimings,
    log_hints,
    milliseconds,
    missing_executable,
    read_emulation,
)

LAUNCHER = "text-generation-launcher"
NO_ADAPTER = "tgi"
"""Any other model name in a request is interpreted as the name of a LoRA adapter."""

FLAGS = FlagTable(
    flags={
        "tensor_parallel_size": "--num-shard",
        "max_model_len": "--max-total-tokens",
        "dtype": "--dtype",
        "quantization": "--quantize",
        "gpu_memory_fraction": "--cuda-memory-fraction",
        "max_num_seqs": "--max-batch-size",
    },
    # an environment variable (see `command`); listed here because it is supported
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
"""`router/src/server.rs`, `backends/v3/`. It reports no cache usage, prefix hits or preemptions."""


@dataclass(frozen=True, kw_only=True)
class TgiSettings(EngineSettings):
    """`max_concurrent_requests`: how many requests it accepts (its default is 128); more are answered 429."""

    max_concurrent_requests: PositiveInt | None = None


class TgiEngine(Engine):
    """Text Generation Inference.

    Its launcher puts every shard and the router in process groups of their own and stops them itself: a SIGTERM to the
    launcher's group reaches only the launcher. Descendants that survive `engine.stop_timeout_s` are killed.
    """

    name = "tgi"
    from_hub = True
    settings_type = TgiSettings
    default_port = 3000
    # an exact output length is impossible, and the model's name is not checked
    dialect = Dialect(exact_output={}, model_checked=False)
    container = ContainerImage(
        image="ghcr.io/huggingface/text-generation-inference:3.3.7",
        entrypoint=(LAUNCHER,),
        caches={".cache/huggingface/hub": "/data"},
    )
    version_path = "/info"
    metrics = METRICS
    settings_paths = ("/info",)
    emulation = read_emulation("servebench_tgi", "tgi")
    phases = (
        PhaseMarker("downloading", r"Starting check and download process"),
        PhaseMarker("downloaded", r"Successfully downloaded weights"),
        PhaseMarker("weights_loaded", r"Shard ready in"),
        PhaseMarker("warming_up", r"Warming up model"),
        PhaseMarker("engine_ready", r"Setting max batch total tokens to"),
        PhaseMarker("serving", r"\bConnected\b"),
    )
    hints = log_hints(
        out_of_memory=r"CUDA out of memory|out of memory|Not enough memory to handle",
        memory_advice="lower engine.max_model_len, engine.gpu_memory_fraction or "
        "engine.extra_args.max-batch-prefill-tokens, free the GPU, or use more GPUs",
        model_missing=MODEL_NOT_FOUND + "|RepositoryNotFoundError|No local weights found",
        unknown_flag=r"unexpected argument '|invalid value '",
        wrong_cuda=r"CUDA driver version is insufficient|no kernel image is available|Found no NVIDIA driver",
        build="this build of TGI",
        port_in_use=r"[Aa]ddress already in use|AddrInUse",
    )

    def check(self, context: LaunchContext) -> list[str]:
        """Report settings without a flag, settings that exclude each other, and a missing executable."""
        settings = context.engine
        problems = FLAGS.unsupported(settings)
        if settings.dtype is not None and settings.quantization is not None:
            problems.append(
                f"engine.dtype={settings.dtype} and engine.quantization={settings.quantization}: tgi accepts only one of them"
            )
        install = "use the image ghcr.io/huggingface/text-generation-inference"
        return problems + missing_executable(settings, LAUNCHER, install)

    def command(self, context: LaunchContext) -> Command:
        """Return `text-generation-launcher --model-id MODEL ...`. Without `--num-shard` it would use all visible GPUs."""
        settings = context.engine
        assert isinstance(settings, TgiSettings)
        arguments = [settings.executable or LAUNCHER, "--model-id", context.model.path or context.model.name]
        arguments += ["--hostname", settings.host, "--port", str(context.port)]
        if settings.tensor_parallel_size is None:
            arguments += ["--num-shard", "1"]
        if context.model.revision is not None:
            arguments += ["--revision", context.model.revision]
        if settings.max_concurrent_requests is not None:
            arguments += ["--max-concurrent-requests", str(settings.max_concurrent_requests)]
        env = {} if settings.prefix_caching is None else {"PREFIX_CACHING": str(settings.prefix_caching).lower()}
        return FLAGS.command(settings, *arguments, env=env)

    def served_model(self, model: ModelSettings) -> str:
        """Return `tgi` for every model."""
        return NO_ADAPTER

    def adapt_body(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        """Return the body with the schema in TGI's own shape. Completions support no schema."""
        if "response_format" in body and "response_format" not in request.extra:
            response_format = body.pop("response_format")
            if request.messages is not None:
                body["response_format"] = {"type": "json_schema", "value": response_format["json_schema"]}
        return body

    def request_timings(self, answer: Mapping[str, Any], headers: Mapping[str, str]) -> ServerTimings:
        """Return the times in the headers, which only answers have that are not streamed (`router/src/server.rs`).

        `x-inference-time` is prefill and decode in one.
        """
        return ServerTimings(
            queue_ms=milliseconds(headers.get("x-queue-time")), e2e_ms=milliseconds(headers.get("x-total-time"))
        )
