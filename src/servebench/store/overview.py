"""The points of a run as lists and views over a thousand runs read them.

They are read from points.csv: it opens fifty times faster than points.parquet, which remains what analyses read.
"""

import csv
from collections.abc import Callable, Container, Mapping
from itertools import islice
from typing import Any

from servebench.contracts.columns import columns_of
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import SCHEMA_VERSION
from servebench.store.files import VERSION_KEY
from servebench.store.layout import RunFolder
from servebench.store.tables import read_rows
from servebench.util.bounded_file import open_text
from servebench.util.safe_text import csv_text

CSV_BYTES_MAX = 64 << 20
COLUMNS_MAX = 2_000
ROWS_MAX = 20_000
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
        with open_text(folder.points_csv, CSV_BYTES_MAX, newline="") as file:
            reader = csv.reader(file)
            head = next(reader, [])
            rows = [cells + [""] * (len(head) - len(cells)) for cells in islice(reader, ROWS_MAX + 1) if cells]
        another = VERSION_KEY in head and any(row[head.index(VERSION_KEY)] != str(SCHEMA_VERSION) for row in rows)
        if another or len(head) > COLUMNS_MAX or len(rows) > ROWS_MAX:
            raise csv.Error("of another version, or more than a study can have")
        kept = ((at, name) for at, name in enumerate(head) if name in columns and name in KINDS)
        known = {name: (at, PARSERS[KINDS[name]]) for at, name in kept}
        return [
            PointRow(**{name: parse(row[at]) for name, (at, parse) in known.items() if row[at] not in ("", "nan")})
            for row in rows
        ]
    except (OSError, csv.Error, ValueError):
        return read_rows(folder)
