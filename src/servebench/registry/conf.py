"""List the config groups and their options, from the names of files: without Hydra, so that help and completion are fast."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import servebench
from servebench.util.errors import ConfigError

ABSTRACT = "base"
"""The file of a group that others inherit; it is not an option itself."""
EXPERIMENT = "experiment"
TUNE_FOLDER = "tune"
"""What `servebench tune` searches: a file for each engine."""
NO_GROUPS = ("hydra", TUNE_FOLDER)
"""Folders of config files that no run is composed of."""
GROUP_LINE = re.compile(r"^  - (?:optional )?(\w+): ", re.MULTILINE)
"""An entry of the defaults list in config.yaml."""
GROUP = "servebench"
"""The entry-point group of plugins, as `contracts.hooks` defines it; importing that would be slow."""


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


def install_command(distribution: str) -> str:
    """Return the command that installs a plugin of this project: from the checkout if servebench runs from one."""
    root = Path(servebench.__file__).resolve().parents[2]
    folder = root / "plugins" / distribution
    if not (folder / "pyproject.toml").is_file():
        return f"pip install {distribution}"
    here = Path.cwd()
    return f"pip install {f'./{folder.relative_to(here)}' if folder.is_relative_to(here) else shlex.quote(str(folder))}"


def config_groups(folders: Iterable[Path]) -> Mapping[str, tuple[str, ...]]:
    """Return the options of each config group in these folders, both sorted."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        for group in (path for path in folder.glob("*") if path.is_dir() and path.name not in NO_GROUPS):
            names = {file.stem for file in group.glob("*.yaml")} - {ABSTRACT}
            found.setdefault(group.name, set()).update(names)
    return {group: tuple(sorted(names)) for group, names in sorted(found.items()) if names}


def config_folders(config_paths: Iterable[str]) -> list[Path]:
    """Return the built-in config folder and those that plugins name. Raises ConfigError."""
    return [conf_dir(), *(folder for path in config_paths for folder in folders_of(path))]


def likely_config_folders() -> list[Path]:
    """Return the built-in config folder and `conf/` of each plugin's package, without importing plugins.

    It is for help and shell completion, where speed matters more than a folder of another name. Raises ConfigError.
    """
    packages = {point.module.partition(".")[0] for point in entry_points(group=GROUP)} - {"servebench"}
    return [conf_dir(), *(folder / "conf" for name in sorted(packages) for folder in folders_of(f"pkg://{name}"))]


def hidden_files(folder: Path, earlier: Sequence[Path]) -> Iterator[str]:
    """Yield a line for each config file of a folder that one of the same name in an earlier folder hides."""
    for file in sorted(folder.rglob("*.yaml")):
        relative = file.relative_to(folder)
        # a space of one's own takes the place of the built-in one
        places = () if relative.parts[0] == TUNE_FOLDER else earlier
        hidden_by = next((other for other in places if (other / relative).is_file()), None)
        if hidden_by is not None and hidden_by.resolve() != folder.resolve():
            yield f"{file} is hidden by {hidden_by / relative}; rename it"


def groups_in_order() -> list[tuple[str, tuple[str, ...]]]:
    """Return the config groups with their options in the order of config.yaml, then those that only plugins have.

    Raises ConfigError.
    """
    order = GROUP_LINE.findall((conf_dir() / "config.yaml").read_text(encoding="utf-8"))
    groups = config_groups(likely_config_folders())
    return sorted(groups.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))


def folders_of(config_path: str) -> list[Path]:
    """Return the folders of a plugin's config path, which is a path or `pkg://package.folder`; none of a missing package."""
    if not config_path.startswith("pkg://"):
        return [Path(config_path.removeprefix("file://"))]
    try:
        spec = find_spec(config_path.removeprefix("pkg://").replace("/", "."))
    except ModuleNotFoundError:
        return []
    return [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
