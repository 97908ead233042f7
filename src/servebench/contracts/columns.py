"""Columns of stored tables as fields of dataclasses: each field has its type, unit and meaning.

A dataclass whose fields are columns is the one definition of a table: `columns_of` gives what the Parquet
schema, the CSV header and the column reference in the docs are made from.
"""

import types
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Kind = Literal["str", "int", "float", "bool", "list[str]", "list[int]"]
_KINDS: dict[Any, Kind] = {str: "str", int: "int", float: "float", bool: "bool"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table. `bits` is the width of an integer in Parquet; `unit` is empty where there is none."""

    name: str
    kind: Kind
    nullable: bool
    unit: str
    description: str
    bits: int = 64


def about(unit: str, description: str, *, bits: int = 64) -> dict[str, Any]:
    """Return the metadata that makes a dataclass field a column."""
    return {"unit": unit, "description": description, "bits": bits}


def column(unit: str, description: str, *, default: Any = None, bits: int = 64) -> Any:
    """Declare a dataclass field as a column with a default, null unless given."""
    return field(default=default, metadata=about(unit, description, bits=bits))


@cache
def columns_of(table: type) -> tuple[Column, ...]:
    """Return the columns of a table dataclass, in order. Fields without metadata of a column are left out."""
    hints = get_type_hints(table)
    found = []
    for one in fields(table):
        if "description" in one.metadata:
            kind, nullable = kind_of(hints[one.name])
            found.append(Column(name=one.name, kind=kind, nullable=nullable, **one.metadata))
    return tuple(found)


def kind_of(hint: Any) -> tuple[Kind, bool]:
    """Return the kind of a column with this type annotation, and whether it may be null."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    known = [one for one in options if one is not type(None)]
    base = known[0]
    if get_origin(base) is Literal:
        base = type(get_args(base)[0])
    if get_origin(base) in (list, tuple):
        return ("list[str]" if get_args(base)[0] is str else "list[int]"), len(known) < len(options)
    return _KINDS[base], len(known) < len(options)
