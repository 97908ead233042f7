"""Writing a file whole or not at all, and saying in one line why it could not be written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from servebench.util.errors import StoreError, reason_of


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says against writing into one line. Raises StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {path}: {reason_of(error)}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name beside `path` to write to; it becomes `path` when all went well, and is removed when not.

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
    """Write a text file, whole or not at all. Raises StoreError."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")
