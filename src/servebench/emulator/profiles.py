"""Step durations fitted to published numbers, by engine, GPU and model."""

import json
from functools import cache
from importlib.resources import files
from typing import Any

from servebench.contracts.emulation import EmulationSpec
from servebench.emulator.cost import Profile


@cache
def stored_profiles() -> list[dict[str, Any]]:
    """Return all stored profiles."""
    path = files("servebench.emulator") / "data" / "profiles.json"
    stored: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return stored


def profile_for(spec: EmulationSpec) -> Profile | None:
    """Return the profile of this engine, GPU, number of GPUs and model; None if there is none (the roofline is used).

    A profile with a `variant` applies only to that backend of the engine.
    """
    for entry in stored_profiles():
        if (
            entry["engine"] == spec.engine
            and entry["gpu"] == spec.gpu.get("name")
            and entry["gpus"] == spec.tensor_parallel
            and str(spec.model.get("name") or "").rsplit("/", 1)[-1].lower() in entry["models"]
            and entry.get("variant") in (None, spec.variant)
        ):
            numbers = dict(entry["profile"])
            if "batch_sizes" in numbers:
                numbers["batch_sizes"] = tuple(numbers["batch_sizes"])
            return Profile(**numbers)
    return None
