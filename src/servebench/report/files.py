"""Writes report files."""

from pathlib import Path

from servebench.util.errors import StoreError, reason_of


def write_file(path: Path, text: str) -> None:
    """Write text to a file, with its folder. Raises StoreError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {reason_of(error)}") from error
