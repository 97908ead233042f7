"""One command at a time works on a study: a lock that the system takes back from a process that is gone."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from servebench.store.layout import StudyFolder
from servebench.util.errors import StoreError, reason_of

RELEASED_S = 3.0
"""How long a process that was killed may take to be gone."""
POLL_S = 0.05


@contextmanager
def holding(folder: StudyFolder) -> Iterator[bool]:
    """Hold a study while the context is open: True if it is ours alone, False if another process of this machine keeps it.

    The folder itself is locked: there is no file that a full disk, a read-only one or kill -9 could spoil. A file system
    that locks no folders (NFS) locks nothing: True. Raises StoreError when the folder cannot be opened, and at the end if it
    is no longer there.
    """
    try:
        descriptor = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StoreError(f"{folder.path} cannot be opened: {reason_of(error)}") from error
    try:
        ours = _locked(descriptor)
        try:
            yield ours
        finally:
            # what a moved folder made fail is less than this says
            if ours:
                _check_place(descriptor, folder.path)
    finally:
        os.close(descriptor)


def _check_place(descriptor: int, path: Path) -> None:
    """Check that the folder that was opened is still at its path. Raises StoreError, which says where it is now."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return
    if os.fstat(descriptor).st_nlink == 0:
        raise StoreError(f"{path} was removed while servebench worked on it; what it had stored there is gone")
    place = Path(f"/proc/self/fd/{descriptor}").readlink()
    raise StoreError(
        f"{path} was moved to {place} while servebench worked on it; what was stored before is there, and nothing since: "
        f"move it back, then 'servebench resume {path.name}' continues it"
    )


def is_abandoned(study: Path) -> bool:
    """Whether no process works on a study; False where that cannot be known (a file system that locks no folders)."""
    with suppress(OSError):
        descriptor = os.open(study, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        finally:
            os.close(descriptor)
    return False


def _locked(descriptor: int) -> bool:
    deadline = time.monotonic() + RELEASED_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        except OSError:
            return True
        else:
            return True
