"""Non-latency metrics of points as lines: cache hits, JSON compliance, needles found."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import SUMMED, Point, QualitySummary
from servebench.util.figures import number, percent, percent_interval, short_percent

MEANS = (
    *("prefix_cache_hit_rate", "prefix_cache_hit_rate_ideal", "needle_recall"),
    *("json_compliance", "json_compliance_unconstrained", "constraint_ttft_ms", "constraint_tpot_ms"),
)
CACHE_SHOWN = 0.05
"""Hits below this share of the prompt tokens, at best too, are those of what the chat template shares."""


def content_lines(points: Iterable[Point], *, verbose: bool = False) -> list[str]:
    """Return a line for each metric and level, of its points together; `verbose` adds cache hits below CACHE_SHOWN."""
    rows = [point.row for point in points]
    if not verbose:
        rows = [replace(row, prefix_cache_hit_rate_ideal=None) if not shares_prefixes(row) else row for row in rows]
    levels: dict[Level, list[PointRow]] = {}
    for row in rows:
        levels.setdefault(row.level, []).append(row)
    describers = (_cache, _json, _needles)
    return [
        f"{text} (at {level}{f', mean of {len(own)} points' if len(own) > 1 else ''})"
        for describe in describers
        for level, own in levels.items()
        if (text := describe(_mean_row(own))) is not None
    ]


def _mean_row(rows: Sequence[PointRow]) -> PointRow:
    """Return the points of one level as one row: means of what they have, and how many answers there are in all."""
    known = {name: [value for row in rows if (value := row.get(name)) is not None] for name in MEANS}
    means: dict[str, Any] = {name: fmean(values) if values else None for name, values in known.items()}
    graded = [(row.json_compliance, row.json_compliance_n) for row in rows]
    counted = [(share, count) for share, count in graded if share is not None and count]
    if not counted:
        return replace(rows[0], **means)
    count = sum(count for _, count in counted)
    means["json_compliance"] = sum(share * own for share, own in counted) / count
    return replace(rows[0], **means, json_compliance_n=count)


def shares_prefixes(row: PointRow) -> bool:
    """Return whether prompts of a point share more than the chat template."""
    return max(row.prefix_cache_hit_rate or 0.0, row.prefix_cache_hit_rate_ideal or 0.0) >= CACHE_SHOWN


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
    costs = {"TTFT": row.constraint_ttft_ms, "TPOT": row.constraint_tpot_ms}
    cost = [f"{name} {value:+.3g} ms" for name, value in costs.items() if value is not None]
    return f"{text}; mean cost of the constraint: {', '.join(cost)}" if cost else text


def _needles(row: PointRow) -> str | None:
    share = row.needle_recall
    return None if share is None else f"needles: {short_percent(share)} found"


def search_lines(search: Mapping[str, Any] | None) -> list[str]:
    """Return what a search for a level found, how, and its caveats."""
    if search is None:
        return []
    caveats = (f"  but: {caveat}" for caveat in search["caveats"])
    return [f"search: {search['said']}", f"  method: {search['how']}", *caveats]


def quality_line(summary: QualitySummary) -> str:
    """Return the result of a benchmark in one line."""
    if summary.value is None:
        return f"quality: {summary.benchmark} at {summary.at}: no answer could be graded"
    of = f"{summary.measure}, of {summary.n}" if summary.means != "right" else f"{summary.measure} of {summary.n}"
    known = summary.low is not None and summary.high is not None
    interval = f" {percent_interval(summary.low, summary.high)}" if known else ""
    # parity asks everything twice, and its rows are the answers alone
    alone = " (alone)" if summary.benchmark == "parity" else ""
    parts = [
        f"{number(summary.right_per_s)} right answers/s" if summary.right_per_s is not None else "",
        f"latency p50 {number(summary.latency_ms_p50)} ms{alone}" if summary.latency_ms_p50 is not None else "",
        f"mean score {summary.score:.3f}" if summary.score is not None and summary.accuracy is not None else "",
        f"{summary.unanswered} not answered" if summary.unanswered else "",
        f"{summary.with_thinking} with thinking" if summary.with_thinking else "",
        f"{summary.unfinished_thinking} ended inside it" if summary.unfinished_thinking else "",
    ]
    more = ", ".join(filter(None, parts))
    result = f"{percent(summary.value)} {of}{interval} at {summary.at}"
    return f"quality: {summary.benchmark} {result}{': ' if more else ''}{more}"


def quality_lines(summaries: Sequence[QualitySummary]) -> list[str]:
    """Return a line for each benchmark and load, then each warning once."""
    lines = []
    for summary in summaries:
        lines.append(quality_line(summary))
        means = {key: value for key, value in summary.details.items() if not key.endswith(SUMMED)}
        sums = {key: value for key, value in summary.details.items() if key.endswith(SUMMED) and value}
        for title, numbers in (("mean", means), ("total", sums)):
            if numbers:
                text = ", ".join(f"{key.replace('_', ' ')} {_amount(key, value)}" for key, value in numbers.items())
                lines.append(f"  {summary.benchmark} {title}: {text}")
    if any(summary.emulated for summary in summaries):
        lines.append(
            "  emulated: the answers of an emulated engine have no meaning; these lines only show that it was asked"
        )
    warnings = dict.fromkeys(f"  {d.code}: {d.message}; {d.remedy}" for summary in summaries for d in summary.doubts)
    return [*lines, *warnings]


def _amount(key: str, value: float) -> str:
    return f"{value:,.0f}" if key.endswith("_tokens") else number(value)
