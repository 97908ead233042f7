"""How the built-in engines are emulated: see `emulations.yaml`."""

from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from servebench.contracts.emulation import Emulation, Loading


@cache
def _stored() -> dict[str, dict[str, Any]]:
    text = files("servebench.engine.adapters").joinpath("emulations.yaml").read_text(encoding="utf-8")
    stored: dict[str, dict[str, Any]] = yaml.load(text, yaml.CSafeLoader)
    return stored


def emulation_of(engine: str) -> Emulation:
    """Return how a built-in engine is emulated."""
    values = _stored()[engine]
    phases = tuple(Loading(**one) for one in values["loading"])
    return Emulation(**{**values, "batch_sizes": tuple(values.get("batch_sizes", ())), "loading": phases})
