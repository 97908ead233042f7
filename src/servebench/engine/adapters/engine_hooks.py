"""The hooks of a plugin that adds one engine."""

from collections.abc import Callable, Sequence

from servebench.contracts.engine import Engine
from servebench.contracts.hooks import hookimpl

EngineHooks = tuple[Callable[[], Sequence[type[Engine]]], Callable[[], Sequence[str]]]


def engine_hooks(engine: type[Engine]) -> EngineHooks:
    """Return `servebench_engines` and `servebench_config_paths` of an engine whose package has a folder `conf`."""

    @hookimpl
    def servebench_engines() -> Sequence[type[Engine]]:
        return (engine,)

    @hookimpl
    def servebench_config_paths() -> Sequence[str]:
        return (f"pkg://{engine.__module__.partition('.')[0]}.conf",)

    return servebench_engines, servebench_config_paths
