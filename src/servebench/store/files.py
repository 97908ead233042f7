"""Writing a file whole or not at all, and saying in one line why it could not be written."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from servebench.util.errors import StoreError

REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOTDIR: "a file is in the place of a folder",
    errno.EEXIST: "a file is in its place",
}


def reason_of(error: OSError) -> str:
    """Why a file could not be written or read, in a few words."""
    return REASONS.get(error.errno or 0, (error.strerror or str(error)).lower())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says against writing into one line. Raises StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {path}: {reason_of(error)}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; it becomes `path` when all went well, and is removed when not.

    Raises StoreError when the system refuses.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with writing(path):
            yield beside
            with beside.open("rb") as file:
                os.fsync(file.fileno())
            beside.replace(path)
    finally:
        # a read-only file system even refuses to remove a missing file; the reason was reported before
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all. Raises StoreError."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")
