"""Read JSON values that a server sent, leniently: objects, texts and counts."""

import json
from codecs import BOM_UTF8
from collections.abc import Mapping
from typing import Any

import orjson

COUNT_MAX = 2**31 - 1
"""The largest count that the tables can hold; a larger one is not a count."""


YEAR_MS = 365 * 86_400_000.0
LONGEST = 1e18
"""A year in nanoseconds has 17 digits."""


def load_object(data: bytes, list_name: str | None = None) -> dict[str, Any] | None:
    """Return the JSON object in `data`, even if some bytes are not UTF-8 or a surrogate pair is cut; None for all else. A list
    becomes the field `list_name` of an object, if that is given."""
    value: Any
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            value = json.loads(decode_text(data.removeprefix(BOM_UTF8)))
        except (ValueError, RecursionError):
            return None
    value = {list_name: value} if list_name and isinstance(value, list) else value
    return value if isinstance(value, dict) else None


def object_at(document: object, *keys: str) -> Mapping[str, Any]:
    """Return the object at a path of keys; empty where there is none."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}


def decode_text(data: bytes) -> str:
    """Return `data` as text; bytes that are not UTF-8 become U+FFFD."""
    return data.decode("utf-8", errors="replace")


def join_text(parts: list[str]) -> str:
    """Join the parts of a text: a surrogate pair that was cut between them is whole again, a lone half becomes U+FFFD."""
    text = "".join(parts)
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def milliseconds(value: object, unit_ms: float = 1.0) -> float | None:
    """Return a duration in units of `unit_ms` as milliseconds; None for what is not a finite number from 0 to a year."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    # an integer may have more digits than a float can hold
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LONGEST:
        return None
    duration_ms = value * unit_ms
    return duration_ms if duration_ms <= YEAR_MS else None


def between(moments: Mapping[str, Any], start: str, end: str) -> float | None:
    """Return the milliseconds between two moments in seconds; None if one is missing or no number, or they are in no order."""
    first, last = moments.get(start), moments.get(end)
    # as above, an integer may be too long for a float
    if not all(isinstance(one, int | float) and abs(one) <= LONGEST for one in (first, last)):
        return None
    return milliseconds(last - first, 1000.0)  # type: ignore[operator]


def count_of(value: object) -> int | None:
    """Return `value` if it is a count, else None. Gateways write it as 3.0, or "3" (int64 of protobuf)."""
    if (type(value) is float and value.is_integer()) or (type(value) is str and value.isdecimal() and len(value) < 11):
        value = int(value)
    return value if type(value) is int and 0 <= value <= COUNT_MAX else None
