"""The table of `servebench plugins`."""

import sys
from dataclasses import asdict

from rich.table import Table

from servebench.registry.registry import Registry
from servebench.report.terminal.tables import console
from servebench.util.plain_data import to_json as plain_json

COLUMNS = ("name", "distribution", "version", "status", "hooks", "error")


def show_plugins(registry: Registry, *, as_json: bool) -> None:
    """Print the plugins, what the registry offers by kind, and its faults."""
    offers = {kind: sorted(classes) for kind, classes in registry.kinds.items()}
    if as_json:
        facts = {
            "plugins": [asdict(info) for info in registry.plugins],
            "offers": offers,
            "faults": list(registry.faults),
        }
        sys.stdout.write(plain_json(facts))
        return
    out = console()
    table = Table(header_style="bold", pad_edge=False)
    for column in COLUMNS:
        table.add_column(column)
    for info in registry.plugins:
        style = None if info.status == "loaded" else "red" if info.status == "broken" else "dim"
        table.add_row(
            info.name,
            info.distribution,
            info.version,
            info.status,
            "\n".join(info.hooks),
            info.error or "",
            style=style,
        )
    if registry.plugins:
        out.print(table)
    else:
        out.print("no plugins are installed; the built-ins are available")
    for kind, names in offers.items():
        out.print(f"{kind}: {', '.join(names)}")
    for fault in registry.faults:
        out.print(f"warning: {fault}")
