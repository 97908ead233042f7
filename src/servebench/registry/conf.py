"""List the config groups and their options, from the names of files: without Hydra, so that help and completion are fast."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import servebench
from servebench.registry.registry import Registry
from servebench.util.errors import ConfigError

ABSTRACT = "base"
"""The file of a group that others inherit; it is not an option itself."""
EXPERIMENT = "experiment"


def conf_dir() -> Path:
    """Return the folder of the built-in config groups: in the package when installed, next to it in a checkout.

    Raises ConfigError if there is neither.
    """
    package = Path(servebench.__file__).resolve().parent
    candidates = (package / "conf", package.parents[1] / "conf")
    for candidate in candidates:
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(f"no config folder at {candidates[0]}: reinstall servebench-suite")


def config_groups(registry: Registry) -> Mapping[str, tuple[str, ...]]:
    """Return the options of each config group, those of plugins included, both sorted."""
    found: dict[str, set[str]] = {}
    for folder in (conf_dir(), *(place for path in registry.config_paths for place in _folders(path))):
        for group in (path for path in folder.glob("*") if path.is_dir() and path.name != "hydra"):
            names = {file.stem for file in group.glob("*.yaml")} - {ABSTRACT}
            found.setdefault(group.name, set()).update(names)
    return {group: tuple(sorted(names)) for group, names in sorted(found.items()) if names}


def _folders(config_path: str) -> list[Path]:
    """Return the folders of a plugin's config path, which is a path or `pkg://package.folder`."""
    if not config_path.startswith("pkg://"):
        return [Path(config_path.removeprefix("file://"))]
    spec = find_spec(config_path.removeprefix("pkg://").replace("/", "."))
    return [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
