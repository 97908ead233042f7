"""The text of a comparison, the same in the terminal, Markdown, HTML and the dashboard."""

import math

from servebench.analysis.comparison.methods import ONE_START, WITHIN_RUN
from servebench.analysis.comparison.model import FAILED, Comparison, ComparisonRow, Metric
from servebench.util import figures
from servebench.util.figures import MISSING, change_interval, number, percent

HEADINGS = ("load", "metric", "baseline", "candidate", "change [95%]", "verdict")
ONE_START_NOTE = (
    "The intervals are of these two starts. Two starts of one engine differ, so they say nothing of the engines."
)
OPEN_LOOP_NOTE = "At a rate of arrivals TTFT and E2E count from the schedule."
OF_ONE_ROW = "Each interval is that of its row alone; verdicts allow for the number of rows."


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
    return f"{figures.change(row.effect)} {change_interval(row.low, row.high)}"


def verdict_of(row: ComparisonRow) -> str:
    """Return a row's verdict, which never contradicts its interval; in brackets if it does not compete."""
    if row.method == WITHIN_RUN and row.result == "not enough data":
        return "one start"
    if row.result == "not enough data" and row.p_corrected is not None:
        return "may be chance" if row.may_be_chance else "not decided"
    text = result_of(row)
    return text if row.competes or row.result in ("not enough data", "unequal_settings") else f"({text})"


def result_of(found: Comparison | ComparisonRow) -> str:
    """Return the result of a comparison, or of a row, in words."""
    return f"differ by ≤ {percent(found.bound)}" if found.result == "no difference" else str(found.result)


def reason_of(row: ComparisonRow) -> str:
    """Return why a row has no verdict, apart from what its verdict says already."""
    return "; ".join(part for part in row.why.split("; ") if part and part != ONE_START)


def reason_numbers(comparison: Comparison) -> dict[str, int]:
    """Return the number of each reason, in the order of the rows: rows show numbers, each reason is printed once."""
    reasons = dict.fromkeys(reason for row in comparison.rows if (reason := reason_of(row)))
    return {reason: number for number, reason in enumerate(reasons, 1)}


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


def starts_note(comparison: Comparison) -> str | None:
    """Return what the intervals rest on; None where nothing is compared."""
    methods = list(dict.fromkeys(row.method for row in comparison.rows if row.method))
    open_loop = any(
        row.level.endswith("/s") and row.metric.title.startswith(("TTFT", "E2E")) for row in comparison.rows
    )
    late = " " + OPEN_LOOP_NOTE if open_loop else ""
    if WITHIN_RUN in methods:
        return ONE_START_NOTE + late
    several = " " + OF_ONE_ROW if any(row.may_be_chance for row in comparison.rows) else ""
    return f"Change with its 95% interval: {'; '.join(methods)}.{several}{late}" if methods else None
