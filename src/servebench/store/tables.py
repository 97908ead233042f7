"""The tables of a run: requests, answers, points and telemetry.

Until the run is over each batch of records is a pair of files, so that a kill -9 leaves every batch readable: first
`answers-N-X.parquet`, then `requests-N-X.parquet`, which completes the batch. The merged tables list the batches in them,
so that a kill -9 during the merge neither loses nor repeats one.
"""

from __future__ import annotations

import csv
import json
import secrets
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servebench.contracts.columns import Kind, columns_of
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import SCHEMA_VERSION, Point, Record, SessionRow
from servebench.contracts.telemetry import Reading
from servebench.store.files import VERSION_KEY, check_table, replacing, writing
from servebench.store.layout import RunFolder, StudyFolder
from servebench.store.plan import planned_labels
from servebench.util.bounded_file import open_regular, parse_json
from servebench.util.bounded_parquet import read_parquet
from servebench.util.errors import DamagedError, StoreError, reason_of
from servebench.util.redaction import redact_text
from servebench.util.safe_text import clean_csv

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

BATCH_ROWS = 20_000
"""Rows that are converted to columns at once."""

POINTS_MEMORY_MAX = 32 << 20
"""Thousands of points with hundreds of columns."""

_VERSION = {VERSION_KEY: str(SCHEMA_VERSION)}
MERGED = b"merged_batches"
ENCODING: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": [one.name for one in columns_of(Record) if one.kind in ("str", "bool")],
}
"""Stamps are all different: a dictionary of them costs time and memory and is then discarded."""

FEW_ROWS: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
"""A table of few rows and many columns is smaller and opens in half the time without what pays for many rows."""

_clean = lru_cache(maxsize=1024)(redact_text)
ANSWERS = ("run_id", "point", "request_id", "text", "reasoning")


def _schema(kind: str) -> pa.Schema:
    import pyarrow as pa

    if kind == "answers":
        return pa.schema([(name, pa.string()) for name in ANSWERS], _VERSION)
    return pa.schema([(one.name, arrow_type(one.kind, one.bits)) for one in columns_of(Record)], _VERSION)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of reading a table into one line: DamagedError, or StoreError when the system refuses to read."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise StoreError(f"{path} cannot be read: {reason_of(error)}") from error
        raise DamagedError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _values(records: Sequence[Record], name: str) -> list[Any]:
    if name == "error":
        # a server may repeat the key that it was given
        return [None if record.error is None else _clean(record.error) for record in records]
    if name == "warmup":
        # in the file a row without it is measured, as in files of versions that sent nothing else
        return [not record.measured for record in records]
    return [getattr(record, name) for record in records]


def _merged(path: Path) -> set[str]:
    import pyarrow.parquet as pq

    if not path.exists():
        return set()
    with reading(path):
        with open_regular(path) as file:
            metadata = pq.read_schema(file).metadata or {}
        return set(parse_json(metadata.get(MERGED, b"[]")))


def _batches(folder: RunFolder) -> list[str]:
    return sorted(path.stem.removeprefix("requests-") for path in folder.parts.glob("requests-*.parquet"))


class _WithoutPandas:
    """Hides pandas from this thread: Arrow imports it, where it is installed, to make an array of a list."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas" and threading.get_ident() == self._thread:
            raise ImportError(name)


@lru_cache(maxsize=1)
def _prepare_arrow() -> None:
    """Have Arrow make its first array without pandas, whose import takes a quarter of a second of CPU; it asks again for pandas
    when a table becomes a frame."""
    import pyarrow as pa

    if "pandas" not in sys.modules:
        finder = _WithoutPandas()
        sys.meta_path.insert(0, finder)
        try:
            pa.array([])
        finally:
            sys.meta_path.remove(finder)


class RecordWriter:
    """Appends the records of a run. Each batch is on disk when `append` returns."""

    def __init__(self, folder: RunFolder) -> None:
        """Prepare to write to this folder; writes nothing."""
        _prepare_arrow()
        self._folder = folder
        self._count = len(_batches(folder))

    def append(self, records: Sequence[Record]) -> None:
        """Write a batch, whole or not at all. Raises StoreError."""
        if not records:
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        with writing(self._folder.parts):
            self._folder.parts.mkdir(exist_ok=True)
        batch = f"{self._count:05d}-{secrets.token_hex(4)}"
        for kind in ("answers", "requests"):
            schema = _schema(kind)
            with (
                replacing(self._folder.parts / f"{kind}-{batch}.parquet") as beside,
                pq.ParquetWriter(beside, schema, **ENCODING) as writer,
            ):
                for start in range(0, len(records), BATCH_ROWS):
                    some = records[start : start + BATCH_ROWS]
                    columns = [pa.array(_values(some, name), schema.field(name).type) for name in schema.names]
                    writer.write_table(pa.table(columns, schema=schema))
        pa.default_memory_pool().release_unused()
        self._count += 1

    def append_telemetry(self, readings: Sequence[Reading], *, run_id: str, point: str) -> None:
        """Append the readings of a point to those that are stored. Raises StoreError."""
        add_telemetry(self._folder, readings, run_id=run_id, point=point)

    def close(self) -> None:
        """Merge the batches into requests.parquet and answers.parquet. Raises StoreError and keeps the batches."""
        folder = self._folder
        if not folder.parts.is_dir():
            return
        batches = _batches(folder)
        if batches:
            self._merge("answers", batches)
            self._merge("requests", batches)
        with writing(folder.parts):
            shutil.rmtree(folder.parts)

    def _merge(self, kind: str, batches: Sequence[str]) -> None:
        import pyarrow.parquet as pq

        target = self._folder.path / f"{kind}.parquet"
        done = _merged(target)
        paths = [self._folder.parts / f"{kind}-{batch}.parquet" for batch in batches if batch not in done]
        if not paths:
            return
        names = json.dumps(sorted(done.union(batches)))
        schema = _schema(kind)
        schema = schema.with_metadata({**schema.metadata, MERGED: names})
        before = [target] if target.exists() else []
        with replacing(target) as beside, pq.ParquetWriter(beside, schema, **ENCODING) as writer:
            for path in [*before, *paths]:
                writer.write_table(read_table(path, schema))


def write_points(folder: RunFolder, points: Sequence[Point]) -> None:
    """Write points.parquet and points.csv, each whole or not at all. Raises StoreError."""
    _write_rows(folder, [point.judged_row for point in points])


def add_points(folder: RunFolder, points: Sequence[Point]) -> None:
    """Append points to those that are stored. Raises StoreError."""
    _write_rows(folder, [*read_rows(folder), *(point.judged_row for point in points)])


def add_sessions(folder: RunFolder, point: Point) -> None:
    """Append the sessions of a point to sessions.csv, if it has any. Raises StoreError."""
    if not point.sessions:
        return
    with writing(folder.sessions):
        new = not folder.sessions.exists()
        with folder.sessions.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [one.name for one in columns_of(SessionRow)], lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerows(map(asdict, point.sessions))


def _write_rows(folder: RunFolder, rows: Sequence[PointRow]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not rows:
        return
    label = planned_labels(StudyFolder(folder.path.parent)).get(folder.name, "")
    rows = [replace(row, label=row.label or label) for row in rows]
    cells = [row.as_dict() for row in rows]
    names = list(dict.fromkeys(name for row in cells for name in row))
    types = {one.name: arrow_type(one.kind, one.bits) for one in columns_of(PointRow)}
    table = pa.table({name: pa.array([row.get(name) for row in cells], types.get(name)) for name in names})
    with replacing(folder.points) as beside:
        pq.write_table(table.replace_schema_metadata(_VERSION), beside, **FEW_ROWS)
    with replacing(folder.points_csv) as beside, beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*map(clean_csv, names), VERSION_KEY])
        writer.writerows([*(csv_cell(row.get(name)) for name in names), SCHEMA_VERSION] for row in cells)


def arrow_type(kind: Kind, bits: int = 64) -> pa.DataType:
    """Return the type of a column of this kind in Parquet; `bits` are those of its integers."""
    import pyarrow as pa

    integer = pa.int32() if bits == 32 else pa.int64()
    types = {"str": pa.string(), "int": integer, "float": pa.float64(), "bool": pa.bool_()}
    return types.get(kind) or pa.list_(pa.string() if kind == "list[str]" else integer)


def csv_cell(value: object) -> object:
    """Return a value as it stands in points.csv."""
    if value is None:
        return ""
    if isinstance(value, list):
        return clean_csv(";".join(map(str, value)))
    return str(value).lower() if isinstance(value, bool) else clean_csv(value)


def read_table(
    path: Path, schema: pa.Schema | None = None, memory_max: int | None = None, only: tuple[str, str] | None = None
) -> pa.Table | None:
    """Return a stored table, with the columns of `schema` and the rows of `only` (a column and its text) if given; None
    where there is no file.

    Raises StoreError.
    """
    if not path.exists():
        return None
    with reading(path):
        check = partial(check_table, path=path)
        table = read_parquet(path, schema=schema, memory_max=memory_max, check=check, only=only)
    return table if schema is None else table.replace_schema_metadata(schema.metadata)


def append_table(path: Path, added: pa.Table) -> None:
    """Append rows to a stored table, whole or not at all; categories are unified. Raises StoreError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    before = read_table(path, added.schema)
    whole = added if before is None else pa.concat_tables([before, added]).unify_dictionaries()
    with replacing(path) as beside:
        pq.write_table(whole, beside, compression="zstd")


def _stored(
    folder: RunFolder, kind: str, columns: Sequence[str] | None = None, only: tuple[str, str] | None = None
) -> pa.Table:
    """Return all rows of a table of records that are stored, merged or not, each once; with these columns only."""
    import pyarrow as pa

    schema = _schema(kind)
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns], schema.metadata)
    merged = folder.path / f"{kind}.parquet"
    done = _merged(merged)
    paths = [merged] if merged.exists() else []
    paths += [folder.parts / f"{kind}-{batch}.parquet" for batch in _batches(folder) if batch not in done]
    tables = [read_table(path, schema, only=only) for path in paths]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def merged_count(folder: RunFolder) -> int:
    """Return the number of rows of requests.parquet, without batches that are not merged yet. Raises StoreError."""
    import pyarrow.parquet as pq

    if not folder.requests.exists():
        return 0
    with reading(folder.requests), open_regular(folder.requests) as file:
        return int(pq.read_metadata(file).num_rows)


def stored_counts(folder: RunFolder) -> dict[tuple[str, bool], int]:
    """Return the number of stored requests by point and warm-up, merged or not. Raises StoreError."""
    table = _stored(folder, "requests", ("point", "warmup", "filler"))
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return dict(Counter((point, bool(warmup) and not filler) for point, warmup, filler in rows))


def read_requests(
    folder: RunFolder, columns: Sequence[str] | None = None, request_id: str | None = None
) -> pd.DataFrame:
    """Return all stored requests, those of an unfinished run too, or the one with this id; with these columns, or all.

    Raises StoreError.
    """
    only = None if request_id is None else ("request_id", request_id)
    frame: pd.DataFrame = _stored(folder, "requests", columns, only).to_pandas(use_threads=False)
    return frame


def read_records(folder: RunFolder, *, texts: bool = False) -> list[Record]:
    """Return all stored requests as records, with the texts of their answers if asked. Raises StoreError."""
    rows = _stored(folder, "requests").to_pylist()
    records = [Record(**{**row, "warmup": row["warmup"] and not row["filler"]}) for row in rows]
    if not texts:
        return records
    answers = {(row["point"], row["request_id"]): row for row in _stored(folder, "answers").to_pylist()}
    return [
        replace(record, text=answer["text"], reasoning=answer["reasoning"])
        if (answer := answers.get((record.point, record.request_id))) is not None
        else record
        for record in records
    ]


def _telemetry_schema() -> pa.Schema:
    import pyarrow as pa

    texts = dict.fromkeys((one.name for one in fields(Reading)), pa.dictionary(pa.int32(), pa.string()))
    columns = {"run_id": pa.string(), "point": pa.string(), **texts, "t_ns": pa.int64(), "value": pa.float64()}
    return pa.schema(columns.items(), _VERSION)


def add_telemetry(folder: RunFolder, readings: Sequence[Reading], *, run_id: str, point: str) -> None:
    """Append the readings of a point to those that are stored. Raises StoreError."""
    import pyarrow as pa

    if not readings:
        return
    schema = _telemetry_schema()
    columns: dict[str, Any] = {"run_id": [run_id] * len(readings), "point": [point] * len(readings)}
    columns |= {name: [getattr(one, name) for one in readings] for name in schema.names[2:]}
    append_table(folder.telemetry, pa.table(columns, schema=schema))


def read_readings(folder: RunFolder) -> dict[str, list[Reading]]:
    """Return the readings of a run by point; empty when there are none. Raises StoreError."""
    found: dict[str, list[Reading]] = {}
    table = read_table(folder.telemetry, _telemetry_schema())
    for row in [] if table is None else table.to_pylist():
        del row["run_id"]
        found.setdefault(row.pop("point"), []).append(Reading(**row))
    return found


def read_frame(path: Path) -> pd.DataFrame:
    """Return a stored table with the columns that it has; an empty frame where there is no file. Raises StoreError."""
    import pandas as pd

    table = read_table(path)
    return pd.DataFrame() if table is None else table.to_pandas(use_threads=False)


def read_rows(folder: RunFolder) -> list[PointRow]:
    """Return the points of a run as rows, those of older versions too. Raises StoreError."""
    table = read_table(folder.points, memory_max=POINTS_MEMORY_MAX)
    with reading(folder.points):
        return [] if table is None else [PointRow.from_dict(row) for row in table.to_pylist()]
