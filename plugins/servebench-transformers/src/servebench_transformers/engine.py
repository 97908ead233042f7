"""The engine: `transformers serve MODEL`."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
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
    extra_arguments,
    missing_executable,
)
from servebench_transformers.emulation import BATCHED, NAIVE

FLAGS = FlagTable(
    flags={"dtype": "--dtype", "quantization": "--quantization", "seed": "--default-seed"},
    unsupported_reasons={
        "tensor_parallel_size": "transformers places layers, it does not split tensors",
        "max_model_len": "the model's own context is used",
        "gpu_memory_fraction": "engine.extra_args.cb-max-memory-percent is near to it",
        "max_num_seqs": "use engine.continuous_batching, or engine.extra_args.cb-max-batch-tokens",
        "prefix_caching": "sharing is always on with continuous batching",
    },
)

EXACT_OUTPUT = json.dumps({"eos_token_id": -1, "do_sample": False})
"""It refuses `ignore_eos` as an unknown field; a generation config without an end token is its way to the same."""


VERSION_TIMEOUT_S = 20.0
"""An interpreter that reads one file; a cold disk may make it slow."""


@dataclass(frozen=True, kw_only=True)
class TransformersSettings(EngineSettings):
    """What `transformers serve` takes beside the shared keys."""

    continuous_batching: bool = True
    device: str | None = None


class TransformersEngine(Engine):
    """Hugging Face's OpenAI-compatible server."""

    name = "transformers"
    settings_type = TransformersSettings
    needs_gpu = False
    metrics_path = None
    # an unknown field is an error 422 there, `seed` and `stream_options` are known ones
    dialect = Dialect(
        exact_output={"generation_config": EXACT_OUTPUT}, sends_done=False, json_schema=False, model_checked=False
    )
    emulation = BATCHED
    phases = (
        PhaseMarker("loading", r"Loading "),
        PhaseMarker("serving", r"Application startup complete"),
    )
    hints = (
        LogHint(r"is not a local folder and is not a valid model identifier|Repository Not Found", "model_missing",
                "check model.name, or give model.path="),
        LogHint(r"out of memory", "out_of_memory", "take a smaller model, or engine.dtype=bfloat16"),
        LogHint(r"No such option", "unknown_flag", "check engine.extra_args against this version"),
        LogHint(r"ModuleNotFoundError|ImportError", "other", 'pip install "transformers[serving]"'),
        LogHint(r"[Aa]ddress already in use", "port_in_use", "choose another engine.port"),
    )  # fmt: skip

    def emulated_as(self, context: LaunchContext) -> Emulation:
        """One at a time without continuous batching."""
        assert isinstance(context.engine, TransformersSettings)
        return self.emulation if context.engine.continuous_batching else NAIVE

    def check(self, context: LaunchContext) -> list[str]:
        """Settings without a flag, and a missing executable."""
        install = 'pip install "transformers[serving]"'
        return FLAGS.unsupported(context.engine) + missing_executable(context.engine, "transformers", install)

    def command(self, context: LaunchContext) -> Command:
        """`transformers serve MODEL ...`."""
        settings = context.engine
        assert isinstance(settings, TransformersSettings)
        words = [settings.executable or "transformers", "serve", self.served_model(context.model)]
        words += ["--host", settings.host, "--port", str(context.port)]
        if settings.device is not None:
            words += ["--device", settings.device]
        if settings.continuous_batching:
            words.append("--continuous-batching")
        return Command(
            argv=(*words, *FLAGS.arguments(settings), *extra_arguments(settings.extra_args)), env=dict(settings.env)
        )

    def version(self, context: LaunchContext) -> str | None:
        """What the interpreter beside the program has installed; the server itself tells no version."""
        program = shutil.which(context.engine.executable or "transformers")
        if program is None:
            return None
        ask = "from importlib.metadata import version; print(version('transformers'))"
        try:
            words = [str(Path(program).absolute().with_name("python")), "-c", ask]
            done = subprocess.run(words, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() or None

    def served_model(self, model: ModelSettings) -> str:
        """The model is asked for by what it was loaded from."""
        return model.path or model.name
