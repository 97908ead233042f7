"""Read the specification that a launcher wrote as JSON (`contracts.emulation.to_json`)."""

from __future__ import annotations

import json
from typing import Any

from servebench.contracts.emulation import EmulatedFaults, Emulation, EmulationSpec, Loading


def from_json(text: str) -> EmulationSpec:
    """Return the specification in a JSON text. Raises ValueError or TypeError if it is invalid."""
    document: dict[str, Any] = json.loads(text)
    emulation = dict(document.pop("emulation", {}))
    if "loading" in emulation:
        emulation["loading"] = tuple(Loading(**stage) for stage in emulation["loading"])
    if "batch_sizes" in emulation:
        emulation["batch_sizes"] = tuple(emulation["batch_sizes"])
    document["settings_paths"] = tuple(document.get("settings_paths", ()))
    faults = EmulatedFaults(**document.pop("faults", {}))
    return EmulationSpec(**document, emulation=Emulation(**emulation), faults=faults)
