"""The profiles: steps fitted to published numbers, by engine, GPU and model."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from servebench.contracts.emulation import EmulationSpec
from servebench.emulator.cost import Profile

DATA = "profiles.json"


@cache
def stored_profiles() -> list[dict[str, Any]]:
    """All profiles, as stored."""
    stored: list[dict[str, Any]] = json.loads(
        files("servebench.emulator").joinpath("data", DATA).read_text(encoding="utf-8")
    )
    return stored


def profile_for(spec: EmulationSpec) -> Profile | None:
    """The profile of this engine on this GPU (and as many of them) with this model, or None: the roofline it is.

    A profile with a `variant` holds for that backend of the engine alone.
    """
    for one in stored_profiles():
        if (
            one["engine"] == spec.engine
            and one["gpu"] == spec.gpu.get("name")
            and one["gpus"] == spec.tensor_parallel
            and str(spec.model.get("name") or "").rsplit("/", 1)[-1].lower() in one["models"]
            and one.get("variant") in (None, spec.variant)
        ):
            numbers = dict(one["profile"])
            if "batch_sizes" in numbers:
                numbers["batch_sizes"] = tuple(numbers["batch_sizes"])
            return Profile(**numbers)
    return None
