"""Find and load plugins, each alone so that a broken one never ends the command, and look up classes by name."""

import os
from collections import UserDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from servebench.contracts import hooks
from servebench.contracts.engine import Engine, Launcher
from servebench.contracts.events import Event
from servebench.contracts.quality import Scorer
from servebench.contracts.request import Workload
from servebench.contracts.telemetry import TelemetrySource
from servebench.registry.conf import config_folders, folders_of, hidden_files
from servebench.util.errors import ConfigError
from servebench.util.safe_text import in_one_line

DISTRIBUTION = "servebench-suite"
DISABLE_VARIABLE = "SERVEBENCH_DISABLE_PLUGINS"
"""Environment variable with the names of entry points not to load, separated by commas; `all` loads only built-ins."""

_KINDS: Mapping[str, tuple[str, type[Any]]] = {
    "engine": ("servebench_engines", Engine),
    "launch": ("servebench_launchers", Launcher),
    "workload": ("servebench_workloads", Workload),
    "telemetry": ("servebench_telemetry", TelemetrySource),
    "quality": ("servebench_scorers", Scorer),
}
"""By config group the hook that offers its classes, and what they inherit from."""


@dataclass(frozen=True, kw_only=True)
class PluginInfo:
    """A plugin as `servebench plugins` lists it. `status` is `loaded`, `broken` or `disabled`."""

    name: str
    distribution: str
    version: str
    status: str
    hooks: tuple[str, ...] = ()
    error: str | None = None

    @property
    def key(self) -> str:
        """The name under which pluggy knows the plugin."""
        return f"{self.distribution}:{self.name}"


class Classes(UserDict[str, Any]):
    """The classes of a kind by name, in the order offered. One that is offered as `module:Class` is imported when it is first
    used, because a command needs few of them: ConfigError if that fails."""

    def __init__(self, kind: str, offers: Mapping[str, type[Any] | EntryPoint]) -> None:
        """Keep the offers; nothing is imported."""
        super().__init__(offers)
        self._kind = kind

    def __getitem__(self, name: str) -> type[Any]:
        """Return the class of this name. Raises KeyError, ConfigError."""
        found: type[Any] | EntryPoint = self.data[name]
        if isinstance(found, EntryPoint):
            try:
                found = _checked(f"{found.value} is", found.load(), self._kind)
            except Exception as error:
                raise ConfigError(f"{self._kind}={name} cannot be loaded: {_line(error)}") from error
            self.data[name] = found
        return found


@dataclass(frozen=True)
class Registry:
    """Everything that the loaded plugins provide: `kinds` maps a config group to its classes by name."""

    manager: pluggy.PluginManager
    plugins: tuple[PluginInfo, ...]
    kinds: Mapping[str, Mapping[str, type[Any]]]
    config_paths: tuple[str, ...] = ()
    faults: tuple[str, ...] = field(default_factory=tuple)

    def find(self, kind: str, name: str) -> type[Any]:
        """Return the class of this name. Raises ConfigError."""
        known = self.kinds[kind]
        if name in known:
            return known[name]
        listed = f"available: {', '.join(sorted(known))} (run 'servebench plugins' to list plugins)"
        raise ConfigError(f"no {kind} named '{name}' is installed; {listed}")

    def engine(self, name: str) -> Engine:
        """Return an engine by name. Raises ConfigError."""
        found: Engine = self.find("engine", name)()
        return found

    def launcher(self, name: str) -> Launcher:
        """Return a launch strategy by name. Raises ConfigError."""
        found: Launcher = self.find("launch", name)()
        return found

    def notify(self, event: Event) -> list[str]:
        """Call the life-cycle hook of an event, if it has one, of each plugin separately. Return a line for each that raised; the
        run continues."""
        hook, faults = hooks.LIFE_CYCLE.get(type(event)), []
        if hook is None:
            return []
        named = self.manager.list_name_plugin()
        for name, plugin in named:
            caller = self.manager.subset_hook_caller(hook, [other for _, other in named if other is not plugin])
            try:
                caller(event=event)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                faults.append(f"plugin {name}: {hook} raised {_line(error)}; the run continues without it")
        return faults


def _line(error: BaseException) -> str:
    return in_one_line(f"{type(error).__name__}: {error}", 300)


def _checked(said: str, found: Any, kind: str) -> type[Any]:
    base = _KINDS[kind][1]
    if not isinstance(found, type) or not issubclass(found, base) or not isinstance(getattr(found, "name", None), str):
        raise TypeError(f"{said} {found!r}, which is not a subclass of {base.__name__} with a name")
    return found


HOOKS = tuple(sorted([*(hook for hook, _ in _KINDS.values()), "servebench_config_paths", *hooks.LIFE_CYCLE.values()]))


def _load(manager: pluggy.PluginManager, point: EntryPoint, disabled: set[str]) -> PluginInfo:
    distribution, version = (point.dist.name, point.dist.version) if point.dist else ("?", "?")
    info = PluginInfo(name=point.name, distribution=distribution, version=version, status="loaded")
    if point.name in disabled or "all" in disabled:
        return replace(info, status="disabled")
    broken = partial(replace, info, status="broken")
    # a plugin is third-party code: any error of it becomes a line of the table
    try:
        plugin = point.load()
        wanted = getattr(plugin, "requires_api", hooks.API_VERSION)
        if wanted > hooks.API_VERSION:
            return broken(error=f"it needs plugin API {wanted}; this servebench has {hooks.API_VERSION}")
        manager.register(plugin, info.key)
        implemented = tuple(sorted(caller.name for caller in manager.get_hookcallers(plugin) or []))
        if unknown := [name for name in implemented if name not in HOOKS]:
            raise ValueError(f"it implements unknown hooks: {', '.join(unknown)}; known are {', '.join(HOOKS)}")
        if unmarked := [name for name in HOOKS if hasattr(plugin, name) and name not in implemented]:
            raise ValueError(f"without @hookimpl nothing calls its {', '.join(unmarked)}")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if manager.get_plugin(info.key) is not None:
            manager.unregister(name=info.key)
        return broken(error=_line(error))
    return replace(info, hooks=implemented)


def _collect(manager: pluggy.PluginManager, infos: list[PluginInfo]) -> tuple[dict[str, Classes], list[str], list[str]]:
    """Call each plugin alone: one that raises is marked as broken; two classes of one name and hidden files are reported."""
    kinds: dict[str, dict[str, type[Any] | EntryPoint]] = {kind: {} for kind in _KINDS}
    owners: dict[tuple[str, str], str] = {}
    paths: list[str] = []
    faults: list[str] = []
    for name, plugin in manager.list_name_plugin():
        try:
            offered, some = _offers(manager, plugin)
        except (Exception, SystemExit) as error:
            if name.startswith(f"{DISTRIBUTION}:"):
                raise
            # its other hooks must not be called either
            manager.unregister(name=name)
            index = next(index for index, info in enumerate(infos) if info.key == name)
            infos[index] = replace(infos[index], status="broken", hooks=(), error=_line(error))
            continue
        paths.extend(some)
        for kind, found in offered:
            if (kind, found.name) in owners:
                first = owners[kind, found.name]
                faults.append(f"{kind} '{found.name}' is provided by both {first} and {name}; the first is used")
                continue
            owners[kind, found.name] = name
            kinds[kind][found.name] = found
    folders = config_folders(paths)
    for place in range(1, len(folders)):
        faults.extend(hidden_files(folders[place], folders[:place]))
    return {kind: Classes(kind, offers) for kind, offers in kinds.items()}, paths, faults


def _offers(
    manager: pluggy.PluginManager, plugin: object
) -> tuple[list[tuple[str, type[Any] | EntryPoint]], list[str]]:
    """Return the classes of one plugin, or where they are, with their kinds, and its config folders.

    Raises what the plugin raises, TypeError for what is not of the hook's type, and ValueError for a folder that does not exist.
    """
    others = [other for _, other in manager.list_name_plugin() if other is not plugin]

    def answer(hook: str) -> Any:
        """Return what the plugin returns from a hook; nothing if it does not implement it."""
        (found,) = manager.subset_hook_caller(hook, others)() or [None if hasattr(plugin, hook) else ()]
        if isinstance(found, str) or not isinstance(found, Iterable):
            raise TypeError(f"{hook} returned {found!r}; return a tuple, also of one")
        return found

    offered: list[tuple[str, type[Any] | EntryPoint]] = []
    for kind, (hook_name, _) in _KINDS.items():
        found = answer(hook_name)
        if isinstance(found, Mapping):
            offered += [(kind, EntryPoint(name, place, hooks.GROUP)) for name, place in found.items()]
        else:
            offered += [(kind, _checked(f"{hook_name} returned", one, kind)) for one in found]
    paths = [str(path) for path in answer("servebench_config_paths")]
    for path in paths:
        if not any(folder.is_dir() for folder in folders_of(path)):
            raise ValueError(f"servebench_config_paths returned {path}, a folder that does not exist")
    return offered, paths


def _is_builtin(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == DISTRIBUTION


def build(points: Iterable[EntryPoint], disabled: set[str]) -> Registry:
    """Return a registry of the built-ins and of these entry points. An error in a plugin never raises; one in a built-in does."""
    manager = pluggy.PluginManager(hooks.GROUP)
    manager.add_hookspecs(hooks)
    builtin = sorted(filter(_is_builtin, entry_points(group=hooks.GROUP)), key=lambda point: point.name)
    if not builtin:
        raise ConfigError(f"the installation of {DISTRIBUTION} has no entry points; install it again with pip")
    infos = [_load(manager, point, set()) for point in builtin]
    for info in infos:
        if info.status == "broken":
            raise ConfigError(
                f"the built-in {info.name} of {DISTRIBUTION} cannot be loaded: {info.error}; install it again"
            )
    infos += [_load(manager, point, disabled) for point in points]
    kinds, paths, faults = _collect(manager, infos)
    return Registry(manager, tuple(infos), kinds, tuple(paths), tuple(faults))


@cache
def registry() -> Registry:
    """Return the registry of this process, built once from the installed distributions."""
    disabled = {name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(",") if name.strip()}
    others = (point for point in entry_points(group=hooks.GROUP) if not _is_builtin(point))
    return build(sorted(others, key=lambda point: (point.dist.name if point.dist else "", point.name)), disabled)
