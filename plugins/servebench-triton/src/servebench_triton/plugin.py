"""What this plugin offers."""

from __future__ import annotations

from collections.abc import Sequence

from servebench.plugin import Engine, hookimpl
from servebench_triton.engine import TritonEngine

requires_api = 1


@hookimpl
def servebench_engines() -> Sequence[type[Engine]]:
    """The engine."""
    return (TritonEngine,)


@hookimpl
def servebench_config_paths() -> Sequence[str]:
    """Its config group."""
    return ("pkg://servebench_triton.conf",)
