"""Quality results as lines."""

from collections.abc import Sequence

from servebench.contracts.results import SUMMED, QualitySummary
from servebench.util.figures import number, percent, percent_interval


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
