"""Files of a study: written whole or not at all, read as JSON objects of this schema version, and what goes wrong is said in one
line."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from servebench.contracts.results import SCHEMA_VERSION
from servebench.util.bounded_file import STUDY_BYTES_MAX, parse_json, read_bytes
from servebench.util.errors import DamagedError, StoreError, reason_of

T = TypeVar("T")
VERSION_KEY = "schema_version"
"""A file of another version is refused. No version before 2 was ever released. The next one brings documents of version 2 up to
date in `of_this_version`, and adds a folder to `tests/store/old`; columns that an older table lacks are null."""


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


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file, with its folder; text as UTF-8. Raises StoreError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {reason_of(error)}") from error


def from_here(text: str) -> str:
    """Return a path, or the address of a file, as it is from the current folder where it is in it."""
    return re.sub(rf"^(sqlite:///)?{re.escape(str(Path.cwd()))}/", r"\1", text)


def read_stored(path: Path, bytes_max: int = STUDY_BYTES_MAX) -> bytes:
    """Return what is in a file. Raises FileNotFoundError, and StoreError if the system refuses or it is too large."""
    try:
        return read_bytes(path, bytes_max)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {reason_of(error)}") from error


def object_in(data: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON object in what a file holds. Raises DamagedError."""
    try:
        value = parse_json(data)
    except ValueError as error:
        raise DamagedError(f"{path} cannot be read: it is no JSON: {str(error).splitlines()[0].lower()}") from error
    if not isinstance(value, dict):
        raise DamagedError(f"{path} cannot be read: it is not a JSON object")
    return value


def validated(kind: type[T], document: Mapping[str, Any], path: Path) -> T:
    """Return the value of this type in a document that a file holds. Raises DamagedError."""
    try:
        # as JSON, where a list is what a tuple is written as
        return value_of(kind, json.dumps(document))
    except ValueError as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error


def value_of(kind: type[T], text: str | bytes) -> T:
    """Return the value of this type in JSON. Raises ValueError that says where it is not one, in a line."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"].lower())))) from error


def of_this_version(document: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a document, with its version, if that is this one. Raises StoreError for one of another."""
    _check_version(document.get(VERSION_KEY, SCHEMA_VERSION), path)
    return {**document, VERSION_KEY: SCHEMA_VERSION}


def check_table(metadata: Mapping[bytes, bytes] | None, path: Path) -> None:
    """Check the version in a table's metadata. Raises StoreError for another one."""
    text = (metadata or {}).get(VERSION_KEY.encode(), str(SCHEMA_VERSION).encode()).decode(errors="replace")
    _check_version(int(text) if re.fullmatch("[0-9]{1,9}", text) else text, path)


def _check_version(found: object, path: Path) -> None:
    if isinstance(found, int) and not isinstance(found, bool) and found > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by a newer servebench (schema version {found}, this one reads up to {SCHEMA_VERSION}); "
            "upgrade servebench-suite"
        )
    if found != SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {found}, which this servebench does not read (it reads {SCHEMA_VERSION})"
        )
