"""Requests and points as tables. A batch of records is a file of its own until the run is over, so that a kill -9 leaves
every batch readable."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from servebench.contracts.results import SCHEMA_VERSION, Point, Record
from servebench.errors import StoreError
from servebench.store.files import reason_of, replacing, writing
from servebench.store.layout import RunFolder

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

INTEGERS = (
    "scheduled_ns",
    "connect_started_ns",
    "connected_ns",
    "sent_ns",
    "first_event_ns",
    "first_output_ns",
    "last_event_ns",
    "ended_ns",
)
COUNTS = (
    "reads_merged",
    "prompt_tokens",
    "planned_prompt_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "output_tokens",
    "asked_output_tokens",
    "http_status",
)
TEXTS = (
    "run_id",
    "point",
    "request_id",
    "session_id",
    "counted_by",
    "finish_reason",
    "outcome",
    "error",
    "stamp_source",
)
PUBLIC_ORDER = (
    "run_id",
    "point",
    "request_id",
    "session_id",
    "scheduled_ns",
    "sent_ns",
    "first_event_ns",
    "last_event_ns",
    "ended_ns",
    "event_ns",
    "event_tokens",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "counted_by",
    "outcome",
    "http_status",
    "error",
    "warmup",
    "connect_started_ns",
    "connected_ns",
    "first_output_ns",
    "reads_merged",
    "planned_prompt_tokens",
    "reasoning_tokens",
    "asked_output_tokens",
    "finish_reason",
    "stamp_source",
)
ANSWERS = ("run_id", "point", "request_id", "text", "reasoning")


def _requests_schema() -> pa.Schema:
    import pyarrow as pa

    types = dict.fromkeys(INTEGERS, pa.int64())
    types |= dict.fromkeys(COUNTS, pa.int32())
    types |= dict.fromkeys(TEXTS, pa.string())
    types |= {"warmup": pa.bool_(), "event_ns": pa.list_(pa.int64()), "event_tokens": pa.list_(pa.int32())}
    return pa.schema([(name, types[name]) for name in PUBLIC_ORDER], {"schema_version": str(SCHEMA_VERSION)})


def _answers_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in ANSWERS], {"schema_version": str(SCHEMA_VERSION)})


class RecordWriter:
    """Appends records of one run. Each `append` is on disk when it returns."""

    def __init__(self, folder: RunFolder) -> None:
        """Nothing is written yet."""
        self._folder = folder
        self._batches = len(list(folder.parts.glob("requests-*.parquet")))

    def append(self, records: Sequence[Record]) -> None:
        """Write a batch. Raises StoreError."""
        if not records:
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        with writing(self._folder.parts):
            self._folder.parts.mkdir(parents=True, exist_ok=True)
        for kind, schema in (("answers", _answers_schema()), ("requests", _requests_schema())):
            columns = [
                pa.array([getattr(record, name) for record in records], schema.field(name).type)
                for name in schema.names
            ]
            with replacing(self._folder.parts / f"{kind}-{self._batches:05d}.parquet") as beside:
                pq.write_table(pa.table(columns, schema=schema), beside, compression="zstd")
        self._batches += 1

    def close(self) -> None:
        """Merge the batches into requests.parquet and answers.parquet. Raises StoreError; the batches are kept then."""
        if not self._folder.parts.is_dir():
            return
        import pyarrow.parquet as pq

        for kind, target in (("answers", self._folder.answers), ("requests", self._folder.requests)):
            batches = sorted(self._folder.parts.glob(f"{kind}-*.parquet"))
            if not batches:
                continue
            before = [target] if target.exists() else []
            schema = _answers_schema() if kind == "answers" else _requests_schema()
            with replacing(target) as beside, pq.ParquetWriter(beside, schema, compression="zstd") as writer:
                for batch in [*before, *batches]:
                    writer.write_table(pq.read_table(batch, schema=schema))
        shutil.rmtree(self._folder.parts)


def write_points(folder: RunFolder, points: Sequence[Point]) -> None:
    """Write points.parquet and points.csv anew, whole or not at all. Raises StoreError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {**point.row, "verdict": point.verdict, "doubts": [doubt.code for doubt in point.doubts]} for point in points
    ]
    if not rows:
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    table = pa.table(columns).replace_schema_metadata({"schema_version": str(SCHEMA_VERSION)})
    with replacing(folder.points) as beside:
        pq.write_table(table, beside, compression="zstd")
    with replacing(folder.points_csv) as beside, beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_cell(row.get(name)) for name in names] for row in rows)


def _column(values: list[Any]) -> pa.Array:
    """A typed column. One that is all null is a column of numbers: nearly all that may be missing are."""
    import pyarrow as pa

    if all(value is None for value in values):
        return pa.array(values, pa.float64())
    if any(isinstance(value, float) for value in values):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if all(isinstance(value, list) or value is None for value in values):
        return pa.array(values, pa.list_(pa.string()))
    return pa.array(values)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, list):
        return ";".join(value)
    return str(value).lower() if isinstance(value, bool) else value


def _tables(folder: RunFolder) -> Iterator[pa.Table]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _requests_schema()
    for path in [folder.requests, *sorted(folder.parts.glob("requests-*.parquet"))]:
        if path.exists():
            try:
                yield pq.read_table(path, schema=schema)
            except (OSError, pa.ArrowInvalid) as error:
                raise StoreError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def read_requests(folder: RunFolder) -> pd.DataFrame:
    """All records that are stored, of an unfinished run too. Raises StoreError."""
    import pyarrow as pa

    tables = list(_tables(folder))
    whole = pa.concat_tables(tables) if tables else _requests_schema().empty_table()
    frame: pd.DataFrame = whole.to_pandas()
    return frame


def read_points(folder: RunFolder) -> pd.DataFrame:
    """The points of a run; an empty frame when it has none. Raises StoreError."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not folder.points.exists():
        return pd.DataFrame()
    try:
        frame: pd.DataFrame = pq.read_table(folder.points).to_pandas()
    except OSError as error:
        raise StoreError(f"{folder.points} cannot be read: {reason_of(error)}") from error
    except pa.ArrowInvalid as error:
        raise StoreError(f"{folder.points} cannot be read: {str(error).splitlines()[0]}") from error
    return frame
