"""Whether a text is JSON that fits a schema."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MESSAGE_MAX = 200


@dataclass(frozen=True)
class Compliance:
    """`parsed`: the text is one JSON value and nothing else. `valid`: it fits the schema too. `reason`: why not."""

    parsed: bool
    valid: bool
    reason: str | None = None


TEXT = {"type": "string", "pattern": r"\S"}
"""The schema of a text that is not blank."""


def object_of(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that has these properties, and perhaps others."""
    return {"type": "object", "required": list(properties), "properties": properties}


def require(value: Any, schema: Mapping[str, Any]) -> None:
    """Raise ValueError with the first mismatch if a value does not fit a schema."""
    from jsonschema import Draft202012Validator

    for mismatch in Draft202012Validator(schema).iter_errors(value):
        raise ValueError(f"{mismatch.json_path}: {mismatch.message[:MESSAGE_MAX]}")


def compliance(text: str, schema: Mapping[str, Any]) -> Compliance:
    """Check one answer. White space around the JSON is allowed, other text is not; NaN and Infinity are not JSON.

    The schema is read as draft 2020-12; `format` is an annotation there and not tested. Raises
    `jsonschema.SchemaError` for an invalid schema.
    """
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(schema)
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return Compliance(parsed=False, valid=False, reason=f"not JSON: {error}")
    worst = next(Draft202012Validator(schema).iter_errors(value), None)
    if worst is None:
        return Compliance(parsed=True, valid=True)
    return Compliance(parsed=True, valid=False, reason=f"{worst.json_path}: {worst.message}")


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")
