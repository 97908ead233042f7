"""The engine: Triton's OpenAI frontend, `python3 openai_frontend/main.py`, with the engine behind it in its process.

Flags, log lines and replies are those of the server repository at 26.07 (`python/openai/openai_frontend/`), as read in
its sources. It was never started here: it comes as an image and needs a GPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from servebench.plugin import (
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
    missing_executable,
)
from servebench_triton.emulation import TRITON

VLLM_NAMES = {
    "tensor_parallel_size": "tensor_parallel_size",
    "max_model_len": "max_model_len",
    "dtype": "dtype",
    "quantization": "quantization",
    "gpu_memory_fraction": "gpu_memory_utilization",
    "max_num_seqs": "max_num_seqs",
    "prefix_caching": "enable_prefix_caching",
    "seed": "seed",
}
"""The shared settings as vLLM's engine arguments, which `model.json` holds."""

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
"""Writes a model repository and becomes the server, so that the printed command is all that is needed."""

METRICS = {
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "requests_waiting": ("nv_inference_pending_request_count",),
}
"""`docs/user_guide/metrics.md`; the vLLM ones only where the model's config asks for them."""


@dataclass(frozen=True, kw_only=True)
class TritonSettings(EngineSettings):
    """What the frontend takes beside the shared keys.

    `backend`: the engine behind. For `vllm` a model repository is made from the shared settings, and
    `extra_args` are vLLM's engine arguments (`enforce_eager: true`). For `tensorrtllm`, `model_repository` names a
    repository of the `inflight_batcher_llm` kind with a built engine, `model.name` is that of a model in it (`ensemble`),
    and `extra_args` are flags of the frontend. `frontend` is its main.py.
    """

    backend: Literal["vllm", "tensorrtllm"] = "vllm"
    frontend: str = "/opt/tritonserver/python/openai/openai_frontend/main.py"
    model_repository: str | None = None


def safe_name(name: str) -> str:
    """A model's name as a folder's: Triton serves a model by the name of its folder."""
    return name.strip("/").replace("/", "--")


def vllm_arguments(settings: EngineSettings, model: ModelSettings) -> dict[str, Any]:
    """What goes into `model.json`: vLLM's engine arguments."""
    arguments: dict[str, Any] = {"model": model.path or model.name, "disable_log_stats": False}
    if model.revision is not None:
        arguments["revision"] = model.revision
    for name in SHARED_SETTINGS:
        if getattr(settings, name) is not None:
            arguments[VLLM_NAMES[name]] = getattr(settings, name)
    arguments.update(settings.extra_args)
    return arguments


class TritonEngine(Engine):
    """Triton Inference Server behind its OpenAI-compatible frontend. The layer in front costs time of its own."""

    name = "triton"
    settings_type = TritonSettings
    default_port = 9000
    health_path = "/health/ready"
    # an unknown field is an error 422; `response_format` is known and does nothing; `ignore_eos` reaches vLLM only
    dialect = Dialect(exact_output={"ignore_eos": True}, json_schema=False, model_checked=False)
    emulation = TRITON
    container = ContainerImage(
        image="nvcr.io/nvidia/tritonserver:26.07-vllm-python-py3",
        arguments=("--ulimit", "memlock=-1", "--ulimit", "stack=67108864"),
    )
    metrics: ClassVar[Mapping[str, Sequence[str]]] = METRICS
    phases = (
        PhaseMarker("weights_loaded", r"Loading weights took"),
        PhaseMarker("graphs_captured", r"Graph capturing finished in"),
        PhaseMarker("engine_ready", r"init engine \(profile, create kv cache, warmup model\) took"),
        PhaseMarker("model_ready", r"\|\s*READY\s*\|"),
        PhaseMarker("model_found", r"Found model: name="),
        PhaseMarker("serving", r"Application startup complete"),
    )
    hints = (
        LogHint(
            r"CUDA out of memory|No available memory for the cache blocks|out of memory|"
            r"larger than the available KV cache memory",
            "out_of_memory",
            "lower engine.gpu_memory_fraction or engine.max_model_len, or free the GPU",
        ),
        LogHint(
            r"is not a local folder and is not a valid model identifier|Repository Not Found|"
            r"failed to open text file for read .*config\.pbtxt",
            "model_missing",
            "check model.name, give model.path=, or check engine.model_repository",
        ),
        LogHint(
            r"unrecognized arguments|invalid choice|unexpected keyword argument",
            "unknown_flag",
            "check engine.extra_args against this version",
        ),
        LogHint(
            r"CUDA driver version is insufficient|no kernel image is available|Found no NVIDIA driver",
            "wrong_cuda",
            "this image does not fit the GPU or its driver",
        ),
        LogHint(r"ModuleNotFoundError: .*tritonserver", "other", "run it in the image nvcr.io/nvidia/tritonserver"),
        LogHint(r"[Aa]ddress already in use", "port_in_use", "choose another engine.port"),
    )

    def check(self, context: LaunchContext) -> list[str]:
        """Settings that live in a model repository of your own, a missing repository, frontend or interpreter."""
        settings = context.engine
        assert isinstance(settings, TritonSettings)
        faults = []
        if settings.backend == "tensorrtllm":
            faults += [
                f"engine.{name}={getattr(settings, name)}: triton's tensorrtllm backend has it in the built engine and the "
                "files of engine.model_repository; leave it out"
                for name in SHARED_SETTINGS
                if getattr(settings, name) is not None
                and not (name == "tensor_parallel_size" and settings.tensor_parallel_size == 1)
            ]
            if settings.model_repository is None:
                faults.append(
                    "engine.backend=tensorrtllm: triton needs a repository with a built engine; "
                    "give engine.model_repository="
                )
        elif settings.model_repository is not None:
            faults.append(
                f"engine.model_repository={settings.model_repository}: with engine.backend=vllm the repository is made "
                "from the settings; leave it out"
            )
        if settings.model_repository is not None and settings.backend == "tensorrtllm":
            served = self.served_model(context.model)
            if not (Path(settings.model_repository) / served).is_dir():
                faults.append(
                    f"there is no model {served} in {settings.model_repository} (engine.model_repository); triton serves a "
                    "model by its folder's name: give model.name=ensemble (and model.path= for its tokenizer)"
                )
        if not Path(settings.frontend).is_file():
            faults.append(
                f"triton is not installed here: no {settings.frontend} (engine.frontend); run in the image "
                "nvcr.io/nvidia/tritonserver, name the frontend with engine.frontend=, or measure a running server with "
                "launch=attach launch.base_url=..."
            )
        return faults + missing_executable(settings, "python3", "install Python")

    def command(self, context: LaunchContext) -> Command:
        """The frontend, for vLLM in a shell that writes the model repository first and is then replaced."""
        settings = context.engine
        assert isinstance(settings, TritonSettings)
        model = context.model
        # one model to a repository: Triton would load whatever else lies there
        repository = str(context.cache_dir / "triton" / f"{context.port}-{safe_name(model.name)}")
        if settings.model_repository is not None:
            repository = settings.model_repository
        words = [settings.executable or "python3", settings.frontend, "--model-repository", repository]
        words += ["--tokenizer", model.tokenizer or model.path or model.name, "--backend", settings.backend]
        words += ["--host", settings.host, "--openai-port", str(context.port)]
        env = dict(settings.env)
        if settings.backend == "tensorrtllm":
            return Command(argv=(*words, *extra_arguments(settings.extra_args)), env=env)
        folder = f"{repository}/{safe_name(model.name)}"
        arguments = json.dumps(vllm_arguments(settings, model))
        return Command(argv=("sh", "-c", WRITE_AND_RUN, "triton", folder, arguments, VLLM_CONFIG, *words), env=env)

    def served_model(self, model: ModelSettings) -> str:
        """The name of the model's folder in the repository."""
        return safe_name(model.name)

    def version(self, context: LaunchContext) -> str | None:
        """What the image says of itself."""
        return os.environ.get("TRITON_SERVER_VERSION")
