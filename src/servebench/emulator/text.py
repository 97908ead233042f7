"""Tokens of the emulated engines: every four characters are one.

The tokenizer must be cheap (a prompt is cut the moment it arrives, on the core that also keeps the schedule), the same for
every engine, and honest about prefixes: two texts that begin alike must have the same first tokens. Four characters a
token is also what servebench counts with when no tokenizer of the model is known, so prompts come out as long as asked.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Mapping, Sequence
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

CHARACTERS = 4
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+-"  # pragma: allowlist secret

WORDS = (
    "the model reads a prompt and writes one token after another until it has said enough about what was asked of it "
    "here some plain words stand for an answer so that nobody takes them for one they carry no meaning only their number "
    "and the time at which they come do the rest is filler of a fixed length cut from a loop"
)
MEDIAN_OUTPUT_TOKENS = 180
"""An answer whose length nobody fixed: log-normal, this median and the sigma below. To the order of chat data sets."""
OUTPUT_SIGMA = 0.7


def count_tokens(text: str) -> int:
    """Tokens of a text; at least one for a text that is not empty."""
    return -(-len(text) // CHARACTERS)


def render_chat(messages: Sequence[Mapping[str, Any]]) -> str:
    """A chat as one text, each turn behind its role, so that a conversation begins like its last turn's prompt."""
    return "".join(f"<{turn.get('role')}>{_content(turn.get('content'))}" for turn in messages) + "<assistant>"


def _content(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content or "")


def prompt_key(seed: int, prompt: str) -> int:
    """A number that depends on seed and prompt only, the same in every process."""
    return zlib.crc32(prompt.encode("utf-8", "surrogatepass"), seed & 0xFFFFFFFF)


def answer_pieces(key: int, tokens: int) -> list[str]:
    """The pieces of an answer, four characters each: a walk through the same words from a place that the key names."""
    loop = WORDS + " "
    start = key % len(loop)
    needed = tokens * CHARACTERS
    text = (loop[start:] + loop * (needed // len(loop) + 1))[:needed]
    return [text[place : place + CHARACTERS] for place in range(0, needed, CHARACTERS)]


def natural_length(key: int) -> int:
    """How long an answer would be that ends by itself, in tokens."""
    return max(1, round(random.Random(key).lognormvariate(0.0, OUTPUT_SIGMA) * MEDIAN_OUTPUT_TOKENS))


def split_tokens(text: str) -> list[str]:
    """A text in tokens."""
    return [text[place : place + CHARACTERS] for place in range(0, len(text), CHARACTERS)]


def text_of_ids(ids: Sequence[int]) -> str:
    """A text for token ids: each as wide as a token, and no two ids below sixteen million alike, so prefixes stay."""
    shifts = range(6 * (CHARACTERS - 1), -1, -6)
    return "".join(DIGITS[(one >> shift) % len(DIGITS)] for one in ids for shift in shifts)


def schema_value(schema: Mapping[str, Any], key: int, depth: int = 0) -> Any:
    """A value that a JSON Schema allows: types, enums, required and optional properties, bounds, references to `$defs`.

    Deterministic. What it does not know of the schema it leaves out of account.
    """
    return _Fitter(schema, random.Random(key)).value(schema, depth)


def regex_text(pattern: str, rng: random.Random) -> str:
    """A text that a plain regular expression matches: literals, classes, repetitions, groups and alternatives.

    What a look-around or a back-reference asks for is left out of account. An expression that is none gives an empty text.
    """
    try:
        parsed = parser.parse(pattern)
    except re.error:
        return ""
    return _matched(parsed, rng)


def _matched(parts: Any, rng: random.Random) -> str:
    """A text for a sequence of parts, as Python's own parser gives them."""
    return "".join(_match(str(kind), value, rng) for kind, value in parts)


def _match(kind: str, value: Any, rng: random.Random) -> str:
    found = ""
    if kind == "LITERAL":
        found = chr(value)
    elif kind == "IN" and str(value[0][0]) != "NEGATE":
        found = _member(rng.choice(value), rng)
    elif kind in ("ANY", "IN"):
        found = "x"
    elif kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        least, most, inner = value
        found = "".join(_matched(inner, rng) for _ in range(rng.randint(least, min(int(most), least + 3))))
    elif kind == "SUBPATTERN":
        found = _matched(value[-1], rng)
    elif kind == "BRANCH":
        found = _matched(rng.choice(value[1]), rng)
    return found


def _member(one: tuple[Any, Any], rng: random.Random) -> str:
    kind, value = str(one[0]), one[1]
    if kind == "RANGE":
        return chr(rng.randint(*value))
    if kind == "CATEGORY":
        return {"CATEGORY_DIGIT": "7", "CATEGORY_SPACE": " "}.get(str(value), "a")
    return chr(value)


class _Fitter:
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
    """The pieces of an answer that a schema constrains; any object when there is none."""
    return split_tokens(json.dumps(schema_value(schema, key) if schema is not None else {"answer": WORDS[:20]}))
