"""Values as plain data, for JSON."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from servebench.contracts.level import Level


def plain(value: Any) -> Any:
    """Return a value as plain data: dataclasses as dictionaries, levels as their text, tuples as lists."""
    if isinstance(value, Level):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    return value
