"""What runs on one machine may not share: ports, GPUs, and the machine's quiet. A lease is a locked file.

The kernel lets go of a lock when its process ends, however it ends, so that no lease outlives its run. The files lie on
the machine itself: SERVEBENCH_LEASES, else a folder of the user's in the temporary folder.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from servebench.util.errors import PreflightError

FOLDER_VARIABLE = "SERVEBENCH_LEASES"
POLL_S = 0.25
PORTS = range(20_000, 30_000)
"""Below the ports that Linux gives to outgoing connections (32768 and up), so that none of those takes it meanwhile."""


def lease_folder() -> Path:
    """Where this machine's locks are, made when missing. Raises PreflightError."""
    asked = os.environ.get(FOLDER_VARIABLE)
    folder = Path(asked) if asked else Path(tempfile.gettempdir()) / f"servebench-leases-{_user()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from error
    return folder


def _unusable(folder: Path, error: OSError) -> PreflightError:
    reason = (error.strerror or str(error)).lower()
    return PreflightError(f"leases cannot be kept in {folder}: {reason}; name another folder with {FOLDER_VARIABLE}")


def _user() -> str:
    with contextlib.suppress(KeyError, OSError):
        return getpass.getuser()
    return str(os.getuid())


class Leases:
    """What this process holds, until `release` or its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[str, FileLock] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What is held: `port-8000`, `gpu-0`, `run-0`."""
        return tuple(self._held)

    def take(self, name: str) -> bool:
        """Take one lease if nobody has it. Raises PreflightError when the folder cannot be used."""
        if name in self._held:
            return False
        lock = FileLock(self.folder / f"{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        except OSError as error:
            raise _unusable(self.folder, error) from error
        self._held[name] = lock
        return True

    def take_some(self, names: Sequence[str], count: int) -> list[str]:
        """Take `count` of these that nobody has, or none: two that wait for each other's half would wait for ever."""
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
        """Take `count` of these as soon as they are free. `waiting` is called once, when they are not at once.

        Raises PreflightError when there will never be as many.
        """
        if count > len(names):
            raise PreflightError(f"{count} of {', '.join(names) or 'nothing'} are asked for: there are {len(names)}")
        told = False
        while not (taken := self.take_some(names, count)):
            if not told:
                waiting()
                told = True
            time.sleep(POLL_S * (0.5 + random.random()))
        return taken

    def free_port(self, usable: Callable[[int], bool]) -> int:
        """A port that nobody listens on (`usable`) and that no other run has a lease of.

        Raises PreflightError when there is none.
        """
        start = random.randrange(len(PORTS))
        for step in range(len(PORTS)):
            port = PORTS[(start + step) % len(PORTS)]
            if usable(port) and self.take(f"port-{port}"):
                return port
        raise PreflightError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free; name one with engine.port=")

    def release(self) -> None:
        """Let go of all."""
        while self._held:
            self._held.popitem()[1].release()
