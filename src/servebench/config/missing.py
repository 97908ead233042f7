"""Explain why an engine, launch strategy, workload or scorer is not available, and what to do."""

from servebench.config.problems import suggest
from servebench.registry.registry import DISABLE_VARIABLE, Registry

PLUGIN_ENGINES = ("llamacpp", "lmdeploy", "ollama", "tgi", "triton", "transformers")
"""Engines whose plugin is distributed as `servebench-<name>`."""


def missing_option(group: str, name: str, registry: Registry, *, listed: tuple[str, ...] = ()) -> str:
    """Return the message for an unavailable `group=name`. `listed` are the options of the config folders."""
    if group == "engine":
        line = _plugin_engine(name, registry)
        if line is not None:
            return line
    offered = tuple(registry.kinds.get(group, ()))
    if name in listed and group in registry.kinds:
        return (
            f"{group}={name} has a config file but no installed plugin provides it; "
            f"available: {', '.join(sorted(offered))} (run 'servebench plugins' to list plugins)"
        )
    return f"{group}={name}: no such {group}; {suggest(name, listed or offered, listed=True)}"


def _plugin_engine(name: str, registry: Registry) -> str | None:
    """Return the message for an engine of a plugin; None if no known plugin has this name."""
    distribution = f"servebench-{name}"
    for info in registry.plugins:
        if name == info.name or distribution == info.distribution:
            if info.status == "broken":
                return f"engine={name}: its plugin {info.distribution} {info.version} failed to load ({info.error})"
            if info.status == "disabled":
                return f"engine={name}: its plugin {info.distribution} is disabled by {DISABLE_VARIABLE}; unset it"
    if name not in PLUGIN_ENGINES:
        return None
    others = ", ".join(sorted(registry.kinds["engine"])) or "none"
    return (
        f"engine={name} is not installed: install {distribution}, or choose another engine with engine=NAME "
        f"(installed: {others})"
    )
