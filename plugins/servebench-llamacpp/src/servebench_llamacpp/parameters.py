"""Set fields of `xllamacpp.CommonParams` (`n_batch`, `cpuparams_batch.n_threads`, `cache_type_k`) from text."""

import difflib
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import takewhile
from typing import Any

CONVERTERS: Mapping[type, Callable[[str], Any]] = {
    bool: lambda text: {"true": True, "false": False, "1": True, "0": False}[text.lower()],
    int: int,
    float: float,
    str: str,
}
"""The types that can be set from text, beside enumerations. Lists and structures cannot."""


def plain_fields(parameters: Any, prefix: str = "") -> dict[str, type]:
    """Return the fields that can be set from text, with their types; nested fields have dots in their names."""
    found: dict[str, type] = {}
    for name in dir(parameters):
        if name.startswith("_"):
            continue
        value = getattr(parameters, name)
        if type(value) in CONVERTERS or isinstance(value, Enum):
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
    kind = fields[name]
    try:
        convert(kind, text)
    except (KeyError, ValueError):
        wanted = f"one of {', '.join(choices(kind))}" if issubclass(kind, Enum) else f"of type {kind.__name__}"
        return f"the parameter '{name}' of the embedded llama.cpp must be {wanted} (got '{text}')"
    return None


def convert(kind: type, text: str) -> Any:
    """Return a value of this type. Raises KeyError or ValueError for text that is none."""
    return choices(kind)[text.lower()] if issubclass(kind, Enum) else CONVERTERS[kind](text)


def choices(kind: type[Enum]) -> dict[str, Enum]:
    """Return the members of an enumeration by their names in lower case, without what all names begin with: `q8_0` for
    `GGML_TYPE_Q8_0`."""
    names = list(kind.__members__)
    first, last = min(names).split("_"), max(names).split("_")
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first[:-1], last, strict=False)))
    begin = len("_".join(first[:shared])) + 1 if shared else 0
    return {name[begin:].lower(): member for name, member in kind.__members__.items()}


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
        setattr(parameters, leaf, convert(fields[name], text))
    except (TypeError, OverflowError, AttributeError) as error:
        raise ValueError(f"'{name}' cannot be set to '{text}': {error}") from error
