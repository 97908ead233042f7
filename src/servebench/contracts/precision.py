"""How precisely a point has to be known before it ends (`load.until`), and how long a study may take to decide
(`study.until`)."""

import re
from collections.abc import Mapping
from dataclasses import fields

from servebench.contracts.point_id import PointId
from servebench.contracts.point_row import PointRow

CLOSED_LOOP = ("output_throughput_tok_s", "ttft_ms_p50")
"""What has to be precise where `load.until` names no metric."""
OPEN_LOOP = ("ttft_ms_p50", "itl_ms_mean")
"""The same at a rate of arrivals, which decides on the throughput."""
WHOLE_ANSWERS = "e2e_ms_mean"
"""The same where answers have no tokens (embeddings, rerank)."""

WINDOW_S_MIN = 5.0
"""A shorter window holds too few engine steps, and one pause of a second moves its throughput by a fifth."""

LOOKS = (*range(1, 9), 10, 12, 16, 24)
"""The numbers of starts after which `study.until=decided` looks whether a decision is known: after one only where earlier starts
show how starts differ. After the last nothing is measured any more."""

VOID_ATTEMPTS = 3
"""So often `study.until=decided` measures a point that is void, each time on another start of the engine."""

DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)")
SECONDS_IN = {"s": 1, "m": 60, "h": 3600}

Until = str | float | Mapping[str, str | float] | None


def may_be_replaced(verdict: str | None, point: str) -> bool:
    """Return whether another start may replace a point of this name: it is void, and was not tried VOID_ATTEMPTS times."""
    return verdict == "void" and PointId.parse(point).attempt + 1 < VOID_ATTEMPTS


def precision_metrics() -> tuple[str, ...]:
    """Return the columns that can be named: those with an interval over requests."""
    names = {item.name for item in fields(PointRow)}
    return tuple(name for name in names if f"{name}_low" in names and name.split("_")[0] not in ("json", "quality"))


def precision_targets(until: Until, *, open_loop: bool) -> dict[str, float]:
    """Return half the width that the interval of each metric may have, as a share of it; empty for no `until`.

    Raises ValueError with one line for a metric without an interval, or a value that is not a share between 0 and 1.
    """
    if until is None:
        return {}
    if not isinstance(until, Mapping):
        share = share_of("load.until", until)
        return dict.fromkeys(OPEN_LOOP if open_loop else CLOSED_LOOP, share)
    known = precision_metrics()
    for name in until:
        if name not in known:
            raise ValueError(f"load.until.{name} has no interval; use one of {', '.join(sorted(known))}")
    return {name: share_of(f"load.until.{name}", value) for name, value in until.items()}


def half_width(low: float, high: float) -> float:
    """Return half the width of an interval as a share of its middle."""
    return (high - low) / (high + low) if high + low > 0 else float("inf")


def share_of(key: str, value: str | float) -> float:
    """Return a share between 0 and 1 that is written as `5%` or 0.05. Raises ValueError with one line for another value."""
    text = value.strip() if isinstance(value, str) else f"{value:g}"
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise ValueError(f"{key} must be a share such as 5% or 0.05 (got {text})")
    return share


def seconds_of(key: str, value: str | float) -> float:
    """Return the seconds of a duration such as `90s`, `60m` or `2h`. Raises ValueError with one line for another value."""
    found = DURATION.fullmatch(str(value).strip())
    seconds = float(found[1]) * SECONDS_IN[found[2]] if found else 0.0
    if not 0 < seconds < float("inf"):
        given = f"{value:g}" if isinstance(value, float) else value
        raise ValueError(f"{key} must be a duration such as 90s, 60m or 2h (got {given})")
    return seconds
