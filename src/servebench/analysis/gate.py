"""The gate of `servebench compare --max-regression`: which comparisons fail a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from servebench.analysis.comparison.model import Comparison, ComparisonRow
from servebench.analysis.quality.agreement import Agreement
from servebench.analysis.run_comparison import RunComparison

UNDECIDED_RESULTS = ("not enough data", "unequal_settings")


@dataclass(frozen=True)
class Gate:
    """What a pipeline looks at. `limit` is the largest accepted regression, as a share."""

    limit: float
    regressions: tuple[tuple[str, ComparisonRow], ...]
    """(candidate, row) of the metrics that are worse by more than the limit."""
    quality_losses: tuple[tuple[str, Agreement], ...]
    """(candidate, agreement) of the benchmarks that are worse by more than the limit."""
    undecided: tuple[Comparison, ...]

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
        tuple(one.comparison for one in found if one.comparison.result in UNDECIDED_RESULTS),
    )
