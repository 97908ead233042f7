"""The text of a comparison, the same in the terminal, Markdown, HTML and the dashboard."""

from __future__ import annotations

import math

from servebench.analysis.comparison.model import FAILED, Comparison, ComparisonRow, Metric
from servebench.util import figures
from servebench.util.figures import MISSING, change_interval, number, percent

HEADINGS = ("load", "metric", "baseline", "candidate", "change [95%]", "verdict")
PAIRED_MARK = "†"
PAIRED_NOTE = (
    f"{PAIRED_MARK} median change of one request, compared with the same request in the other run. "
    "It may differ from the ratio of the two medians, which are over all requests."
)


def title_of(metric: Metric) -> str:
    """Return a metric's title with its unit."""
    return f"{metric.title}, {metric.unit}" if metric.unit else metric.title


def value_of(value: float | None, metric: Metric) -> str:
    """Return the value of one side."""
    if value is None:
        return MISSING
    if math.isinf(value):
        return "failed"
    return percent(value) if metric is FAILED else number(value)


def change_of(row: ComparisonRow) -> str:
    """Return a row's change with its interval."""
    if row.effect is None:
        return MISSING
    mark = PAIRED_MARK if row.paired else ""
    return f"{figures.change(row.effect)} {change_interval(row.low, row.high)}{mark}"


def verdict_of(row: ComparisonRow) -> str:
    """Return a row's verdict; in brackets if it does not compete."""
    text = f"no difference > {percent(row.bound)}" if row.result == "no difference" else str(row.result)
    return text if row.competes or row.result in ("not enough data", "unequal_settings") else f"({text})"


def cells_of(row: ComparisonRow) -> tuple[str, ...]:
    """Return the cells of a row under HEADINGS."""
    return (
        row.level,
        title_of(row.metric),
        value_of(row.baseline, row.metric),
        value_of(row.candidate, row.metric),
        change_of(row),
        verdict_of(row),
    )


def paired_note(comparison: Comparison) -> str | None:
    """Return what the mark of paired rows means, where there are any."""
    return PAIRED_NOTE if any(row.paired for row in comparison.rows) else None
