"""From the base schema to an engine's own flags, so that a setting is either on the command line or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servebench.contracts.settings import EngineSettings

SHARED = (
    "tensor_parallel_size",
    "max_model_len",
    "dtype",
    "quantization",
    "gpu_memory_fraction",
    "max_num_seqs",
    "prefix_caching",
    "seed",
)
"""The settings that an engine must map or refuse. The others (host, port, timeouts ...) every launcher handles."""


@dataclass(frozen=True, kw_only=True)
class FlagTable:
    """How an engine spells the shared settings. `flags` maps a setting to its flag; `switches` maps a setting that is
    true or false to the words for each; what is in neither is refused with the reason in `refused`."""

    flags: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, tuple[Sequence[str], Sequence[str]]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def words(self, settings: EngineSettings) -> list[str]:
        """The flags of the shared settings that are set, in the order of the schema."""
        words: list[str] = []
        for name in SHARED:
            value = getattr(settings, name)
            if value is None:
                continue
            if name in self.switches:
                words += self.switches[name][0 if value else 1]
            elif name in self.flags:
                words += [self.flags[name], str(value)]
        return words

    def faults(self, settings: EngineSettings) -> list[str]:
        """A line for each shared setting that is set and has no flag. One that asks for a single GPU is no fault."""
        return [
            f"engine.{name}={getattr(settings, name)}: {settings.name} has no flag for it; "
            f"{self.refused.get(name, 'leave it out')}"
            for name in SHARED
            if getattr(settings, name) is not None
            and name not in self.flags
            and name not in self.switches
            and not (name == "tensor_parallel_size" and settings.tensor_parallel_size == 1)
        ]


def extra_words(extra: Mapping[str, Any]) -> list[str]:
    """`extra_args` as flags: true is a bare flag, null and false leave it out, a list repeats it, a mapping is JSON."""
    words: list[str] = []
    for name, value in extra.items():
        flag = name if name.startswith("-") else f"--{name}"
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is None or one is False:
                continue
            if one is True:
                words.append(flag)
            else:
                words += [flag, json.dumps(dict(one)) if isinstance(one, Mapping) else str(one)]
    return words


def is_python(executable: str) -> bool:
    """Whether an executable is a Python interpreter, which then runs the engine as a module."""
    return Path(executable).name.startswith("python")


def missing_executable(settings: EngineSettings, default: str, install: str) -> list[str]:
    """A line when the engine's executable is not on this machine: what was looked for, and the ways out."""
    wanted = settings.executable or default
    if shutil.which(wanted):
        return []
    where = "engine.executable" if settings.executable else "PATH"
    return [
        f"{settings.name} is not installed here: no '{wanted}' ({where}); {install}, or name one with "
        f"engine.executable=/path/to/{default}, or measure a running server with launch=attach launch.base_url=..."
    ]
