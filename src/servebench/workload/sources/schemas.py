"""Read JSON Schemas, shipped or a user's own, and make documents that fit them."""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from servebench.util.bounded_file import DATASET_BYTES_MAX, open_text, parse_json
from servebench.util.errors import ConfigError

Tier = Literal["flat", "enum", "array", "nested", "hard"]
"""Difficulty of a schema: plain fields; choices and ranges; lists; nested objects; references and alternatives."""

OWN_FORMAT = 'a .jsonl with rows like {"schema": {...}, "prompt": "...", "expected": {...}}, the last two optional'
MAKE_UP = "Make up a document that fits the schema."

TIERS: tuple[Tier, ...] = get_args(Tier)


@dataclass(frozen=True)
class SchemaTask:
    """A JSON document to make from notes: `schema` as it is sent, `source` with the `examples` that values are drawn from.

    A user's own task has no source, may have the `expected` document, and its tier is `own`. `words` is the instruction.
    """

    name: str
    tier: Tier | Literal["own"]
    words: str
    schema: Mapping[str, Any]
    source: Mapping[str, Any] | None = None
    expected: Any = None


@cache
def builtin_tasks() -> tuple[SchemaTask, ...]:
    """Return the shipped tasks, four of each tier, easiest first."""
    text = files("servebench.workload").joinpath("data", "schemas.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.split("\n") if line]
    return tuple(
        SchemaTask(row["name"], row["tier"], row["task"], sendable(row["schema"]), row["schema"]) for row in rows
    )


@cache
def own_tasks(path: str) -> tuple[SchemaTask, ...]:
    """Return the tasks in a user's `.jsonl`: rows of `schema`, optionally `prompt`, `expected` and `name`.

    Raises ConfigError for a file that cannot be read and for the first row that is not a task.
    """
    try:
        with open_text(Path(path).expanduser(), DATASET_BYTES_MAX) as file:
            lines = file.read().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"workload.path={path} cannot be read: {error}; set it to {OWN_FORMAT}") from error
    tasks = [_parse_task(line, number, path) for number, line in enumerate(lines, 1) if line.strip()]
    if not tasks:
        raise ConfigError(f"workload.path={path} has no tasks; set it to {OWN_FORMAT}")
    return tuple(tasks)


def _parse_task(line: str, number: int, path: str) -> SchemaTask:
    try:
        row = parse_json(line)
        schema = row["schema"]
        schema = parse_json(schema) if isinstance(schema, str) else schema
        Draft202012Validator.check_schema(schema)
        if not isinstance(schema, dict):
            raise TypeError("a schema must be an object")
    except SchemaError as error:
        raise ConfigError(f"workload.path={path}, line {number}: not a JSON Schema: {error.message}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"workload.path={path}, line {number}: not a task ({error}); the format is {OWN_FORMAT}"
        ) from error
    name, words = str(row.get("name") or f"line {number}"), str(row.get("prompt") or MAKE_UP)
    return SchemaTask(name, "own", words, schema, expected=row.get("expected"))


def sendable(schema: Any) -> Any:
    """Return a schema without `examples`, which would give the values away, and `uniqueItems`, which engines reject."""
    if isinstance(schema, Mapping):
        # a property of this name holds a schema instead
        return {
            key: sendable(value)
            for key, value in schema.items()
            if not (key in ("examples", "uniqueItems") and isinstance(value, list | bool))
        }
    return [sendable(item) for item in schema] if isinstance(schema, list) else schema


def instance(schema: Mapping[str, Any], rng: random.Random, root: Mapping[str, Any] | None = None) -> Any:
    """Return a random document that fits a shipped schema, or a part of the one at its `root`. Raises ValueError for
    keywords that those do not use."""
    root = root or schema
    if "$ref" in schema:
        return instance(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], rng, root)
    if "anyOf" in schema:
        return instance(rng.choice(schema["anyOf"]), rng, root)
    if "const" in schema:
        return schema["const"]
    for key in ("enum", "examples"):
        if key in schema:
            return rng.choice(schema[key])
    return _of_type(schema, root, rng)


def _of_type(schema: Mapping[str, Any], root: Mapping[str, Any], rng: random.Random) -> Any:
    match schema.get("type"):
        case "object":
            return {key: instance(value, rng, root) for key, value in schema["properties"].items()}
        case "array":
            count = rng.randint(schema["minItems"], schema["maxItems"])
            if schema.get("uniqueItems"):
                return rng.sample(schema["items"]["examples"], count)
            return [instance(schema["items"], rng, root) for _ in range(count)]
        case "integer":
            return rng.randint(schema["minimum"], schema["maximum"])
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
    raise ValueError(f"cannot make a document for {schema}")


def notes(document: Any) -> str:
    """Return the facts of a document as plain lines, `customer, address, city: Oslo`, in the document's order."""
    return "\n".join(f"- {place}: {value}" for place, value in _facts(document, ""))


def _facts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            name = key.replace("_", " ")
            yield from _facts(item, f"{place}, {name}" if place else name)
    elif isinstance(value, list):
        if not value:
            yield place, "none"
        for index, item in enumerate(value, 1):
            yield from _facts(item, f"{place} {index}")
    elif value is None:
        yield place, "unknown"
    elif isinstance(value, bool):
        yield place, "yes" if value else "no"
    else:
        yield place, str(value)
