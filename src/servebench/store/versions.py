"""The schema version of stored files: a file of another version is refused in one line.

No version before 2 was ever released. The next one brings documents of version 2 up to date here, and adds a folder to
`tests/store/old`; columns that an older table lacks are null.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servebench.contracts.results import SCHEMA_VERSION
from servebench.util.errors import StoreError

KEY = "schema_version"


def of_this_version(document: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a document, with its version, if that is this one. Raises StoreError for one of another."""
    _check(document.get(KEY, SCHEMA_VERSION), path)
    return {**document, KEY: SCHEMA_VERSION}


def check_table(metadata: Mapping[bytes, bytes] | None, path: Path) -> None:
    """Check the version in a table's metadata. Raises StoreError for another one."""
    text = (metadata or {}).get(KEY.encode(), str(SCHEMA_VERSION).encode()).decode(errors="replace")
    _check(int(text) if re.fullmatch("[0-9]{1,9}", text) else text, path)


def _check(found: object, path: Path) -> None:
    if isinstance(found, int) and not isinstance(found, bool) and found > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by a newer servebench (schema version {found}, this one reads up to {SCHEMA_VERSION}); "
            "upgrade servebench-suite"
        )
    if found != SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {found}, which this servebench does not read (it reads {SCHEMA_VERSION})"
        )
