"""All points of a folder at once, for lists and for views over a thousand runs.

They are read from points.csv: it opens fifty times faster than points.parquet, which remains what analyses read.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servebench.contracts.columns import columns_of
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import SCHEMA_VERSION
from servebench.store.layout import RunFolder, check_plain
from servebench.store.studies import read_document, run_paths, study_paths
from servebench.store.tables import read_rows
from servebench.store.versions import FIRST
from servebench.store.versions import KEY as VERSION
from servebench.util.bounded_file import open_text
from servebench.util.errors import StoreError
from servebench.util.safe_text import clean_line, csv_text

if TYPE_CHECKING:
    import pandas as pd

CSV_BYTES_MAX = 64 << 20
COLUMNS_MAX = 2_000
ROWS_MAX = 20_000
UNREADABLE = (OSError, UnicodeDecodeError, csv.Error)
KINDS = {one.name: one.kind for one in columns_of(PointRow)}
FLAGS = {one.name for one in columns_of(PointRow) if one.kind == "bool" and not one.nullable}
TEXTS = {"study", "run", *(name for name, kind in KINDS.items() if kind not in ("int", "float"))}
"""Columns of points.csv that are not numbers."""
PARSERS: Mapping[str, Callable[[str], Any]] = {
    "str": csv_text,
    "int": int,
    "float": float,
    "bool": "true".__eq__,
    "list[str]": lambda cell: tuple(csv_text(cell).split(";")),
    "list[int]": lambda cell: tuple(map(int, cell.split(";"))),
}


def listed_rows(folder: RunFolder) -> list[PointRow]:
    """Return the points of a run as lists show them; from points.parquet where points.csv is missing or unreadable.

    Raises StoreError.
    """
    try:
        head, rows = _table(folder.points_csv)
        known = [(index, name, PARSERS[KINDS[name]]) for index, name in enumerate(head) if name in KINDS]
        return [
            PointRow(**{name: parse(row[index]) for index, name, parse in known if row[index] not in ("", "nan")})
            for row in rows
        ]
    except (*UNREADABLE, ValueError):
        return read_rows(folder)


def all_points(outputs: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return all points of a folder, and all runs, each in one frame; `study` and `run` are the first columns.

    Runs have study, run, title, status, error and started_s; those without points are there too.
    """
    import pandas as pd

    tables: dict[tuple[str, ...], list[list[str]]] = {}
    runs: list[dict[str, str | float | None]] = []
    for study in study_paths(outputs):
        for path in _plain_runs(study):
            state = read_document(path / "run.json", [], "run")
            shown = {name: _shown(state.get(name)) for name in ("title", "status", "error")}
            started_s = state.get("started_s")
            known_s = started_s if isinstance(started_s, (int, float)) else None
            runs.append({"study": study.name, "run": path.name, **shown, "started_s": known_s})
            with suppress(*UNREADABLE):
                head, rows = _table(path / "points.csv")
                tables.setdefault(("study", "run", *head), []).extend([study.name, path.name, *row] for row in rows)
    frames = [pd.DataFrame(rows, columns=list(head), dtype=object) for head, rows in tables.items()]
    return _typed(pd.concat(frames, ignore_index=True)) if frames else pd.DataFrame(), pd.DataFrame(runs)


def _typed(points: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    def typed(name: str, cells: pd.Series) -> pd.Series:
        if name in FLAGS:
            return cells.eq("true")
        if name in TEXTS:
            return cells.map({cell: clean_line(csv_text(cell)) for cell in cells.dropna().unique() if cell})
        return pd.to_numeric(cells, errors="coerce")

    return pd.DataFrame({name: typed(name, points[name]) for name in points.columns})


def _table(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns of a points.csv, and its rows.

    Raises OSError, UnicodeDecodeError, and csv.Error for more than a study can have and for a version that is not known; the
    first version did not say it.
    """
    with open_text(path, CSV_BYTES_MAX, newline="") as file:
        reader = csv.reader(file)
        head = next(reader, [])
        rows = [cells + [""] * (len(head) - len(cells)) for cells in islice(reader, ROWS_MAX + 1) if cells]
    if len(head) > COLUMNS_MAX or len(rows) > ROWS_MAX:
        raise csv.Error(f"more than {COLUMNS_MAX:,} columns or {ROWS_MAX:,} points")
    if VERSION in head and not all(_is_known(row[head.index(VERSION)]) for row in rows):
        raise csv.Error("of a version that is not known")
    kept = _kept(tuple(head))
    return list(kept), [[row[index] for index in kept.values()] for row in rows]


@lru_cache
def _kept(head: tuple[str, ...]) -> dict[str, int]:
    """Return the places of the columns that are read, by their clean names."""
    return {clean_line(name): index for index, name in enumerate(head) if name not in ("", VERSION, "study", "run")}


def _is_known(version: str) -> bool:
    try:
        return FIRST <= int(version) <= SCHEMA_VERSION
    except ValueError:
        return False


def _shown(value: object) -> str | None:
    return None if value is None else clean_line(str(value))


def _plain_runs(study: Path) -> list[Path]:
    """Return the runs of a study without those that hold links, which are not read."""
    found = []
    for path in () if study.is_symlink() else run_paths(study):
        with suppress(StoreError):
            check_plain(path)
            found.append(path)
    return found
