"""Reading a table: the columns that are wanted, and without threads, which may still start when a command ends."""

import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from servebench.util.bounded_parquet import read_parquet
from support.commands import run_program

THREADS = """
import os, sys
import pandas, pyarrow.compute, pyarrow.parquet
from pathlib import Path
from servebench.util.bounded_parquet import read_parquet
schema = pyarrow.schema([("id", pyarrow.string()), ("value", pyarrow.float64())])
before = set(os.listdir("/proc/self/task"))
table = read_parquet(Path(sys.argv[1]), schema=schema, only=("id", "b"))
table.to_pandas(use_threads=False)
print(len(set(os.listdir("/proc/self/task")) - before), table.num_rows)
"""


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "table.parquet"
    table = pa.table({"id": ["a", "b", "b"], "value": [1.0, 2.0, None], "other": [1, 2, 3]})
    pq.write_table(table, target)
    return target


def test_reading_starts_no_thread(path, tmp_path):
    done = run_program(sys.executable, "-c", THREADS, path, cwd=tmp_path)
    assert done.stdout.split() == ["0", "2"], done.stderr


def test_a_table_gets_the_columns_of_its_schema(path):
    schema = pa.schema(
        [("value", pa.float64()), ("new", pa.int32()), ("id", pa.dictionary(pa.int32(), pa.string()))], {b"v": b"1"}
    )
    table = read_parquet(path, schema=schema)
    assert table.schema.equals(schema, check_metadata=True)
    assert table.column("new").null_count == 3
    assert read_parquet(path, schema=schema, only=("id", "a")).num_rows == 1


def test_a_column_of_another_type_is_an_error(path):
    with pytest.raises(pa.ArrowException):
        read_parquet(path, schema=pa.schema([("id", pa.float64())]))


@pytest.mark.parametrize("encode", [lambda texts: texts, lambda texts: pa.DictionaryArray.from_arrays([0], texts)])
def test_a_text_that_is_damaged_is_an_error_of_the_file(tmp_path, encode):
    """One changed byte in a stored column, which Arrow decodes only where the value is used."""
    texts = pa.StringArray.from_buffers(
        1, pa.py_buffer((0).to_bytes(4, "little") + (2).to_bytes(4, "little")), pa.py_buffer(b"\xa1x")
    )
    pq.write_table(pa.table({"id": encode(texts)}), tmp_path / "table.parquet")
    with pytest.raises(pa.ArrowException, match="UTF8"):
        read_parquet(tmp_path / "table.parquet")
