"""What the points of a run say beside times: cache hits, JSON that fits its schema, facts that were found."""

from __future__ import annotations

from collections.abc import Iterable

from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Point


def content_lines(points: Iterable[Point]) -> list[str]:
    """A line for each subject that a point knows something of, and each level."""
    rows = [point.row for point in points]
    makers = (_cache, _json, _needles)
    return [f"{said} (at {row.level_label})" for make in makers for row in rows if (said := make(row)) is not None]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _cache(row: PointRow) -> str | None:
    """Only where there is something to find: a workload that shares nothing has its doubt when something is found."""
    ideal = row.prefix_cache_hit_rate_ideal
    if not ideal:
        return None
    hit = row.prefix_cache_hit_rate
    if hit is None:
        return f"prefix cache: {_percent(ideal)} of prompt tokens could be hit, the server does not say how many were"
    return f"prefix cache: {_percent(hit)} of prompt tokens hit, {_percent(ideal)} at best"


def _json(row: PointRow) -> str | None:
    share = row.json_compliance
    if share is None:
        return None
    of = "" if row.json_compliance_n is None else f"{row.json_compliance_n} "
    said = f"json: {_percent(share)} of {of}constrained answers fit their schema"
    free = row.json_compliance_unconstrained
    if free is None:
        return said
    cost = [
        f"{name} {row[column]:+.3g} ms"
        for name, column in (("TTFT", "constraint_ttft_ms"), ("TPOT", "constraint_tpot_ms"))
        if row.get(column) is not None
    ]
    return f"{said}, {_percent(free)} of their twins'" + (f"; mean cost: {', '.join(cost)}" if cost else "")


def _needles(row: PointRow) -> str | None:
    share = row.needle_recall
    return None if share is None else f"needles: {_percent(share)} found"
