"""How exact the client is on this machine: measured once a day and stored in the cache folder.

A result that a busy moment has made bad is not kept for the day: the next study measures again.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import orjson

from servebench import __version__
from servebench.contracts.exchange import ClientFloor, FloorStage
from servebench.load.coordinator.share import usable_cores
from servebench.load.selfcheck.check import self_check

MAX_AGE_S = 24 * 3600.0
FILE_NAME = "self_check.json"
BUSY_MS = 1.0
"""An idle machine is more exact than this at the smallest load that is tested."""


def machine_key() -> str:
    """Return what a stored result is valid for: this host with these cores, this Python, this servebench."""
    return f"{platform.node()} {platform.machine()} {usable_cores()} {platform.python_version()} {__version__}"


def read_stored_floor(cache: Path, *, now_s: float) -> ClientFloor | None:
    """Return the stored result if it is of this machine and of the last day."""
    try:
        document: dict[str, Any] = orjson.loads((cache / FILE_NAME).read_bytes())
        fields = document["floor"]
        floor = ClientFloor(**(fields | {"stages": tuple(FloorStage(**stage) for stage in fields["stages"])}))
        valid = document["machine"] == machine_key() and 0 <= now_s - floor.measured_s < MAX_AGE_S
        valid = valid and all(max(one.ttft_error_ms, one.itl_error_ms) < BUSY_MS for one in floor.stages[:1])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return floor if valid else None


def store_floor(cache: Path, floor: ClientFloor) -> None:
    """Store a result. Ignores a cache that cannot be written: the next study just measures again, in two seconds."""
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        temporary = cache / f"{FILE_NAME}.{os.getpid()}"
        temporary.write_bytes(orjson.dumps({"machine": machine_key(), "floor": asdict(floor)}))
        temporary.replace(cache / FILE_NAME)


def client_floor(mode: Literal["auto", "always", "never"], cache: Path) -> ClientFloor | None:
    """Return the floor of this machine, stored (`auto`) or measured now; None with `never`. Raises LoadError."""
    if mode == "never":
        return None
    stored = read_stored_floor(cache, now_s=time.time()) if mode == "auto" else None
    return measure_floor(cache) if stored is None else stored


def measure_floor(cache: Path) -> ClientFloor:
    """Measure the floor of this machine now, store it in the cache folder and return it. Raises LoadError."""
    floor = self_check()
    store_floor(cache, floor)
    return floor


def format_floor(floor: ClientFloor) -> list[str]:
    """Return a floor as lines of text."""
    lines = [f"{'streams':>8} {'events/s':>9} {'TTFT error':>11} {'ITL error':>10} {'late':>9} {'merged':>8}"]
    lines += [
        f"{stage.streams:>8} {stage.events_s:>9,.0f} {stage.ttft_error_ms:>8.3f} ms {stage.itl_error_ms:>7.3f} ms "
        f"{stage.lateness_ms:>6.2f} ms {100 * stage.merged_share:>7.2f}%"
        for stage in floor.stages
    ]
    lines.append(
        "errors and lateness are p99 values, against a null server in another process that records the true times"
    )
    if floor.limit_seen:
        limit = f"exact to a millisecond up to {floor.streams} streams and {floor.events_s:,.0f} events/s, not above"
    else:
        limit = f"exact to a millisecond at all tested loads, up to {floor.streams} streams and {floor.events_s:,.0f} events/s"
    lines.append(f"{limit}; {floor.stamp_source} stamps; measured in {floor.seconds:.1f} s")
    return lines
