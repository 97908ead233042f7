"""A file in a study's or run's folder that says which process is working there, as long as that process is alive.

Other hosts cannot check a process by its id, but they can read a file on a shared disk.
"""

import contextlib
import json
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servebench.util.bounded_file import read_json

FILE = "at_work.json"
BEAT_S = 5.0
SILENT_S = 60.0
"""A file not touched for this long belongs to a dead process: twelve beats, because network disks lag."""

NAME_MAX = 100


@dataclass(frozen=True)
class ActiveProcess:
    """A process that works in a folder: its host, its id, and its cluster job, if any."""

    host: str
    pid: int
    job: str | None

    def __str__(self) -> str:
        return f"{self.host}, {f'job {self.job}' if self.job else f'process {self.pid}'}"


@contextmanager
def heartbeat(folder: Path, *, job: str | None = None) -> Iterator[None]:
    """Mark the folder as in use by this process within the context."""
    path = folder / FILE
    path.write_text(json.dumps({"host": platform.node(), "pid": os.getpid(), "job": job}), encoding="utf-8")
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_S):
            with contextlib.suppress(OSError):
                os.utime(path)

    thread = threading.Thread(target=beat, daemon=True, name="heartbeat")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(OSError):
            path.unlink()


def active_process(folder: Path) -> ActiveProcess | None:
    """Return the process that works in a folder; null when there is none or it is dead."""
    path = folder / FILE
    try:
        facts = read_json(path)
        silent_s = _disk_now(folder) - path.stat().st_mtime
        host, job = (None if facts[key] is None else str(facts[key])[:NAME_MAX] for key in ("host", "job"))
        process = ActiveProcess(str(host), int(facts["pid"]), job)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    if process.host == platform.node() and not Path(f"/proc/{process.pid}").exists():
        return None
    # a time far in the future is no sign of life, and would be one for ever
    return process if abs(silent_s) < SILENT_S else None


def _disk_now(folder: Path) -> float:
    """Return the time of the file server's clock, which stamps the files."""
    probe = folder / f".{FILE}.{platform.node()}.{os.getpid()}"
    probe.write_bytes(b"")
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink()
