"""The engine `triton`: Triton's OpenAI frontend, `python3 openai_frontend/main.py`, with the backend in its process.

Flags, log lines and responses are those of the sources of the server repository at 26.07
(`python/openai/openai_frontend/`). Never started here: it comes as an image and needs a GPU.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from servebench.plugin import (
    MODEL_NOT_FOUND,
    SHARED_SETTINGS,
    Command,
    ContainerImage,
    Dialect,
    Engine,
    EngineSettings,
    LaunchContext,
    LogHint,
    ModelSettings,
    PhaseMarker,
    extra_arguments,
    log_hints,
    missing_executable,
    read_emulation,
)

VLLM_NAMES = {"gpu_memory_fraction": "gpu_memory_utilization", "prefix_caching": "enable_prefix_caching"}
"""The shared settings that have another name among vLLM's engine arguments, in `model.json`."""

VLLM_CONFIG = """backend: "vllm"
instance_group [
  {
    count: 1
    kind: KIND_MODEL
  }
]
"""

WRITE_AND_RUN = (
    'mkdir -p "$1/1" && printf "%s\\n" "$2" > "$1/1/model.json" && printf "%s" "$3" > "$1/config.pbtxt" '
    '&& shift 3 && exec "$@"'
)
"""Writes a model repository and becomes the server, so that the printed command is complete."""

METRICS = {
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "requests_waiting": ("nv_inference_pending_request_count",),
}
"""`docs/user_guide/metrics.md`; those of vLLM only if the model's config enables them."""


@dataclass(frozen=True, kw_only=True)
class TritonSettings(EngineSettings):
    """Additional settings of the frontend.

    `backend`: the engine behind it. For `vllm` a model repository is written from the shared settings, and
    `extra_args` are vLLM's engine arguments (`enforce_eager: true`). For `tensorrtllm`, `model_repository` names a
    repository of the `inflight_batcher_llm` kind with a built engine, `model.name` is that of a model in it (`ensemble`),
    and `extra_args` are flags of the frontend. `frontend` is its main.py.
    """

    backend: Literal["vllm", "tensorrtllm"] = "vllm"
    frontend: str = "/opt/tritonserver/python/openai/openai_frontend/main.py"
    model_repository: str | None = None


def safe_name(name: str) -> str:
    """Return a model's name as a folder name: Triton serves a model under the name of its folder."""
    return name.strip("/").replace("/", "--")


def vllm_arguments(settings: EngineSettings, model: ModelSettings) -> dict[str, Any]:
    """Return vLLM's engine arguments, the contents of `model.json`."""
    arguments: dict[str, Any] = {"model": model.path or model.name, "disable_log_stats": False}
    if model.revision is not None:
        arguments["revision"] = model.revision
    for name in SHARED_SETTINGS:
        if getattr(settings, name) is not None:
            arguments[VLLM_NAMES.get(name, name)] = getattr(settings, name)
    arguments.update(settings.extra_args)
    return arguments


class TritonEngine(Engine):
    """Triton Inference Server behind its OpenAI-compatible frontend, which adds some latency."""

    name = "triton"
    from_hub = True
    settings_type = TritonSettings
    default_port = 9000
    health_path = "/health/ready"
    # an unknown field is an error 422; `response_format` is accepted but ignored; `ignore_eos` reaches only vLLM
    dialect = Dialect(exact_output={"ignore_eos": True}, json_schema=False, model_checked=False)
    emulation = read_emulation("servebench_triton", "triton")
    container = ContainerImage(
        image="nvcr.io/nvidia/tritonserver:26.07-vllm-python-py3",
        arguments=("--ulimit", "memlock=-1", "--ulimit", "stack=67108864"),
    )
    metrics = METRICS
    phases = (
        PhaseMarker("weights_loaded", r"Loading weights took"),
        PhaseMarker("graphs_captured", r"Graph capturing finished in"),
        PhaseMarker("engine_ready", r"init engine \(profile, create kv cache, warmup model\) took"),
        PhaseMarker("model_ready", r"\|\s*+READY\s*+\|"),
        PhaseMarker("model_found", r"Found model: name="),
        PhaseMarker("serving", r"Application startup complete"),
    )
    hints = (
        *log_hints(
            out_of_memory=r"CUDA out of memory|No available memory for the cache blocks|out of memory|"
            r"larger than the available KV cache memory",
            memory_advice="lower engine.gpu_memory_fraction or engine.max_model_len, or free the GPU",
            model_missing=MODEL_NOT_FOUND + r"|failed to open text file for read .{0,300}config\.pbtxt",
            model_advice="model not found: check model.name or engine.model_repository, or set model.path=",
            unknown_flag=r"unrecognized arguments|invalid choice|unexpected keyword argument",
            wrong_cuda=r"CUDA driver version is insufficient|no kernel image is available|Found no NVIDIA driver",
            build="this image",
        ),
        LogHint(r"ModuleNotFoundError: .{0,200}tritonserver", "other", "run in the image nvcr.io/nvidia/tritonserver"),
    )

    def check(self, context: LaunchContext) -> list[str]:
        """Report settings that belong to the model repository, and a missing repository, frontend or interpreter."""
        settings = context.engine
        assert isinstance(settings, TritonSettings)
        problems = []
        if settings.backend == "tensorrtllm":
            problems += [
                f"engine.{name}={getattr(settings, name)}: with engine.backend=tensorrtllm it is in the built engine and in "
                "engine.model_repository; leave it out"
                for name in SHARED_SETTINGS
                if getattr(settings, name) is not None
                and not (name == "tensor_parallel_size" and settings.tensor_parallel_size == 1)
            ]
            if settings.model_repository is None:
                problems.append(
                    "engine.backend=tensorrtllm needs a model repository with a built engine; "
                    "set engine.model_repository="
                )
        elif settings.model_repository is not None:
            problems.append(
                f"engine.model_repository={settings.model_repository}: engine.backend=vllm writes its own repository "
                "from the settings; leave it out"
            )
        if settings.model_repository is not None and settings.backend == "tensorrtllm":
            served = self.served_model(context.model)
            if not (Path(settings.model_repository) / served).is_dir():
                problems.append(
                    f"no model {served} in engine.model_repository={settings.model_repository}; triton serves a model under "
                    "its folder's name: set model.name=ensemble (and model.path= for its tokenizer)"
                )
        if not Path(settings.frontend).is_file():
            problems.append(
                f"triton is not installed: {settings.frontend} (engine.frontend) does not exist; run in the image "
                "nvcr.io/nvidia/tritonserver, set engine.frontend=, or measure a running server with "
                "endpoint=URL"
            )
        return problems + missing_executable(settings, "python3", "install Python")

    def command(self, context: LaunchContext) -> Command:
        """Return the frontend's command; for vLLM in a shell that first writes the model repository and is then replaced."""
        settings = context.engine
        assert isinstance(settings, TritonSettings)
        model = context.model
        # one model per repository: Triton loads every model in it
        repository = str(context.cache_dir / "triton" / f"{context.port}-{safe_name(model.name)}")
        if settings.model_repository is not None:
            repository = settings.model_repository
        arguments = [settings.executable or "python3", settings.frontend, "--model-repository", repository]
        arguments += ["--tokenizer", model.tokenizer or model.path or model.name, "--backend", settings.backend]
        arguments += ["--host", settings.host, "--openai-port", str(context.port)]
        env = dict(settings.env)
        if settings.backend == "tensorrtllm":
            return Command(argv=(*arguments, *extra_arguments(settings.extra_args)), env=env)
        folder = f"{repository}/{safe_name(model.name)}"
        model_json = json.dumps(vllm_arguments(settings, model))
        return Command(argv=("sh", "-c", WRITE_AND_RUN, "triton", folder, model_json, VLLM_CONFIG, *arguments), env=env)

    def served_model(self, model: ModelSettings) -> str:
        """Return the name of the model's folder in the repository."""
        return safe_name(model.name)

    def version(self, context: LaunchContext) -> str | None:
        """Return the version in the image's environment."""
        return os.environ.get("TRITON_SERVER_VERSION")
