"""Non-latency metrics of points as lines: cache hits, JSON compliance, needles found."""

from collections.abc import Iterable

from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Point
from servebench.util.figures import short_percent


def content_lines(points: Iterable[Point]) -> list[str]:
    """Return a line for each metric that a point has, with its level."""
    rows = [point.row for point in points]
    describers = (_cache, _json, _needles)
    return [
        f"{text} (at {row.level_label})"
        for describe in describers
        for row in rows
        if (text := describe(row)) is not None
    ]


def _cache(row: PointRow) -> str | None:
    """Only for workloads that share prefixes: hits of others have a warning."""
    ideal = row.prefix_cache_hit_rate_ideal
    if not ideal:
        return None
    hit = row.prefix_cache_hit_rate
    if hit is None:
        return f"prefix cache: hit rate not reported by the server ({short_percent(ideal)} of prompt tokens at best)"
    return f"prefix cache: {short_percent(hit)} of prompt tokens hit ({short_percent(ideal)} at best)"


def _json(row: PointRow) -> str | None:
    share, count = row.json_compliance, row.json_compliance_n
    if share is None:
        return None
    answers = "answers" if count is None else f"{round(share * count)} of {count} answers"
    text = f"JSON (constrained): {answers} match their schema ({short_percent(share)})"
    free = row.json_compliance_unconstrained
    if free is None:
        return text
    text += f"; unconstrained: {short_percent(free)}"
    cost = [
        f"{name} {row[column]:+.3g} ms"
        for name, column in (("TTFT", "constraint_ttft_ms"), ("TPOT", "constraint_tpot_ms"))
        if row.get(column) is not None
    ]
    return f"{text}; mean cost of the constraint: {', '.join(cost)}" if cost else text


def _needles(row: PointRow) -> str | None:
    share = row.needle_recall
    return None if share is None else f"needles: {short_percent(share)} found"
