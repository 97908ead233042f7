"""What long points have shown of how engines wander: `outputs/.noise/`, a file for each engine, machine and kind of load."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from servebench.contracts.noise import LearnedNoise
from servebench.store.files import object_in, read_stored, validated, write_text, writing
from servebench.store.manifest import digest
from servebench.util.bounded_file import STATE_BYTES_MAX
from servebench.util.errors import StoreError

FOLDER = ".noise"
NAME_LENGTH = 16
"""Of the hash of the facts: 64 bits tell all set-ups of a folder apart."""


def read_noise(outputs: Path, facts: Mapping[str, Any], now_s: float) -> LearnedNoise | None:
    """Return what is known of an engine with these facts; None where nothing is, it is too old, or cannot be read."""
    with suppress(StoreError, FileNotFoundError):
        found = _read(_path(outputs, facts))[0]
        return found if found.usable(now_s) else None
    return None


def write_noise(outputs: Path, facts: Mapping[str, Any], noise: LearnedNoise) -> None:
    """Store what a long point has shown, in the place of what was known. Raises StoreError."""
    path = _path(outputs, facts)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({"facts": facts, "noise": asdict(noise)}, indent=1) + "\n")


def all_noise(outputs: Path) -> Iterator[tuple[LearnedNoise, Mapping[str, Any]]]:
    """Yield all that is known, with the facts of its engine, machine and load; what cannot be read is left out."""
    for path in sorted((outputs / FOLDER).glob("*.json")):
        with suppress(StoreError, FileNotFoundError):
            yield _read(path)


def _path(outputs: Path, facts: Mapping[str, Any]) -> Path:
    return outputs / FOLDER / f"{digest(facts)[:NAME_LENGTH]}.json"


def _read(path: Path) -> tuple[LearnedNoise, Mapping[str, Any]]:
    document = object_in(read_stored(path, STATE_BYTES_MAX), path)
    noise, facts = document.get("noise"), document.get("facts")
    if not isinstance(noise, dict) or not isinstance(facts, dict):
        raise StoreError(f"{path} is no file of learned noise")
    return validated(LearnedNoise, noise, path), facts
