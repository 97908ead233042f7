"""Read Parquet files that others may have made: a few hundred bytes can describe any number of rows, so what a table takes in
memory is computed before it is read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from servebench.util.bounded_file import open_regular, size_text

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

TABLE_BYTES_MIN = 128 << 20
TABLE_BYTES_MAX = 16 << 30
TABLE_GROWTH_MAX = 128
"""A table may take TABLE_BYTES_MIN in memory, or this many times its file if that is more, up to TABLE_BYTES_MAX."""
CELL_BYTES = 8


def read_parquet(
    path: Path,
    *,
    schema: pa.Schema | None = None,
    columns: list[str] | None = None,
    memory_max: int | None = None,
    check: Callable[[Mapping[bytes, bytes] | None], None] = lambda _: None,
    only: tuple[str, str] | None = None,
) -> pa.Table:
    """Return a table with the columns of `schema`, else `columns`, else all. With a schema, `only` (a column and a text) keeps
    the rows that have this text. `check` gets the metadata first. Raises OSError, ValueError, pa.ArrowException, and what `check`
    does."""
    import pyarrow.parquet as pq

    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        limit = memory_max or min(TABLE_BYTES_MAX, max(TABLE_BYTES_MIN, TABLE_GROWTH_MAX * size))
        # no thread is started, to read ahead neither: a command that ends while Arrow starts one is aborted by the C++ library
        whole = pq.ParquetFile(file, pre_buffer=False)
        check(whole.metadata.metadata)
        wanted = schema.names if schema is not None else columns
        needed = 0
        for part in _parts_bytes(file, whole, wanted, limit):
            needed += part
            if needed > limit:
                raise OSError(
                    errno.EFBIG,
                    f"its {whole.metadata.num_rows:,} rows take {size_text(needed)} of memory or more, and the limit is "
                    f"{size_text(limit)}",
                    str(path),
                )
        stored = set(whole.schema_arrow.names)
        table = whole.read(None if wanted is None else [one for one in wanted if one in stored], use_threads=False)
    # a damaged text would be an error only where it is used
    table.validate(full=True)
    return table if schema is None else _fitted(table, schema, only)


def _fitted(table: pa.Table, schema: pa.Schema, only: tuple[str, str] | None) -> pa.Table:
    """Return a table with the columns of `schema`, nulls for those that it lacks, and the rows in which `only` is so."""
    import pyarrow as pa

    if only is not None:
        import pyarrow.compute as pc

        table = table.filter(pc.equal(table.column(only[0]).cast(pa.string()), only[1]))
    return pa.table([_column(table, field) for field in schema], schema=schema)


def _column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    import pyarrow as pa

    if field.name not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    column = table.column(field.name)
    if pa.types.is_dictionary(field.type) and not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.cast(field.type)


def _parts_bytes(file: BinaryIO, whole: pq.ParquetFile, wanted: list[str] | None, limit: int) -> Iterator[int]:
    """Yield the bytes in memory of the parts of a table, the cheap ones to compute first."""
    paths = {whole.schema.column(index).path: index for index in range(len(whole.schema))}
    kept = {path: index for path, index in paths.items() if wanted is None or path.split(".")[0] in wanted}
    yield max(whole.metadata.num_rows, 0) * CELL_BYTES * max(len(kept), len(wanted or ()))
    texts = []
    for group in range(whole.metadata.num_row_groups):
        rows = whole.metadata.row_group(group)
        for path, index in kept.items():
            chunk = rows.column(index)
            yield max(0, chunk.num_values - rows.num_rows) * CELL_BYTES + max(chunk.total_uncompressed_size, 0)
            if chunk.physical_type == "FIXED_LEN_BYTE_ARRAY":
                yield chunk.num_values * max(whole.schema.column(index).length, 0)
            elif chunk.physical_type == "BYTE_ARRAY":
                texts.append((group, path, chunk))
    for group, path, chunk in texts:
        yield _text_bytes(partial(_dictionary, file, whole, group, path), chunk, limit)


def _dictionary(file: BinaryIO, whole: pq.ParquetFile, group: int, path: str) -> pa.ChunkedArray:
    import pyarrow.parquet as pq

    reader = pq.ParquetFile(file, metadata=whole.metadata, read_dictionary=[path], pre_buffer=False)
    return reader.read_row_group(group, columns=[path], use_threads=False).column(0)


def _text_bytes(read: Callable[[], pa.ChunkedArray], chunk: Any, limit: int) -> int:
    """Return the bytes of a column's texts beyond those that are stored: equal texts, or what they share, are stored once."""
    shared = [one for one in chunk.encodings if "DICTIONARY" in one or one == "DELTA_BYTE_ARRAY"]
    most = int(chunk.num_values * chunk.total_uncompressed_size)
    if not shared or most <= limit // 1024:
        return most if shared else 0
    if "DELTA_BYTE_ARRAY" in shared:
        return most
    return sum(_decoded_bytes(part) for part in read().chunks)


def _decoded_bytes(values: Any) -> int:
    """Return the bytes of the texts in an array that has a dictionary, or in one that holds such arrays."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(values.type):
        return int(pc.sum(pc.take(pc.binary_length(values.dictionary), values.indices)).as_py() or 0)
    if pa.types.is_struct(values.type):
        return sum(_decoded_bytes(part) for part in values.flatten())
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type) or pa.types.is_map(values.type):
        inner = [values.keys, values.items] if pa.types.is_map(values.type) else [values.flatten()]
        return sum(_decoded_bytes(part) for part in inner)
    return int(values.nbytes)
