"""Walk through nested plain data."""

from collections.abc import Iterator, Mapping
from typing import Any


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
