"""Schema versions of stored files: older ones are brought up to date as they are read, newer ones are refused.

Version 1: `study.json` and `run.json` carried no version, `points.csv` had no column for it, and the first servebench kept
no plan. Version 2: every file says its version, and `study.json` where its runs are done.
Columns that an older table lacks are null. A new version adds a function to MIGRATIONS and a folder to `tests/store/old`.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from servebench.contracts.results import SCHEMA_VERSION
from servebench.util.errors import StoreError

KEY = "schema_version"
FIRST = 1
Kind = Literal["plan", "manifest", "study", "run"]
Document = dict[str, Any]
Migration = Callable[[Document], Document]


def _study_1(document: Document) -> Document:
    """Its runs were done where the command was given."""
    return {"launcher": {}, "ticket": "", "host": "", **document}


def _same(document: Document) -> Document:
    return document


UNMARKED: tuple[Kind, ...] = ("study", "run")
"""Kinds that carried no version at first."""

MIGRATIONS: Mapping[Kind, Mapping[int, Migration]] = {
    "plan": {1: _same},
    "manifest": {1: _same},
    "study": {1: _study_1},
    "run": {1: _same},
}
"""By kind and version: what makes a document of the next version of it. None changes what it is given."""


def upgraded(kind: Kind, document: Mapping[str, Any], path: Path) -> Document:
    """Return a document as this version writes it. Raises StoreError for one of a newer version, or of one that never existed."""
    version = _version(document.get(KEY, FIRST if kind in UNMARKED else None), path)
    current = dict(document)
    for step in range(version, SCHEMA_VERSION):
        current = MIGRATIONS[kind][step](current)
    return {**current, KEY: SCHEMA_VERSION}


def check_table(metadata: Mapping[bytes, bytes] | None, path: Path) -> None:
    """Check the version in a table's metadata. Raises StoreError for a newer one."""
    text = (metadata or {}).get(KEY.encode(), str(FIRST).encode()).decode(errors="replace")
    _version(int(text) if re.fullmatch("[0-9]{1,9}", text) else text, path)


def _version(found: object, path: Path) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or found < FIRST:
        raise StoreError(f"{path} has schema version {found}, and there never was such a one")
    if found > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by a newer servebench (schema version {found}, this one reads up to {SCHEMA_VERSION}); "
            "upgrade servebench-suite"
        )
    return found
