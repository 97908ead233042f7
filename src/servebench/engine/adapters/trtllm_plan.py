"""What a TensorRT engine is built from: settings, commands and folders. Pure, except for a look at `model.path`."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from servebench.contracts.engine import Command, LaunchContext
from servebench.contracts.settings import EngineSettings, Seconds
from servebench.engine.adapters.flags import FlagTable, extra_arguments

BUILDER = "trtllm-build"
KEY_DIGITS = 16

CONVERT_FLAGS = FlagTable(flags={"tensor_parallel_size": "--tp_size", "dtype": "--dtype"})
BUILD_FLAGS = FlagTable(
    flags={"tensor_parallel_size": "--workers", "max_model_len": "--max_seq_len", "max_num_seqs": "--max_batch_size"}
)


@dataclass(frozen=True, kw_only=True)
class TrtllmSettings(EngineSettings):
    """`backend` is `pytorch`, or `tensorrt` for an engine that is built first and cached.

    For `tensorrt`: `convert_script` is TensorRT-LLM's `examples/models/core/FAMILY/convert_checkpoint.py`, not needed if
    `model.path` is a converted checkpoint or a built engine; `convert_args` and `build_args` are further flags of it and of
    `trtllm-build`, as in `extra_args`; `builder` is that program; `build_timeout_s` limits each of the two steps.
    """

    backend: Literal["pytorch", "tensorrt"] = "pytorch"
    convert_script: str | None = None
    convert_args: Mapping[str, Any] = field(default_factory=dict)
    build_args: Mapping[str, Any] = field(default_factory=dict)
    builder: str = BUILDER
    build_timeout_s: Seconds = 7200.0


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """What to build, from settings alone.

    `convert` is null for a model that is already converted; `home` is the folder of all engines built from these settings.
    The working folder in the commands is written `{work}`.
    """

    home: Path
    served_name: str
    convert: Command | None
    build: Command
    model: Path
    executable: str
    timeout_s: float

    @property
    def engine(self) -> Path:
        """The folder from which the server loads the engine. Its last part is the server's name for the model."""
        return self.home / "current" / self.served_name


def digest(facts: Mapping[str, Any]) -> str:
    """Return a short hash of plain data."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is a converted TensorRT-LLM checkpoint: weights by rank."""
    return (folder / "rank0.safetensors").is_file()


def is_engine(folder: Path) -> bool:
    """Return whether a folder is a built engine."""
    return (folder / "rank0.engine").is_file()


def in_folder(command: Command, work: Path) -> Command:
    """Return the command with its working folder filled in."""
    return Command(argv=tuple(argument.replace("{work}", str(work)) for argument in command.argv), env=command.env)


def build_plan(context: LaunchContext) -> BuildPlan | None:
    """Return what must be built for this context; None if `model.path` is a built engine.

    Prefix reuse needs the paged cache and paged context attention, so they are always enabled.
    """
    settings = context.engine
    assert isinstance(settings, TrtllmSettings)
    model = Path(context.model.path or context.model.name)
    if is_engine(model):
        return None
    checkpoint, convert = str(model), None
    if not is_checkpoint(model):
        checkpoint = "{work}/checkpoint"
        script = settings.convert_script or "convert_checkpoint.py"
        arguments = ["python3", script] if script.endswith(".py") else [script]
        arguments += ["--model_dir", str(model), "--output_dir", checkpoint, *CONVERT_FLAGS.arguments(settings)]
        convert = Command(argv=(*arguments, *extra_arguments(settings.convert_args)), env=dict(settings.env))
    arguments = [settings.builder, "--checkpoint_dir", checkpoint, "--output_dir", "{work}/engine"]
    arguments += ["--kv_cache_type", "paged", "--use_paged_context_fmha", "enable", "--gemm_plugin", "auto"]
    build = Command(
        argv=(*arguments, *BUILD_FLAGS.arguments(settings), *extra_arguments(settings.build_args)),
        env=dict(settings.env),
    )
    requested = {
        "model": [context.model.name, str(model), context.model.revision],
        "gpu": [context.gpu.name, context.gpu.count],
        "convert": convert.argv if convert else None,
        "build": build.argv,
        "env": dict(settings.env),
    }
    return BuildPlan(
        home=context.cache_dir / "trtllm" / "engines" / digest(requested),
        served_name=model.name,
        convert=convert,
        build=build,
        model=model,
        executable=settings.builder,
        timeout_s=settings.build_timeout_s,
    )
