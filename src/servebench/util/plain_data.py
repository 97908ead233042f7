"""Nested plain data: its leaves, and as JSON for other programs."""

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any


def to_json(value: Any) -> str:
    """Return a value as JSON, a number that is not finite as null: JSON knows no infinity, and readers such as jq refuse it."""
    return json.dumps(finite(value), indent=2, default=str, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """Return a value with None for each number in it that is not finite."""
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return value


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value that is not a container, with its dotted path."""
    items = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else None
    )
    if items is None:
        yield prefix, value
        return
    for key, item in items:
        yield from leaves(item, f"{prefix}.{key}" if prefix else str(key))
