"""Answers that fit a JSON Schema or a regular expression, for structured output."""

import json
import random
import re
from collections.abc import Mapping
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from servebench.emulator.text import WORDS, split_tokens


def schema_value(schema: Mapping[str, Any], key: int, depth: int = 0) -> Any:
    """Return a value that a JSON Schema allows: types, enums, properties, bounds, references to `$defs`.

    Deterministic. Other keywords are ignored.
    """
    return _SchemaSampler(schema, random.Random(key)).value(schema, depth)


def regex_text(pattern: str, rng: random.Random) -> str:
    """Return a text that a simple regular expression matches: literals, classes, repetitions, groups and alternatives.

    Look-arounds and back-references are ignored. An invalid expression gives an empty text.
    """
    try:
        parsed = parser.parse(pattern)
    except re.error:
        return ""
    return _parts_text(parsed, rng)


def _parts_text(parts: Any, rng: random.Random) -> str:
    """Return a text for the parts that Python's own parser returns."""
    return "".join(_part_text(str(kind), value, rng) for kind, value in parts)


def _part_text(kind: str, value: Any, rng: random.Random) -> str:
    text = ""
    if kind == "LITERAL":
        text = chr(value)
    elif kind == "IN" and str(value[0][0]) != "NEGATE":
        text = _member(rng.choice(value), rng)
    elif kind in ("ANY", "IN"):
        text = "x"
    elif kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        least, most, inner = value
        text = "".join(_parts_text(inner, rng) for _ in range(rng.randint(least, min(int(most), least + 3))))
    elif kind == "SUBPATTERN":
        text = _parts_text(value[-1], rng)
    elif kind == "BRANCH":
        text = _parts_text(rng.choice(value[1]), rng)
    return text


def _member(member: tuple[Any, Any], rng: random.Random) -> str:
    kind, value = str(member[0]), member[1]
    if kind == "RANGE":
        return chr(rng.randint(*value))
    if kind == "CATEGORY":
        return {"CATEGORY_DIGIT": "7", "CATEGORY_SPACE": " "}.get(str(value), "a")
    return chr(value)


class _SchemaSampler:
    """Choose values that fit a schema."""

    def __init__(self, root: Mapping[str, Any], rng: random.Random) -> None:
        self._root = root
        self._rng = rng

    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth > 8:
            return None
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._rng.choice(list(schema["enum"]))
        kind = schema.get("type")
        kind = kind[0] if isinstance(kind, list) else kind
        if kind == "object" or "properties" in schema:
            return {name: self.value(inner, depth + 1) for name, inner in schema.get("properties", {}).items()}
        if kind == "array":
            length = max(int(schema.get("minItems", 1)), min(2, int(schema.get("maxItems", 2))))
            return [self.value(schema.get("items", {"type": "string"}), depth + 1) for _ in range(length)]
        return self._scalar(kind, schema)

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            found: Any = self._root
            for part in reference[2:].split("/"):
                found = found.get(part, {}) if isinstance(found, Mapping) else {}
            return found if isinstance(found, Mapping) else {}
        for word in ("anyOf", "oneOf", "allOf"):
            options = schema.get(word)
            if isinstance(options, list) and options and isinstance(options[0], Mapping):
                return self._resolved({**schema, word: None, **options[0]})
        return schema

    def _scalar(self, kind: object, schema: Mapping[str, Any]) -> Any:
        if kind in ("integer", "number"):
            low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
            high = schema.get("maximum", schema.get("exclusiveMaximum", low + 100))
            middle = (low + high) / 2
            return int(middle) if kind == "integer" else middle
        if kind == "boolean":
            return self._rng.random() < 0.5
        if kind == "null":
            return None
        if isinstance(schema.get("pattern"), str):
            return regex_text(schema["pattern"], self._rng)
        formats = {"date": "2025-01-31", "date-time": "2025-01-31T12:00:00Z", "email": "a@example.org"}
        text = formats.get(str(schema.get("format")), self._rng.choice(WORDS.split()))
        least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", 64))
        return text.ljust(least, "x")[: max(least, most)]


def schema_pieces(schema: Mapping[str, Any] | None, key: int) -> list[str]:
    """Return the tokens of an answer constrained by a schema; any object without one."""
    return split_tokens(json.dumps(schema_value(schema, key) if schema is not None else {"answer": WORDS[:20]}))
