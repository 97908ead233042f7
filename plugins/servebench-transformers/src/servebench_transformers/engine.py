"""The engine `transformers`: `transformers serve MODEL`."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from servebench.plugin import (
    Command,
    Dialect,
    Emulation,
    Engine,
    EngineSettings,
    FlagTable,
    LaunchContext,
    LogHint,
    ModelSettings,
    PhaseMarker,
    command_output,
    find_program,
    missing_executable,
    read_emulation,
)

FLAGS = FlagTable(
    flags={"dtype": "--dtype", "quantization": "--quantization", "seed": "--default-seed"},
    unsupported_reasons={
        "tensor_parallel_size": "transformers distributes layers instead of splitting tensors",
        "max_model_len": "the model's own context is used",
        "gpu_memory_fraction": "use engine.extra_args.cb-max-memory-percent instead",
        "max_num_seqs": "use engine.continuous_batching, or engine.extra_args.cb-max-batch-tokens",
        "prefix_caching": "it is always on with continuous batching",
    },
)

EXACT_OUTPUT = json.dumps({"eos_token_id": -1, "do_sample": False})
"""It rejects `ignore_eos` as an unknown field; a generation config without an end token has the same effect."""


VERSION_TIMEOUT_S = 20.0
"""The interpreter reads one file, which takes long on a cold disk."""


@dataclass(frozen=True, kw_only=True)
class TransformersSettings(EngineSettings):
    """Additional settings of `transformers serve`."""

    continuous_batching: bool = True
    device: str | None = None


BATCHED = read_emulation("servebench_transformers", "transformers")
NAIVE = replace(BATCHED, max_num_seqs=1, prefix_cache_default=False, token_budget=1_000_000, step_overhead_ms=15.0)
"""Without continuous batching: one request at a time, each kernel launched from Python."""


class TransformersEngine(Engine):
    """Hugging Face's OpenAI-compatible server."""

    name = "transformers"
    from_hub = True
    settings_type = TransformersSettings
    needs_gpu = False
    metrics_path = None
    # an unknown field is an error 422; `seed` and `stream_options` are known
    dialect = Dialect(
        exact_output={"generation_config": EXACT_OUTPUT}, sends_done=False, json_schema=False, model_checked=False
    )
    emulation = BATCHED
    phases = (PhaseMarker("loading", r"Loading "), PhaseMarker("serving", r"Application startup complete"))
    hints = (
        LogHint(r"is not a local folder and is not a valid model identifier|Repository Not Found", "model_missing",
                "model not found: check model.name, or set model.path="),
        LogHint(r"out of memory", "out_of_memory", "out of memory: use a smaller model, or engine.dtype=bfloat16"),
        LogHint(r"No such option", "unknown_flag", "unknown flag: check engine.extra_args against this version"),
        LogHint(r"ModuleNotFoundError|ImportError", "other", 'pip install "transformers[serving]"'),
        LogHint(r"[Aa]ddress already in use", "port_in_use", "the port is in use; choose another engine.port"),
    )  # fmt: skip

    def emulated_as(self, context: LaunchContext) -> Emulation:
        """Return an emulation that serves one request at a time without continuous batching."""
        assert isinstance(context.engine, TransformersSettings)
        return self.emulation if context.engine.continuous_batching else NAIVE

    def check(self, context: LaunchContext) -> list[str]:
        """Report settings without a flag, and a missing executable."""
        install = 'pip install "transformers[serving]"'
        return FLAGS.unsupported(context.engine) + missing_executable(context.engine, "transformers", install)

    def command(self, context: LaunchContext) -> Command:
        """Return `transformers serve MODEL ...`."""
        settings = context.engine
        assert isinstance(settings, TransformersSettings)
        arguments = [settings.executable or "transformers", "serve", self.served_model(context.model)]
        arguments += ["--host", settings.host, "--port", str(context.port)]
        if settings.device is not None:
            arguments += ["--device", settings.device]
        if settings.continuous_batching:
            arguments.append("--continuous-batching")
        return FLAGS.command(settings, *arguments)

    def version(self, context: LaunchContext) -> str | None:
        """Return the version installed for the interpreter next to the program; the server itself reports none."""
        program = find_program(context.engine.executable or "transformers")
        if program is None:
            return None
        code = "from importlib.metadata import version; print(version('transformers'))"
        python = str(Path(program).absolute().with_name("python"))
        return command_output([python, "-c", code], VERSION_TIMEOUT_S) or None

    def served_model(self, model: ModelSettings) -> str:
        """Return the path or name from which the model was loaded."""
        return model.path or model.name
