"""Set fields of `xllamacpp.CommonParams` (`n_batch`, `cpuparams_batch.n_threads`) from text."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

CONVERTERS: Mapping[type, Callable[[str], Any]] = {
    bool: lambda text: {"true": True, "false": False, "1": True, "0": False}[text.lower()],
    int: int,
    float: float,
    str: str,
}
"""The types that can be set from text. Lists, enumerations and structures cannot."""


def plain_fields(parameters: Any, prefix: str = "") -> dict[str, type]:
    """Return the fields that can be set from text, with their types; nested fields have dots in their names."""
    found: dict[str, type] = {}
    for name in dir(parameters):
        if name.startswith("_"):
            continue
        value = getattr(parameters, name)
        if type(value) in CONVERTERS:
            found[prefix + name] = type(value)
        elif type(value).__name__.startswith(("CommonParams", "CpuParams")):
            found.update(plain_fields(value, f"{prefix}{name}."))
    return found


def field_problem(fields: Mapping[str, type], name: str, text: str) -> str | None:
    """Return why a field cannot be set to this text, with the nearest known name; None if it can."""
    if name not in fields:
        near = difflib.get_close_matches(name, fields, n=1)
        advice = (
            f"did you mean '{near[0]}'?" if near else "its parameters are the plain fields of xllamacpp.CommonParams"
        )
        return f"the embedded llama.cpp has no parameter '{name}'; {advice}"
    try:
        CONVERTERS[fields[name]](text)
    except (KeyError, ValueError):
        return (
            f"the parameter '{name}' of the embedded llama.cpp must be of type {fields[name].__name__} (got '{text}')"
        )
    return None


def set_field(parameters: Any, name: str, text: str) -> None:
    """Set a field from text. Raises ValueError for an unknown name or an invalid value."""
    fields = plain_fields(parameters)
    problem = field_problem(fields, name, text)
    if problem is not None:
        raise ValueError(problem)
    *parents, leaf = name.split(".")
    for parent in parents:
        parameters = getattr(parameters, parent)
    try:
        setattr(parameters, leaf, CONVERTERS[fields[name]](text))
    except (TypeError, OverflowError, AttributeError) as error:
        raise ValueError(f"'{name}' cannot be set to '{text}': {error}") from error
