"""The process of an emulated engine: `python -m servebench.emulator --spec JSON`.

Exits with 0 after SIGTERM or SIGINT, and with 1 and one line if it cannot listen.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import sys

from servebench.emulator.server import serve
from servebench.emulator.spec import from_json

YOUNG_OBJECTS = 50_000
"""Objects between two garbage collections: requests create few cycles, and a collection makes tokens late."""


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
