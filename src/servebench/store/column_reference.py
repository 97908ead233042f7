"""The page of the documentation that lists the columns of the stored tables.

`python -m servebench.store.column_reference > docs/columns.md` writes it; a test fails while it is out of date.
"""

import sys
from collections.abc import Iterable

from servebench.contracts.columns import Column, columns_of
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Record
from servebench.util.markdown import table

INTRODUCTION = """# Columns of the stored tables

This page is generated from the definitions in `servebench.contracts`: change them there, then run
`python -m servebench.store.column_reference > docs/columns.md`.

What is unknown is null (empty in CSV), never 0. Times ending in `_ns` are nanoseconds since the epoch. Latencies are those
of ok requests sent inside the measurement window.
"""


def column_reference() -> str:
    """Return the page as Markdown."""
    sections = [
        "## points.csv and points.parquet\n\nOne row a point. points.csv ends with `schema_version`.\n",
        *_table(columns_of(PointRow)),
        "\n## requests.parquet\n\nOne row a request, failed ones and those of the warm-up too.\n",
        *_table(columns_of(Record)),
    ]
    return "\n".join([INTRODUCTION, *sections]) + "\n"


def _table(columns: Iterable[Column]) -> list[str]:
    rows = [(f"`{one.name}`", one.kind + " or null" * one.nullable, one.unit, one.description) for one in columns]
    return table(("column", "type", "unit", "meaning"), rows, left=range(4), escaped=True)


if __name__ == "__main__":
    sys.stdout.write(column_reference())
