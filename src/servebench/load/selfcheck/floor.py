"""How exact the client is on this machine: measured when it is not known, and kept in the cache folder for a day."""

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

KEPT_S = 24 * 3600.0
FILE = "self_check.json"


def machine_key() -> str:
    """What a stored result holds for: this host with these cores, this Python, this servebench."""
    return f"{platform.node()} {platform.machine()} {usable_cores()} {platform.python_version()} {__version__}"


def read_stored_floor(cache: Path, *, now_s: float) -> ClientFloor | None:
    """The result that is kept, if it is of this machine and of the last day."""
    try:
        kept: dict[str, Any] = orjson.loads((cache / FILE).read_bytes())
        floor = kept["floor"]
        found = ClientFloor(**(floor | {"stages": tuple(FloorStage(**stage) for stage in floor["stages"])}))
        usable = kept["machine"] == machine_key() and 0 <= now_s - found.measured_s < KEPT_S
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if usable else None


def store_floor(cache: Path, floor: ClientFloor) -> None:
    """Keep a result. A cache that cannot be written costs the next study two seconds and is no error."""
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        beside = cache / f"{FILE}.{os.getpid()}"
        beside.write_bytes(orjson.dumps({"machine": machine_key(), "floor": asdict(floor)}))
        beside.replace(cache / FILE)


def client_floor(mode: Literal["auto", "always", "never"], cache: Path) -> ClientFloor | None:
    """The floor of this machine: as kept (`auto`) or measured now; None with `never`. Raises LoadError."""
    if mode == "never":
        return None
    kept = read_stored_floor(cache, now_s=time.time()) if mode == "auto" else None
    return measure_floor(cache) if kept is None else kept


def measure_floor(cache: Path) -> ClientFloor:
    """Measure the floor of this machine now, store it in the cache folder and return it. Raises LoadError."""
    floor = self_check()
    store_floor(cache, floor)
    return floor


def format_floor(floor: ClientFloor) -> list[str]:
    """A floor in words, for a person."""
    lines = [f"{'streams':>8} {'events/s':>9} {'TTFT error':>11} {'ITL error':>10} {'late':>9} {'merged':>8}"]
    lines += [
        f"{stage.streams:>8} {stage.events_s:>9,.0f} {stage.ttft_error_ms:>8.3f} ms {stage.itl_error_ms:>7.3f} ms "
        f"{stage.lateness_ms:>6.2f} ms {100 * stage.merged_share:>6.2f} %"
        for stage in floor.stages
    ]
    lines.append("errors and lateness are 99th percentiles, against a server in another process whose truth is known")
    if floor.limit_seen:
        limit = (
            f"right within a millisecond up to {floor.streams} streams and {floor.events_s:,.0f} events/s, no further"
        )
    else:
        limit = f"right within a millisecond at all loads tried, up to {floor.streams} streams and {floor.events_s:,.0f} events/s"
    lines.append(f"{limit}; stamps by the {floor.stamp_source}; measured in {floor.seconds:.1f} s")
    return lines
