"""What an engine's package has in addition to its class: the hooks of a plugin with one engine, and `emulations.yaml`."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from servebench.contracts.emulation import Emulation, Loading
from servebench.contracts.engine import Engine
from servebench.contracts.hooks import hookimpl
from servebench.util.bounded_file import load_yaml

EngineHooks = tuple[Callable[[], Sequence[type[Engine]]], Callable[[], Sequence[str]]]


@cache
def _stored(package: str) -> dict[str, dict[str, Any]]:
    text = files(package).joinpath("emulations.yaml").read_text(encoding="utf-8")
    stored: dict[str, dict[str, Any]] = load_yaml(text)
    return stored


def read_emulation(package: str, engine: str) -> Emulation:
    """Return how an engine is emulated: its entry in `emulations.yaml` of the package, with the fields of Emulation that
    differ from their defaults."""
    values = _stored(package)[engine]
    phases = tuple(Loading(**one) for one in values["loading"])
    return Emulation(**{**values, "batch_sizes": tuple(values.get("batch_sizes", ())), "loading": phases})


def engine_hooks(engine: type[Engine]) -> EngineHooks:
    """Return `servebench_engines` and `servebench_config_paths` of an engine whose package has a folder `conf`."""

    @hookimpl
    def servebench_engines() -> Sequence[type[Engine]]:
        return (engine,)

    @hookimpl
    def servebench_config_paths() -> Sequence[str]:
        return (f"pkg://{engine.__module__.partition('.')[0]}.conf",)

    return servebench_engines, servebench_config_paths
