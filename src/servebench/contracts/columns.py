"""Columns of stored tables as fields of dataclasses: each field has its type, unit, meaning, title and direction.

A dataclass whose fields are columns is the one definition of a table: `columns_of` gives what the Parquet
schema, the CSV header, the column reference in the docs and the headings of every screen are made from.
"""

import types
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Kind = Literal["str", "int", "float", "bool", "list[str]", "list[int]"]
Better = Literal["higher", "lower"]
SHARE = "0..1"
"""The unit of shares."""
ABBREVIATIONS = ("ttft", "itl", "tpot", "e2e", "ttfo")
RATES = ("tok/s", "tok/s/W", "req/s", "texts/s", "jobs/h", "jobs/GPU-h")
PRICES = ("J/token", "$/M tokens")
"""Units of which more is better, and of which less is; they are the headings of metrics that have a title."""
_KINDS: dict[Any, Kind] = {str: "str", int: "int", float: "float", bool: "bool"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table. `bits` is the width of an integer in Parquet; `unit` is empty where there is none.

    `title` is what it is called in a sentence and `heading` in a table; `better` is the direction of a metric.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    title: str
    heading: str
    better: Better | None
    bits: int = 64

    @property
    def labelled(self) -> str:
        """The title with its unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


def about(
    unit: str, description: str, *, title: str = "", heading: str = "", better: Better | None = None, bits: int = 64
) -> dict[str, Any]:
    """Return the metadata that makes a dataclass field a column: without a title it is called by its name, without a heading
    by its unit if that is a rate or price, else by its title, and of latencies lower is better."""
    heading = heading or (unit if title and unit in (*RATES, *PRICES) else "")
    given = {"unit": unit, "description": description, "title": title, "heading": heading, "bits": bits}
    usual: Better | None = "higher" if unit in RATES else "lower" if unit in (*PRICES, "ms") else None
    return {**given, "better": better or usual}


def column(unit: str, description: str, *, default: Any = None, **more: Any) -> Any:
    """Declare a dataclass field as a column with a default, null unless given, and `more` as in `about`."""
    return field(default=default, metadata=about(unit, description, **more))


@cache
def columns_of(table: type) -> tuple[Column, ...]:
    """Return the columns of a table dataclass, in order. Fields without metadata of a column are left out; a column without a
    title is called by its name in words, `TTFT p50` for `ttft_ms_p50`."""
    hints = get_type_hints(table)
    found = []
    for one in fields(table):
        if "description" in one.metadata:
            words = (word for word in one.name.split("_") if word not in ("ms", "ns", "s"))
            called = " ".join(word.upper() if word in ABBREVIATIONS else word for word in words)
            title = one.metadata["title"] or called
            named = {**one.metadata, "title": title, "heading": one.metadata["heading"] or title}
            found.append(Column(name=one.name, kind=kind_of(hints[one.name]), **named))
    return tuple(found)


def kind_of(hint: Any) -> Kind:
    """Return the kind of a column with this type annotation, which may be null beside."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    base = next(one for one in options if one is not type(None))
    if get_origin(base) is Literal:
        base = type(get_args(base)[0])
    if get_origin(base) in (list, tuple):
        return "list[str]" if get_args(base)[0] is str else "list[int]"
    return _KINDS[base]
