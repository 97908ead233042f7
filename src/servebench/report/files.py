"""Writes report files, and names places."""

import re
from pathlib import Path

from servebench.util.errors import StoreError, reason_of


def from_here(text: str) -> str:
    """Return a path, or the address of a file, as it is from the current folder where it is in it."""
    return re.sub(rf"^(sqlite:///)?{re.escape(str(Path.cwd()))}/", r"\1", text)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file, with its folder; text as UTF-8. Raises StoreError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {reason_of(error)}") from error
