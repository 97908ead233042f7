"""The engine: `ollama serve`, which takes its settings from environment variables.

Variables, log lines and replies are those of 0.33 (`envconfig/config.go`, `openai/openai.go`), as read in its sources. It
was never met here: nothing on the package index carries it. It runs llama.cpp as a child process.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

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
    Say,
    missing_executable,
)
from servebench_ollama.emulation import OLLAMA
from servebench_ollama.library import make_known

FLAGS = FlagTable(
    # environment variables (see `variables`); here they only count as known
    flags={"max_model_len": "OLLAMA_CONTEXT_LENGTH", "max_num_seqs": "OLLAMA_NUM_PARALLEL"},
    switches={"prefix_caching": ([], [])},
    unsupported_reasons={
        "tensor_parallel_size": "it splits layers; engine.env.OLLAMA_SCHED_SPREAD=1 spreads them over all GPUs",
        "dtype": "it is in the GGUF file",
        "quantization": "it is in the GGUF file",
        "gpu_memory_fraction": "engine.env.OLLAMA_GPU_OVERHEAD (bytes to leave free) is near to it",
        "seed": "requests carry one (workload.seed)",
    },
)


@dataclass(frozen=True, kw_only=True)
class OllamaSettings(EngineSettings):
    """`keep_alive`: how long a model stays loaded without requests (`-1`: for ever); `load_timeout_s`: how long loading may
    take."""

    keep_alive: str = "-1"
    load_timeout_s: PositiveInt = 300


def address(host: str, port: int) -> str:
    """The value of OLLAMA_HOST."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def variables(context: LaunchContext) -> dict[str, str]:
    """The settings as Ollama's environment; `engine.env` has the last word."""
    settings = context.engine
    assert isinstance(settings, OllamaSettings)
    found = {
        "OLLAMA_HOST": address(settings.host, context.port),
        "OLLAMA_KEEP_ALIVE": settings.keep_alive,
        "OLLAMA_LOAD_TIMEOUT": f"{settings.load_timeout_s}s",
    }
    for name, variable in FLAGS.flags.items():
        value = getattr(settings, name)
        if value is not None:
            found[variable] = str(value)
    return {**found, **settings.env}


class OllamaEngine(Engine):
    """Ollama. It answers before any model is loaded: readiness is the first token, which loads it."""

    name = "ollama"
    settings_type = OllamaSettings
    container = ContainerImage(
        image="ollama/ollama:latest", entrypoint=("ollama",), caches={".ollama": "/root/.ollama"}
    )
    default_port = 11434
    needs_gpu = False
    health_path = "/api/version"
    version_path = "/api/version"
    metrics_path = None
    # no way to an exact length
    dialect = Dialect(exact_output={})
    emulation = OLLAMA
    phases = (
        PhaseMarker("serving", r"Listening on "),
        PhaseMarker("loading", r"starting llama-server|starting runner|loading model via llama-server"),
        PhaseMarker("weights_loaded", r"llama-server started in|llama runner started in"),
    )
    hints = (
        LogHint(
            r"out of memory|requires more system memory|cudaMalloc failed",
            "out_of_memory",
            "lower engine.max_model_len or engine.max_num_seqs (the context is multiplied by it), or take a smaller model",
        ),
        LogHint(
            r"pull model manifest|model .* not found|no such file", "model_missing", "check model.name or model.path"
        ),
        LogHint(r"unknown flag|unknown command", "unknown_flag", "engine.executable is no ollama of this kind"),
        LogHint(
            r"CUDA driver version is insufficient|no kernel image is available",
            "wrong_cuda",
            "this build of ollama does not fit the GPU or its driver",
        ),
        LogHint(r"address already in use", "port_in_use", "choose another engine.port"),
    )

    def check(self, context: LaunchContext) -> list[str]:
        """Settings that it has no variable for, flags (it takes none), a file that is not there, a missing executable."""
        settings = context.engine
        faults = FLAGS.unsupported(settings)
        if settings.prefix_caching is False:
            faults.append("engine.prefix_caching=false: ollama has no way to turn it off; leave it out")
        faults += [
            f"engine.extra_args.{name}={value}: 'ollama serve' takes no flags; use engine.env.OLLAMA_..."
            for name, value in settings.extra_args.items()
        ]
        path = context.model.path
        if path is not None and not Path(path).expanduser().exists():
            faults.append(f"{path} (model.path): there is no such file")
        install = "get it from https://ollama.com/download"
        return faults + missing_executable(settings, "ollama", install)

    def prepare(self, context: LaunchContext, say: Say) -> None:
        """Make the model known to Ollama: create it from `model.path`, or pull it by its name. Raises EngineError."""
        make_known(
            context.engine.executable or "ollama",
            self.served_model(context.model),
            context.model.path,
            env=variables(context),
            folder=context.cache_dir / "ollama",
            say=say,
        )

    def command(self, context: LaunchContext) -> Command:
        """`ollama serve`, with everything in its environment."""
        return Command(argv=(context.engine.executable or "ollama", "serve"), env=variables(context))

    def served_model(self, model: ModelSettings) -> str:
        """The name with its tag. A local file gets a name and tag of its own, so that it takes no other model's."""
        if model.path is not None:
            slug = re.sub(r"[^a-z0-9._-]+", "-", model.name.lower()).strip("-.")
            return f"servebench-{slug}:{hashlib.sha256(model.path.encode()).hexdigest()[:12]}"
        return model.name if ":" in model.name.rpartition("/")[2] else f"{model.name}:latest"
