"""The hooks of this plugin."""

from __future__ import annotations

from collections.abc import Sequence

from servebench.plugin import Engine, hookimpl
from servebench_llamacpp.engine import LlamaCppEngine

requires_api = 1


@hookimpl
def servebench_engines() -> Sequence[type[Engine]]:
    """Return the engine of this plugin."""
    return (LlamaCppEngine,)


@hookimpl
def servebench_config_paths() -> Sequence[str]:
    """Return the folder of this plugin's config group."""
    return ("pkg://servebench_llamacpp.conf",)
