"""The process of an emulated engine: `python -m servebench.emulator --spec JSON`.

Exits with 0 after SIGTERM or SIGINT, and with 1 and one line if it cannot listen.
"""

import argparse
import asyncio
import gc
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from servebench import __version__
from servebench.contracts.emulation import EmulatedFaults, Emulation, EmulationSpec, Loading
from servebench.emulator.connection import ServerConnection
from servebench.emulator.engine import EmulatedEngine, log


async def _load(spec: EmulationSpec) -> None:
    """Imitate the cold start, with the engine's log lines."""
    stages = list(spec.cold_start())
    for index, (seconds, line) in enumerate(stages):
        await asyncio.sleep(seconds * spec.time_scale)
        if index == len(stages) // 2 and spec.faults.die_in_loading:
            log(spec.emulation.out_of_memory_line)
            os._exit(1)
        if index == len(stages) // 2 and spec.faults.hang_in_loading:
            await asyncio.Event().wait()
        if index < len(stages) - 1:
            log(line)


async def serve(spec: EmulationSpec) -> None:
    """Load, listen and answer until a stop signal."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        if spec.faults.ignore_sigterm:
            signal.signal(number, signal.SIG_IGN)
        else:
            loop.add_signal_handler(number, stopped.set)
    log(f"servebench emulator {__version__}: emulated {spec.engine}; these numbers do not describe the real engine")
    if spec.faults.leave_child:
        # in a session of its own, which a signal to the group does not reach
        command = [sys.executable, "-S", "-E", "-P", "-c", "import time; time.sleep(3600)"]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    engine = EmulatedEngine(spec, loop)
    listening: list[asyncio.Server] = []

    async def listen() -> None:
        factory: Callable[[], asyncio.Protocol] = lambda: ServerConnection(engine)  # noqa: E731
        listening.append(await loop.create_server(factory, spec.host, spec.port, backlog=8192))

    async def start() -> None:
        if spec.emulation.loading_status is not None:
            await listen()
        await _load(spec)
        engine.ready = True
        if not listening:
            await listen()
        log(spec.emulation.loading[-1].line)

    starting = asyncio.ensure_future(start())
    waiting = asyncio.ensure_future(stopped.wait())
    await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        starting.result()
    await waiting
    log("shutting down")


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
