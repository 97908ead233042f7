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
from pathlib import Path

from servebench.util.bounded_file import read_json

FILE = "at_work.json"
BEAT_S = 5.0
SILENT_S = 60.0
"""A file not touched for this long belongs to a dead process: twelve beats, because network disks lag."""

NAME_MAX = 100


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


def active_process(folder: Path) -> str | None:
    """Return the process that works in a folder (`host, process 12` or `host, job 7`); null when there is none or it is dead."""
    path = folder / FILE
    try:
        facts = read_json(path)
        silent_s = _disk_now(folder) - path.stat().st_mtime
        host, job = (None if facts[key] is None else str(facts[key])[:NAME_MAX] for key in ("host", "job"))
        pid = int(facts["pid"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    if host == platform.node() and not Path(f"/proc/{pid}").exists():
        return None
    # a time far in the future is no sign of life, and would be one for ever
    return f"{host}, {f'job {job}' if job else f'process {pid}'}" if abs(silent_s) < SILENT_S else None


def _disk_now(folder: Path) -> float:
    # the file server's clock stamps the files
    probe = folder / f".{FILE}.{platform.node()}.{os.getpid()}"
    probe.write_bytes(b"")
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink()
