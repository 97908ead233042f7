"""Figures as text for people: rounded, with their interval, a hyphen where a value is missing."""

import time
from collections.abc import Sequence
from math import floor, inf, isfinite, log10
from typing import Any, Protocol

MISSING = "-"
DECIMALS_FROM, DECIMALS_MAX = 0.01, 9
"""Smaller values, such as prices, have more decimals than digits, up to so many."""


class ColumnValues(Protocol):
    """Columns by name."""

    def get(self, name: str, /) -> Any:
        """Return the value of a column, None for a missing one."""


def number(value: float | int | None, digits: int = 3) -> str:
    """Return `value` with this many significant digits and no exponent, from 0.01 to 1 with as many decimals; ∞ for an infinite
    value."""
    if value is None or value != value:
        return MISSING
    if value == 0:
        return "0"
    if value in (inf, -inf):
        return "∞" if value > 0 else "-∞"
    # 99.97 becomes 100, which has one decimal less
    decimals = digits - 1 - floor(log10(float(f"{abs(value):.{digits - 1}e}")))
    most = digits if abs(value) >= DECIMALS_FROM else DECIMALS_MAX
    return f"{value:z,.{min(max(0, decimals), most)}f}"


def listed(texts: Sequence[str]) -> str:
    """Return texts as a list in a sentence: `1, 4 and 16`."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def short_number(value: float | None) -> str:
    """Return `value` with at most three significant digits, without zeros at its end: `97`, `1,960`, `0.2`."""
    text = MISSING if value is None else f"{value:.3g}"
    return f"{float(text):,.0f}" if "e+" in text else text


def with_interval(row: ColumnValues, column: str) -> str:
    """Return a column's value with half the width of its 95% interval (the larger side) where the row has one. The half has two
    significant digits, and the value no digit beyond them: `2,060 ±160`, `78 ±16`, `99.2 ±1.5`."""
    return plus_minus(row.get(column), row.get(f"{column}_low"), row.get(f"{column}_high"))


def plus_minus(value: float | None, low: float | None, high: float | None) -> str:
    """Return a value with half the width of its interval (the larger side), as `with_interval` does."""
    text = number(value)
    if value is None or low is None or high is None:
        return text
    half = max(value - low, high - value)
    if not isfinite(half) or half <= 0:
        return f"{text} ±{number(half, 2)}"
    # 9.97 becomes 10, which has one decimal less
    decimals = 1 - floor(log10(float(f"{half:.1e}")))
    return f"{round(value, decimals):,.{max(0, decimals)}f} ±{round(half, decimals):,.{max(0, decimals)}f}"


def rough(value: float | None) -> str:
    """Return `value` rounded to two significant digits: `3,600`, `0.12`."""
    if value is None or not isfinite(value) or value == 0:
        return number(value)
    decimals = 1 - floor(log10(abs(value)))
    return f"{round(value, decimals):,.{max(0, decimals)}f}"


def percent(share: float | None) -> str:
    """Return a share as a percentage with one decimal."""
    return MISSING if share is None else f"{100 * share:.1f}%"


def short_percent(share: float, digits: int = 3) -> str:
    """Return a share as a percentage with at most this many significant digits, and no exponent."""
    return f"{100 * share:.{digits}g}%" if share < 1 else f"{100 * share:.0f}%"


def change(share: float | None) -> str:
    """Return a relative change as a signed percentage."""
    return MISSING if share is None else f"{_signed(share)}%"


def change_interval(low: float | None, high: float | None) -> str:
    """Return the interval of a relative change as `[low, high]`, in percent."""
    return f"[{_signed(low)}, {_signed(high)}]"


def _signed(share: float | None) -> str:
    if share is None:
        return MISSING
    return f"{100 * share:+.1f}" if isfinite(share) else ("+∞" if share > 0 else "-∞")


def percent_interval(low: float | None, high: float | None) -> str:
    """Return an interval of shares as `[low, high]`, in percent."""
    return f"[{', '.join(percent(end).removesuffix('%') for end in (low, high))}]"


def local_time(stamp_s: float | None) -> str:
    """Return a time stamp as local date and time."""
    try:
        return MISSING if stamp_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(stamp_s))
    except (OverflowError, OSError, ValueError, TypeError):
        return MISSING  # no time that there is


def seconds(value: float) -> str:
    """Return a duration as `m:ss`, or `h:mm:ss` from an hour on."""
    whole = round(value)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def duration(seconds: float) -> str:
    """Return a duration in whole seconds, minutes or hours, as an estimate is given."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
