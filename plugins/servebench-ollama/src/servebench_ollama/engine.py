"""The engine `ollama`: `ollama serve`, which takes its settings from environment variables.

Variables, log lines and responses are those of the 0.33 sources (`envconfig/config.go`, `openai/openai.go`). Never run here:
no package on the index provides it. It runs llama.cpp as a child process.
"""

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
    ModelSettings,
    PhaseMarker,
    Say,
    Seconds,
    log_hints,
    missing_executable,
    read_emulation,
)
from servebench_ollama.library import add_to_library

FLAGS = FlagTable(
    # environment variables (see `variables`); listed here because they are supported
    flags={"max_model_len": "OLLAMA_CONTEXT_LENGTH", "max_num_seqs": "OLLAMA_NUM_PARALLEL"},
    switches={"prefix_caching": ([], [])},
    unsupported_reasons={
        "tensor_parallel_size": "ollama splits layers; engine.env.OLLAMA_SCHED_SPREAD=1 spreads them over all GPUs",
        "dtype": "it is in the GGUF file",
        "quantization": "it is in the GGUF file",
        "gpu_memory_fraction": "use engine.env.OLLAMA_GPU_OVERHEAD (bytes to leave free) instead",
        "seed": "requests carry one (workload.seed)",
    },
)


@dataclass(frozen=True, kw_only=True)
class OllamaSettings(EngineSettings):
    """`keep_alive`: how long a model stays loaded without requests (`-1`: forever); `load_timeout_s`: the time limit of
    loading."""

    keep_alive: str = "-1"
    load_timeout_s: Seconds = 300.0


def address(host: str, port: int) -> str:
    """Return the value of OLLAMA_HOST."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def variables(context: LaunchContext) -> dict[str, str]:
    """Return the settings as Ollama's environment variables; `engine.env` overrides them."""
    settings = context.engine
    assert isinstance(settings, OllamaSettings)
    env = {
        "OLLAMA_HOST": address(settings.host, context.port),
        "OLLAMA_KEEP_ALIVE": settings.keep_alive,
        "OLLAMA_LOAD_TIMEOUT": f"{settings.load_timeout_s:g}s",
    }
    for name, variable in FLAGS.flags.items():
        value = getattr(settings, name)
        if value is not None:
            env[variable] = str(value)
    return {**env, **settings.env}


class OllamaEngine(Engine):
    """Ollama. It answers before a model is loaded; the first token of the readiness check loads it."""

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
    # an exact output length is impossible
    dialect = Dialect(exact_output={})
    emulation = read_emulation("servebench_ollama", "ollama")
    phases = (
        PhaseMarker("serving", r"Listening on "),
        PhaseMarker("loading", r"starting llama-server|starting runner|loading model via llama-server"),
        PhaseMarker("weights_loaded", r"llama-server started in|llama runner started in"),
    )
    hints = log_hints(
        out_of_memory=r"out of memory|requires more system memory|cudaMalloc failed",
        memory_advice="lower engine.max_model_len or engine.max_num_seqs (they multiply), or use a smaller model",
        model_missing=r"pull model manifest|model .{0,200} not found|no such file",
        model_advice="check model.name or model.path",
        unknown_flag=r"unknown flag|unknown command",
        flag_advice="engine.executable is not a compatible version of ollama",
        build="this build of ollama",
    )

    def check(self, context: LaunchContext) -> list[str]:
        """Report settings without a variable, flags (it has none), a missing model file and a missing executable."""
        settings = context.engine
        problems = FLAGS.unsupported(settings)
        if settings.prefix_caching is False:
            problems.append("engine.prefix_caching=false: ollama cannot turn it off; leave it out")
        problems += [
            f"engine.extra_args.{name}={value}: 'ollama serve' takes no flags; use engine.env.OLLAMA_..."
            for name, value in settings.extra_args.items()
        ]
        path = context.model.path
        if path is not None and not Path(path).expanduser().exists():
            problems.append(f"model.path={path} does not exist")
        install = "install it from https://ollama.com/download"
        return problems + missing_executable(settings, "ollama", install)

    def prepare(self, context: LaunchContext, say: Say) -> None:
        """Add the model to Ollama's library: create it from `model.path`, or pull it by name. Raises EngineError."""
        add_to_library(
            context.engine.executable or "ollama",
            self.served_model(context.model),
            context.model.path,
            env=variables(context),
            folder=context.cache_dir / "ollama",
            say=say,
        )

    def command(self, context: LaunchContext) -> Command:
        """Return `ollama serve` with all settings in its environment."""
        return Command(argv=(context.engine.executable or "ollama", "serve"), env=variables(context))

    def served_model(self, model: ModelSettings) -> str:
        """Return the name with its tag. A local file gets a unique name and tag, so that it replaces no other model."""
        if model.path is not None:
            slug = re.sub(r"[^a-z0-9._-]+", "-", model.name.lower()).strip("-.")
            return f"servebench-{slug}:{hashlib.sha256(model.path.encode()).hexdigest()[:12]}"
        return model.name if ":" in model.name.rpartition("/")[2] else f"{model.name}:latest"
