"""Helpers to read quality.parquet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from servebench.contracts.results import SUMMED
from servebench.util.bounded_file import json_object

CHANCE = "chance"
"""The key in a grade's detail of the share that guessing gets right."""


def plain_value(value: Any) -> Any:
    """Return a cell's value; None where it is missing."""
    return None if value is None or value != value else value


def load_text(concurrency: Any, rate: Any) -> str:
    """Return the load of a row as text: `concurrency 8` or `rate 2/s`."""
    known = plain_value(rate)
    return f"rate {known:g}/s" if known is not None else f"concurrency {whole_value(concurrency)}"


def whole_value(value: Any) -> int | None:
    """Return a cell's value as an integer; None where it is missing."""
    return None if plain_value(value) is None else int(value)


def details_of(texts: Iterable[str]) -> dict[str, float]:
    """Return the numbers in the JSON objects that a scorer stored, by key: the mean over the objects that have it.

    Counts of tokens and costs (`_tokens`, `_usd`) are summed. True counts as 1. Keys keep their order of appearance.
    """
    found: dict[str, list[float]] = {}
    for text in texts:
        for key, value in json_object(text).items():
            if isinstance(value, int | float):
                found.setdefault(key, []).append(float(value))
    return {key: sum(values) if key.endswith(SUMMED) else sum(values) / len(values) for key, values in found.items()}
