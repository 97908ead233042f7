"""List the keys that a config may have, from the settings' dataclasses."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from servebench.contracts.settings import RunSettings

Types = Mapping[str, Any]
"""The dataclass of each section."""


@cache
def section_types() -> Types:
    """Return the sections of a config, each with the dataclass of its common keys."""
    hints = get_type_hints(RunSettings)
    return {item.name: hints[item.name] for item in fields(RunSettings)}


def known_keys(types: Types) -> list[str]:
    """Return all dotted keys of these sections."""
    return [f"{section}.{key}" for section, kind in types.items() for key in _keys_of(kind)]


@cache
def _keys_of(kind: Any) -> tuple[str, ...]:
    hints = get_type_hints(kind)
    keys: list[str] = []
    for item in fields(kind):
        keys.append(item.name)
        for nested in _dataclasses_in(hints[item.name]):
            keys.extend(f"{item.name}.{key}" for key in _keys_of(nested))
    return tuple(keys)


def _dataclasses_in(hint: Any) -> Iterator[Any]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    else:
        for argument in get_args(hint):
            yield from _dataclasses_in(argument)
