"""Read how an engine is emulated from its package's `emulations.yaml`."""

from functools import cache
from importlib.resources import files
from typing import Any

from servebench.contracts.emulation import Emulation, Loading
from servebench.util.bounded_file import load_yaml


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
