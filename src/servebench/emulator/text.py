"""Tokens and answers of the emulated engines: every four characters are one token.

The tokenizer must be cheap (prompts are split on the core that also keeps the schedule), the same for every engine, and
prefix-preserving: texts with a common prefix have the same first tokens. servebench assumes the same four characters per
token for a model without a known tokenizer, so prompts have the requested length. With structured output, answers fit a JSON
Schema.
"""

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
"""Length of an answer that ends by itself: log-normal with this median and the sigma below, as in chat data sets."""
OUTPUT_SIGMA = 0.7


def count_tokens(text: str) -> int:
    """Return the tokens of a text; at least 1 for a text that is not empty."""
    return -(-len(text) // CHARACTERS)


def render_chat(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a chat as one text, each turn after its role, so that every turn's prompt is a prefix of the next one's."""
    return "".join(f"<{turn.get('role')}>{_content(turn.get('content'))}" for turn in messages) + "<assistant>"


def _content(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content or "")


def prompt_key(seed: int, prompt: str) -> int:
    """Return a number that depends only on seed and prompt and is the same in every process."""
    return zlib.crc32(prompt.encode("utf-8", "surrogatepass"), seed & 0xFFFFFFFF)


def answer_pieces(key: int, tokens: int) -> list[str]:
    """Return the tokens of an answer: the same words, starting at a position that depends on the key."""
    loop = WORDS + " "
    offset = key % len(loop)
    needed = tokens * CHARACTERS
    text = (loop[offset:] + loop * (needed // len(loop) + 1))[:needed]
    return split_tokens(text)


def natural_length(key: int) -> int:
    """Return the length in tokens of an answer that ends by itself."""
    return max(1, round(random.Random(key).lognormvariate(0.0, OUTPUT_SIGMA) * MEDIAN_OUTPUT_TOKENS))


def split_tokens(text: str) -> list[str]:
    """Split a text into tokens."""
    return [text[start : start + CHARACTERS] for start in range(0, len(text), CHARACTERS)]


def text_of_ids(ids: Sequence[int]) -> str:
    """Return a text for token ids: one token each, different for all ids below 16 million, so that prefixes are preserved."""
    shifts = range(6 * (CHARACTERS - 1), -1, -6)
    return "".join(DIGITS[(token >> shift) % len(DIGITS)] for token in ids for shift in shifts)


def schema_value(schema: Mapping[str, Any], key: int) -> Any:
    """Return a value that a JSON Schema allows: types, enums, properties, bounds, references to `$defs`. Deterministic. Other
    keywords are ignored."""
    return _SchemaSampler(schema, random.Random(key)).value(schema, 0)


def regex_text(pattern: str, rng: random.Random) -> str:
    """Return a text that a simple regular expression matches: literals, classes, repetitions, groups and alternatives.
    Look-arounds and back-references are ignored. An invalid expression gives an empty text."""
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
        text = _parts_text([rng.choice(value)], rng)
    elif kind in ("ANY", "IN"):
        text = "x"
    elif kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        least, most, inner = value
        text = "".join(_parts_text(inner, rng) for _ in range(rng.randint(least, min(int(most), least + 3))))
    elif kind == "SUBPATTERN":
        text = _parts_text(value[-1], rng)
    elif kind == "BRANCH":
        text = _parts_text(rng.choice(value[1]), rng)
    elif kind == "RANGE":
        text = chr(rng.randint(*value))
    elif kind == "CATEGORY":
        text = {"CATEGORY_DIGIT": "7", "CATEGORY_SPACE": " "}.get(str(value), "a")
    return text


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
