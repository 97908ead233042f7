"""What to say of an engine, a launch strategy, a workload or a scorer that nothing installed offers."""

from __future__ import annotations

from servebench.config.faults import did_you_mean
from servebench.registry.registry import DISABLE_VARIABLE, Registry

PLUGIN_ENGINES = ("llamacpp", "lmdeploy", "ollama", "tgi", "triton", "transformers")
"""Engines with a distribution of their own, `servebench-<name>`."""


def absent(group: str, name: str, registry: Registry, *, listed: tuple[str, ...] = ()) -> str:
    """One line for `group=name` that cannot be had. `listed` are the options that the config folders offer."""
    if group == "engine":
        line = _plugin_engine(name, registry)
        if line is not None:
            return line
    offered = tuple(registry.kinds.get(group, ()))
    if name in listed and group in registry.kinds:
        return (
            f"{group}={name}: its config is there, but nothing installed offers the {group}; "
            f"offered are {', '.join(sorted(offered))} ('servebench plugins' lists what is installed)"
        )
    return f"{group}={name}: no such {group}; {did_you_mean(name, listed or offered, listed=True)}"


def _plugin_engine(name: str, registry: Registry) -> str | None:
    """The line for an engine that comes with a plugin, null for a name that no plugin is known to have."""
    distribution = f"servebench-{name}"
    for info in registry.plugins:
        if name == info.name or distribution == info.distribution:
            if info.status == "broken":
                return f"engine={name}: its plugin {info.distribution} {info.version} did not load ({info.error})"
            if info.status == "disabled":
                return f"engine={name}: its plugin {info.distribution} is disabled by {DISABLE_VARIABLE}; unset it"
    if name not in PLUGIN_ENGINES:
        return None
    others = ", ".join(sorted(registry.kinds["engine"])) or "none"
    return (
        f"engine={name} is not installed: install {distribution}, or choose another engine with engine=NAME "
        f"(installed: {others})"
    )
