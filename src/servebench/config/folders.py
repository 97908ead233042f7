"""Set up Hydra on the config folders; the only module that changes Hydra's global state."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from servebench.config.problems import Problem
from servebench.registry.conf import ABSTRACT, EXPERIMENT, NO_GROUPS, conf_dir, config_folders, hidden_files
from servebench.registry.registry import Registry

VERSION_BASE = "1.3"

_added: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("servebench_config_folders", default=())


class ServebenchSearchPath(SearchPathPlugin):
    """Adds the plugins' folders, then those of `--config-dir`, to Hydra's search path; the first file of a name wins."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the folders of the current `composer`; Hydra calls this during set-up."""
        for provider, path in _added.get():
            search_path.append(provider=provider, path=path)


def folder_problems(config_dirs: Sequence[str], registry: Registry) -> list[Problem]:
    """Return a problem for each `--config-dir` that does not exist, and for each file in it that a built-in one hides."""
    lines: list[str] = []
    earlier = config_folders(registry.config_paths) if config_dirs else []
    for name in config_dirs:
        folder = Path(name)
        lines += hidden_files(folder, earlier) if folder.is_dir() else [f"--config-dir {name}: folder not found"]
    return [Problem(line, "words") for line in lines]


@dataclass(frozen=True)
class Layer:
    """A file of a composed config: the package that its keys are in, its name, what it sets, and its folder; empty for
    servebench's own."""

    package: str
    name: str
    content: Any
    folder: str


class Composer:
    """Hydra's Compose API on one search path, with its groups and options."""

    def __init__(self, loader: ConfigLoader, config_name: str) -> None:
        """`loader` is Hydra's config loader, `config_name` the primary config."""
        self.loader = loader
        self.config_name = config_name
        self._options: dict[str, tuple[str, ...]] = {}
        self._composed = lru_cache(maxsize=1)(self._compose)
        self._layered = lru_cache(maxsize=1)(self._layers)
        found = loader.get_group_options("", results_filter=ObjectType.GROUP)
        self.groups = tuple(sorted({name for name in found if name not in NO_GROUPS} | {EXPERIMENT}))

    def options(self, group: str) -> tuple[str, ...]:
        """Return the options of a group, sorted, without the file that others inherit."""
        if group not in self._options:
            found = self.loader.get_group_options(group, results_filter=ObjectType.CONFIG)
            self._options[group] = tuple(sorted(name for name in found if name != ABSTRACT))
        return self._options[group]

    def has_abstract(self, group: str) -> bool:
        """Return whether the group has a base file."""
        return ABSTRACT in self.loader.get_group_options(group, results_filter=ObjectType.CONFIG)

    def file_of(self, name: str) -> Path | None:
        """Return the file of an option `group/option`; None if it is in no folder, such as inside a package."""
        found = next((item for item in self.loader.get_sources() if item.is_config(name)), None)
        file = Path(found.path) / f"{name}.yaml" if found is not None else None
        return file if file is not None and file.is_file() else None

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """Return the composed config with its `hydra` node; do not change it. Raises errors of Hydra and YAML.

        The last result is cached: composing takes 0.1 s, and the first job of a sweep repeats the overrides of the sweep.
        """
        return self._composed(tuple(overrides))

    def _compose(self, words: tuple[str, ...]) -> DictConfig:
        return compose(config_name=self.config_name, overrides=list(words), return_hydra_config=True)

    def layers(self, overrides: Sequence[str]) -> list[Layer]:
        """Return the files of a config in the order in which Hydra merges them. Cached as by `compose`."""
        return self._layered(tuple(overrides))

    def _layers(self, words: tuple[str, ...]) -> list[Layer]:
        defaults = self.loader.compute_defaults_list(self.config_name, list(words), RunMode.RUN)
        found = []
        for name, package in ((str(one.config_path), one.package or "") for one in defaults.defaults):
            holder = next((one for one in self.loader.get_sources() if one.is_config(name)), None)
            if holder is not None:
                content = OmegaConf.to_container(holder.load_config(name).config, resolve=False)
                folder = "" if holder.provider == "main" else f"{holder.path}/"
                found.append(Layer(package, name, content, folder))
        return found


@contextmanager
def composer(registry: Registry, config_dirs: Sequence[str] = (), config_name: str = "config") -> Iterator[Composer]:
    """Set up Hydra on the built-in folder, the plugins' folders and these, in this order; restore its state at the end."""
    Plugins.instance().register(ServebenchSearchPath)
    # as folders: of a pkg:// without an __init__.py Hydra warns once a config file has a searchpath of its own
    folders = [("servebench-plugin", str(folder)) for folder in config_folders(registry.config_paths)[1:]]
    folders += [("command-line", str(Path(name).absolute())) for name in config_dirs if Path(name).is_dir()]
    token = _added.set(tuple(folders))
    try:
        with initialize_config_dir(config_dir=str(conf_dir()), job_name="servebench", version_base=VERSION_BASE):
            yield Composer(GlobalHydra.instance().config_loader(), config_name)
    finally:
        _added.reset(token)
