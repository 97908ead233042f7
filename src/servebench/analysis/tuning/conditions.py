"""Conditions of a space's YAML, such as `{gpu.memory_gb: ">= 70", engine.max_num_seqs: [64, 128]}`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from servebench.contracts.stored import mapping

_COMPARISON = re.compile(r"(>=|<=|!=|>|<)\s*(\S+)")
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "!=": operator.ne,
}


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """Return what a config has at a dotted key; None if it has nothing. A name in `extra_args` may itself have dots."""
    value: Any = config
    parts = key.split(".")
    for index, part in enumerate(parts):
        rest = ".".join(parts[index:])
        if rest in mapping(value):
            return mapping(value)[rest]
        value = mapping(value).get(part)
    return value


def holds(when: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Return whether each key of a condition has the wanted value: an equal one, one of a list, or one that a comparison
    (`"> 8"`, `"< engine.max_num_seqs"`, `"!= null"`) allows. A comparison of size with something unknown does not hold."""
    return all(_fits(value_at(config, key), wanted, config) for key, wanted in when.items())


def with_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with these dotted keys set."""
    changed = dict(config)
    for key, value in settings.items():
        first, _, rest = key.partition(".")
        if not rest or rest in mapping(changed.get(first)):
            changed[first] = {**mapping(changed.get(first)), rest: value} if rest else value
        elif first == "extra_args":
            changed[first] = {**mapping(changed.get(first)), rest: value}
        else:
            changed[first] = with_settings(mapping(changed.get(first)), {rest: value})
    return changed


def _fits(value: Any, wanted: Any, config: Mapping[str, Any]) -> bool:
    if isinstance(wanted, list | tuple):
        return any(_fits(value, one, config) for one in wanted)
    found = _COMPARISON.fullmatch(wanted.strip()) if isinstance(wanted, str) else None
    if found is None:
        return bool(value == wanted)
    other = _operand(found[2], config)
    if found[1] == "!=":
        return bool(value != other)
    if not (_is_number(value) and _is_number(other)):
        return False
    return _OPERATORS[found[1]](value, other)


def _operand(text: str, config: Mapping[str, Any]) -> Any:
    if text in ("null", "true", "false"):
        return {"null": None, "true": True, "false": False}[text]
    try:
        return float(text)
    except ValueError:
        # a key of the config, or a plain word
        return value_at(config, text) if "." in text else text


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
