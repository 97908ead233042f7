"""The process of an emulated engine: `python -m servebench.emulator --spec JSON`.

Exits with 0 after SIGTERM or SIGINT, and with 1 and one line if it cannot listen.
"""

import argparse
import asyncio
import gc
import json
import os
import resource
import sys
from typing import Any

from servebench.contracts.emulation import EmulatedFaults, Emulation, EmulationSpec, Loading
from servebench.emulator.server import serve

YOUNG_OBJECTS = 50_000
"""Objects between two garbage collections: requests create few cycles, and a collection makes tokens late."""


def from_json(text: str) -> EmulationSpec:
    """Return the specification in a JSON text of `contracts.emulation.to_json`. Raises ValueError, TypeError."""
    document: dict[str, Any] = json.loads(text)
    emulation = dict(document.pop("emulation", {}))
    if "loading" in emulation:
        emulation["loading"] = tuple(Loading(**stage) for stage in emulation["loading"])
    if "batch_sizes" in emulation:
        emulation["batch_sizes"] = tuple(emulation["batch_sizes"])
    document["settings_paths"] = tuple(document.get("settings_paths", ()))
    faults = EmulatedFaults(**document.pop("faults", {}))
    return EmulationSpec(**document, emulation=Emulation(**emulation), faults=faults)


def main() -> int:
    """Serve what the specification describes."""
    parser = argparse.ArgumentParser(prog="servebench.emulator", allow_abbrev=False)
    parser.add_argument("--spec", required=True, help="an EmulationSpec as JSON")
    spec = from_json(parser.parse_args().spec)
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 100)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        asyncio.run(serve(spec))
    except OSError as error:
        sys.stderr.write(f"cannot listen on {spec.host}:{spec.port}: {error.strerror or error}\n")
        return 1
    sys.stdout.flush()
    # there is nothing to save, so open connections are dropped
    os._exit(0)


if __name__ == "__main__":
    raise SystemExit(main())
