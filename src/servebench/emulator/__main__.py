"""The process of an emulated engine: `python -m servebench.emulator --spec JSON`.

Ends with 0 after SIGTERM or SIGINT, and with 1 and one line when it cannot listen.
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
"""Between two collections: a request makes few cycles, and a pause of the collector is lateness."""


def main() -> int:
    """Serve as the spec says."""
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
    # open connections are the clients' affair: there is nothing to be saved
    os._exit(0)


if __name__ == "__main__":
    raise SystemExit(main())
