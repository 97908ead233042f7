"""A spec out of the JSON that a launcher wrote (`contracts.emulation.to_json`)."""

from __future__ import annotations

import json
from typing import Any

from servebench.contracts.emulation import EmulatedFaults, Emulation, EmulationSpec, Loading


def from_json(text: str) -> EmulationSpec:
    """The spec that a launcher wrote. Raises ValueError or TypeError when it is none."""
    given: dict[str, Any] = json.loads(text)
    own = dict(given.pop("emulation", {}))
    if "loading" in own:
        own["loading"] = tuple(Loading(**one) for one in own["loading"])
    if "batch_sizes" in own:
        own["batch_sizes"] = tuple(own["batch_sizes"])
    given["settings_paths"] = tuple(given.get("settings_paths", ()))
    faults = EmulatedFaults(**given.pop("faults", {}))
    return EmulationSpec(**given, emulation=Emulation(**own), faults=faults)
