"""The log of the running point's telemetry, so that a kill -9 keeps the readings that are not yet in telemetry.parquet."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from io import BytesIO
from operator import attrgetter
from pathlib import Path
from typing import Annotated

from servebench.contracts.telemetry import Reading
from servebench.store.files import read_stored
from servebench.store.layout import RunFolder

LOG_BYTES_MAX = 64 << 20
"""About 90 minutes of an engine with a hundred series; later readings of a longer point are only stored at its end."""

_FIELDS = tuple(one.name for one in fields(Reading))
_values = attrgetter(*_FIELDS)


class TelemetryLog:
    """Keeps the readings of a point on disk until the context ends. Use as a context manager, and store them in it."""

    def __init__(self, folder: RunFolder, point: str) -> None:
        """Prepare to write; writes nothing."""
        self._path = folder.telemetry_log(point)
        self._bytes = 0

    def __enter__(self) -> "TelemetryLog":
        return self

    def __exit__(self, *_: object) -> None:
        discard_log(self._path)

    def add(self, readings: Sequence[Reading]) -> None:
        """Append readings. What cannot be written is left out: the point goes on, and still has all of them at its end."""
        # a plugin's readings may hold values that JSON has no form for
        with suppress(OSError, TypeError, ValueError):
            # what follows must not join a line that a full disk cut off
            data = b"\n" + "".join(f"{json.dumps(_values(one))}\n" for one in readings).encode()
            if self._bytes + len(data) > LOG_BYTES_MAX:
                return
            self._path.parent.mkdir(exist_ok=True)
            with self._path.open("ab" if self._bytes else "wb") as file:
                self._bytes += len(data)
                file.write(data)


def discard_log(path: Path) -> None:
    """Remove a log whose readings are stored. Never raises: `recover` removes what is left."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def read_log(path: Path) -> list[Reading]:
    """Return the readings in a log in order of time, without lines that a kill cut off. Raises StoreError."""
    from pydantic import Field, TypeAdapter, ValidationError

    integer = Annotated[int, Field(ge=0, lt=1 << 63)]
    row = TypeAdapter(tuple[integer, str, str | None, str, str, float])
    readings = []
    for line in BytesIO(read_stored(path, LOG_BYTES_MAX)):
        with suppress(ValidationError):
            values = row.validate_json(line, strict=True)
            readings.append(Reading(**dict(zip(_FIELDS, values, strict=True))))  # type: ignore[arg-type]
    return sorted(readings, key=lambda one: one.t_ns)
