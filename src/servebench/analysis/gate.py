"""Compare regressions with a limit: the gate of `servebench compare --max-regression`."""

from __future__ import annotations

from collections.abc import Sequence

from servebench.analysis.compare import Comparison, ComparisonRow
from servebench.analysis.rightness import Agreement

UNJUDGED_RESULTS = ("not enough data", "unequal_settings")


def speed_regressions(comparisons: Sequence[Comparison], limit: float) -> list[tuple[str, ComparisonRow]]:
    """Return the regressions larger than `limit` (a share), each with the candidate's name."""
    return [(one.candidate, row) for one in comparisons for row in one.regressions if abs(row.effect or 0) > limit]


def quality_regressions(
    comparisons: Sequence[Comparison], graded: Sequence[Sequence[Agreement]], limit: float
) -> list[str]:
    """Return one line for each benchmark in which a candidate loses more than `limit` of the baseline's right answers."""
    return [
        f"{one.candidate}: {answer.turned().sentence}"
        for one, answers in zip(comparisons, graded, strict=True)
        for answer in answers
        if answer.lost > limit
    ]


def unjudged(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons that allow no verdict."""
    return [one for one in comparisons if one.result in UNJUDGED_RESULTS]
