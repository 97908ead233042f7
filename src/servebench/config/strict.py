"""Reads files that users write as strict pydantic models; each mistake is one line with its key, its value and what to do."""

import dataclasses
import json
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from servebench.config.problems import format_value, nearest_name
from servebench.config.validate import rule_of
from servebench.util.bounded_file import STATE_BYTES_MAX, load_yaml, read_bytes
from servebench.util.errors import ConfigError, reason_of

Kind = TypeVar("Kind")
NAMED_MAX = 16
"""More known keys are not listed."""


class Strict(BaseModel):
    """A mapping of a file, without keys that are unknown."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def read_yaml(path: Path, where: str = "") -> Any:
    """Return the value in a YAML file, which errors call by its path or `where`. Raises ConfigError."""
    import yaml

    where = where or str(path)
    try:
        return load_yaml(read_bytes(path, STATE_BYTES_MAX).decode())
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {reason_of(error)}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:
        raise ConfigError(f"{where} cannot be read: {error}") from error


def parse_strict(kind: type[Kind], data: Any, where: str) -> Kind:
    """Return the data of a file as this kind. Raises ConfigError with everything that is wrong, each with the file and key."""
    try:
        # strict, as JSON: lists become tuples, and '8' is not 8
        return TypeAdapter(kind).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise ConfigError([f"{where}: {_line(one, kind)}" for one in error.errors(include_url=False)]) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} has values that are no text, number, list or mapping: {error}") from error


def _line(error: ErrorDetails, kind: Any) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).removeprefix(".")
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _known_keys(kind, error["loc"][:-1])
        near = nearest_name(str(error["loc"][-1]), known)
        hint = f"; did you mean {near}?" if near else ""
        return f"{place}: unknown key; known keys are {', '.join(known[:NAMED_MAX])}{hint}"
    if error["type"] == "missing":
        return f"{place}: is required"
    if error["type"] == "value_error":
        return f"{place}: {error['ctx']['error']}".removeprefix(": ")
    return f"{place}: must {rule_of(error)} (got {format_value(error['input'])})".removeprefix(": ")


def _known_keys(kind: Any, loc: tuple[int | str, ...]) -> list[str]:
    for part in (*loc, None):
        while get_origin(kind) in (Union, UnionType):
            kind = next(one for one in get_args(kind) if one is not type(None))
        if part is None:
            break
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            fields = {one.alias or name: one.annotation for name, one in kind.model_fields.items()}
            kind = fields.get(str(part), Any)
        else:
            kind = next((one for one in reversed(get_args(kind)) if one is not Ellipsis), Any)
    if dataclasses.is_dataclass(kind):
        return [one.name for one in dataclasses.fields(kind)]
    known = kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}
    return [one.alias or name for name, one in known.items()]
