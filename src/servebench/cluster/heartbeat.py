"""Who is at work on a run, told by a file in its folder that is touched as long as the process lives.

A process elsewhere cannot be asked by its number; a file on a shared disk can be looked at from everywhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "at_work.json"
BEAT_S = 5.0
SILENT_S = 60.0
"""A file that was not touched for so long belongs to a process that is gone: twelve beats, for disks that lag."""


@dataclass(frozen=True)
class AtWork:
    """Somebody who is at work: on which host, as which process, in which job of the cluster."""

    host: str
    pid: int
    job: str | None

    def __str__(self) -> str:
        return f"{self.host}, {f'job {self.job}' if self.job else f'process {self.pid}'}"


@contextmanager
def beating(folder: Path, facts: Mapping[str, Any]) -> Iterator[None]:
    """Within, the folder tells that somebody is at work there."""
    path = folder / FILE
    path.write_text(json.dumps({"host": platform.node(), "pid": os.getpid(), **facts}), encoding="utf-8")
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_S):
            with contextlib.suppress(OSError):
                os.utime(path)

    thread = threading.Thread(target=beat, daemon=True, name="heartbeat")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(OSError):
            path.unlink()


def at_work(folder: Path) -> AtWork | None:
    """Who is at work in a folder; null when nobody is, or whoever was is gone."""
    path = folder / FILE
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        silent_s = _disk_now(folder) - path.stat().st_mtime
        found = AtWork(str(facts["host"]), int(facts["pid"]), facts.get("job"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if found.host == platform.node() and not Path(f"/proc/{found.pid}").exists():
        return None
    return found if silent_s < SILENT_S else None


def _disk_now(folder: Path) -> float:
    """The time by the clock of whoever keeps the disk, which is the one that stamps the files."""
    probe = folder / f".{FILE}.{platform.node()}.{os.getpid()}"
    probe.write_bytes(b"")
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink()
