"""The points of a run as lists and views over a thousand runs read them.

They are read from points.csv: it opens fifty times faster than points.parquet, which remains what analyses read.
"""

import csv
from collections.abc import Callable, Container, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from servebench.contracts.columns import columns_of
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import SCHEMA_VERSION
from servebench.store.layout import RunFolder
from servebench.store.tables import read_rows
from servebench.store.versions import KEY as VERSION
from servebench.util.bounded_file import open_text
from servebench.util.safe_text import csv_text

CSV_BYTES_MAX = 64 << 20
COLUMNS_MAX = 2_000
ROWS_MAX = 20_000
UNREADABLE = (OSError, UnicodeDecodeError, csv.Error)
KINDS = {one.name: one.kind for one in columns_of(PointRow)}
PARSERS: Mapping[str, Callable[[str], Any]] = {
    "str": csv_text,
    "int": int,
    "float": float,
    "bool": "true".__eq__,
    "list[str]": lambda cell: tuple(csv_text(cell).split(";")),
    "list[int]": lambda cell: tuple(map(int, cell.split(";"))),
}


def listed_rows(folder: RunFolder, columns: Container[str] = KINDS) -> list[PointRow]:
    """Return the points of a run as lists show them, the other `columns` null; from points.parquet, with all columns, where
    points.csv is missing or unreadable.

    Raises StoreError.
    """
    try:
        head, rows = _table(folder.points_csv, columns)
        known = [(index, name, PARSERS[KINDS[name]]) for index, name in enumerate(head)]
        return [
            PointRow(**{name: parse(row[index]) for index, name, parse in known if row[index] not in ("", "nan")})
            for row in rows
        ]
    except (*UNREADABLE, ValueError):
        return read_rows(folder)


def _table(path: Path, columns: Container[str]) -> tuple[list[str], list[list[str]]]:
    """Return the names of those of these columns that a points.csv has, and its rows.

    Raises OSError, UnicodeDecodeError, and csv.Error for more than a study can have and for another version.
    """
    with open_text(path, CSV_BYTES_MAX, newline="") as file:
        reader = csv.reader(file)
        head = next(reader, [])
        rows = [cells + [""] * (len(head) - len(cells)) for cells in islice(reader, ROWS_MAX + 1) if cells]
    if len(head) > COLUMNS_MAX or len(rows) > ROWS_MAX:
        raise csv.Error(f"more than {COLUMNS_MAX:,} columns or {ROWS_MAX:,} points")
    if VERSION in head and any(row[head.index(VERSION)] != str(SCHEMA_VERSION) for row in rows):
        raise csv.Error("of another version")
    kept = {name: index for index, name in enumerate(head) if name in columns and name in KINDS}
    return list(kept), [[row[index] for index in kept.values()] for row in rows]
