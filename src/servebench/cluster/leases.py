"""Leases for what the runs on one machine must not share: ports, GPUs, and places for runs. A lease is a locked file.

The kernel releases a lock when its process ends for any reason, so no lease outlives its run. The files are on the
machine's own disk: in SERVEBENCH_LEASES, else in a folder of the user in the temporary folder.
"""

import os
import random
import stat
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from servebench.util.errors import PreflightError, reason_of

FOLDER_VARIABLE = "SERVEBENCH_LEASES"
POLL_S = 0.25
PORTS = range(20_000, 30_000)
"""Below the ports that Linux uses for outgoing connections (32768 and up)."""


def lease_folder() -> Path:
    """Return the folder of this machine's locks, and create it if it is missing.

    Raises PreflightError, also for a folder in the temporary folder that someone else has made or can write to.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    folder = Path(named) if named else Path(tempfile.gettempdir()) / f"servebench-leases-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.lstat()
    except OSError as error:
        raise _unusable(folder, reason_of(error)) from error
    if not named and (not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o022):
        raise _unusable(folder, "another user made it or can write to it")
    return folder


def _unusable(folder: Path, reason: str) -> PreflightError:
    return PreflightError(f"cannot write leases to {folder}: {reason}; set {FOLDER_VARIABLE} to another folder")


class Leases:
    """The leases that this process holds until it calls `release` or ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[str, FileLock] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the leases: `port-8000`, `gpu-0`, `run-0`."""
        return tuple(self._held)

    def take(self, name: str) -> bool:
        """Take a lease unless it is taken, and return whether it worked. Raises PreflightError when the folder is unusable."""
        if name in self._held:
            return False
        lock = FileLock(self.folder / f"{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        except OSError as error:
            raise _unusable(self.folder, reason_of(error)) from error
        self._held[name] = lock
        return True

    def take_some(self, names: Sequence[str], count: int) -> list[str]:
        """Take `count` of these leases or none: two processes that each hold half would wait for ever."""
        taken: list[str] = []
        for name in names:
            if len(taken) < count and self.take(name):
                taken.append(name)
        if len(taken) == count:
            return taken
        for name in taken:
            self._held.pop(name).release()
        return []

    def wait_for(self, names: Sequence[str], count: int, waiting: Callable[[], None]) -> list[str]:
        """Take `count` of these leases as soon as they are free. Calls `waiting` once if they are not free at first.

        Raises PreflightError when there are fewer than `count`.
        """
        if count > len(names):
            raise PreflightError(
                f"the run needs {count} of {', '.join(names) or 'nothing'}, and this machine has {len(names)}"
            )
        if not (taken := self.take_some(names, count)):
            waiting()
        while not taken:
            time.sleep(POLL_S * (0.5 + random.random()))
            taken = self.take_some(names, count)
        return taken

    def free_port(self, usable: Callable[[int], bool]) -> int:
        """Lease and return a port that is `usable` and that no other run has leased.

        Raises PreflightError when there is none.
        """
        for port in random.sample(PORTS, len(PORTS)):
            if usable(port) and self.take(f"port-{port}"):
                return port
        raise PreflightError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free; set engine.port")

    def release(self) -> None:
        """Release all leases."""
        while self._held:
            self._held.popitem()[1].release()
