"""The gate of `servebench compare --max-regression`: which comparisons fail a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from servebench.analysis.comparison.model import FAILED, Comparison, ComparisonRow
from servebench.analysis.quality.agreement import Agreement
from servebench.analysis.run_comparison import RunComparison
from servebench.contracts.point_row import level_words


@dataclass(frozen=True)
class Gate:
    """What a pipeline looks at. `limit` is the largest accepted regression, as a share.

    It passes when every metric is shown to be worse by no more than the limit (non-inferiority: each row's 95% interval
    ends within it), not merely when no regression was found.
    """

    limit: float
    regressions: tuple[tuple[str, ComparisonRow], ...]
    """(candidate, row) of the metrics that are worse by more than the limit."""
    quality_losses: tuple[tuple[str, Agreement], ...]
    """(candidate, agreement) of the benchmarks that are worse by more than the limit."""
    undecided: tuple[tuple[str, str], ...]
    """(candidate, why) of the comparisons that cannot be judged, and of the metrics that may be worse than the limit."""

    @property
    def failures(self) -> tuple[str, ...]:
        """Why the gate fails, one line each."""
        return (
            *(f"{name}: {row.description}" for name, row in self.regressions),
            *(f"{name}: {agreement.swapped().sentence}" for name, agreement in self.quality_losses),
        )


def evaluate_gate(found: Sequence[RunComparison], limit: float) -> Gate:
    """Return which comparisons fail the limit and which cannot be decided."""
    return Gate(
        limit,
        tuple(
            (one.comparison.candidate, row)
            for one in found
            for row in one.comparison.regressions
            if abs(row.effect or 0) > limit
        ),
        tuple((one.comparison.candidate, a) for one in found for a in one.agreements if a.lost > limit),
        tuple((one.comparison.candidate, why) for one in found for why in _undecided(one.comparison, limit)),
    )


def _undecided(comparison: Comparison, limit: float) -> list[str]:
    """Return why a comparison cannot be judged: as a whole, or row by row; empty when every metric is within the limit."""
    judged = [row for row in comparison.rows if row.competes and row.p_corrected is not None]
    if comparison.result == "unequal_settings" or not judged:
        return [comparison.summary]
    unmeasured = [f"{level_words(row.level)}: {row.why}" for row in comparison.rows if row.level_missing]
    return unmeasured + [
        f"{row.description}: up to {100 * worst:.1f}{' points' if row.metric is FAILED else '%'} worse is possible, more than "
        f"the limit of {100 * limit:g}%; more starts narrow the interval (study.starts)"
        for row in judged
        if (worst := row.worst_case) > limit
    ]
