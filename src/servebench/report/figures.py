"""How a figure is written for a person: rounded to what it can carry, with its interval, a hyphen when it is missing."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from servebench.contracts.stored import MISSING


def number(value: float | int | None, digits: int = 3) -> str:
    """`value` with this many significant digits and no exponent; a dash for a missing one, ∞ for an infinite one."""
    if value is None or value != value:
        return MISSING
    if value == 0:
        return "0"
    if value in (inf, -inf):
        return "∞" if value > 0 else "-∞"
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:,.{max(0, digits - magnitude)}f}"


def with_interval(row: Mapping[str, Any], column: str) -> str:
    """A figure and half the width of its 95 % interval (the larger side), when the row has one."""
    value, low, high = row.get(column), row.get(f"{column}_low"), row.get(f"{column}_high")
    text = number(value)
    if value is None or low is None or high is None:
        return text
    return f"{text} ±{number(max(value - low, high - value), 2)}"


def seconds(value: float) -> str:
    """A span of time as `m:ss`, or with hours where there are any."""
    whole = round(value)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
