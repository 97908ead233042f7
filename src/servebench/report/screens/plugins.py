"""The table of `servebench plugins`."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from servebench.registry.registry import Registry
from servebench.report.blocks import Block, Line, Span, items, table

TONES = {"broken": "bad", "disabled": "dim"}


def plugins_blocks(registry: Registry) -> Iterator[Block]:
    """Yield the plugins, what the registry offers by kind, and its faults."""
    rows = [
        (one.name, one.distribution, one.version, Span(one.status, TONES.get(one.status, "")), "\n".join(one.hooks))
        for one in registry.plugins
    ]
    if rows:
        yield table(("name", "distribution", "version", "status", "hooks"), rows, left=range(5))
    else:
        yield Line.of("no plugins are installed; the built-ins are available")
    yield items((f"{info.name} is broken: {info.error}" for info in registry.plugins if info.error), tone="bad")
    yield items(f"{kind}: {', '.join(sorted(classes))}" for kind, classes in registry.kinds.items())
    yield items(f"warning: {fault}" for fault in registry.faults)


def plugins_data(registry: Registry) -> dict[str, Any]:
    """Return the same as plain data."""
    return {
        "plugins": [asdict(info) for info in registry.plugins],
        "offers": {kind: sorted(classes) for kind, classes in registry.kinds.items()},
        "faults": list(registry.faults),
    }
