"""The gate of `servebench compare --max-regression`: which comparisons fail a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from servebench.analysis.quality.agreement import Agreement
from servebench.analysis.verdict.model import Comparison, ComparisonRow


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
    undecided: tuple[tuple[Comparison, ComparisonRow | None], ...]
    """The comparisons that cannot be judged as a whole (no row), and the rows that are missing or may be worse than the limit."""

    @property
    def failed(self) -> bool:
        """Whether something is worse by more than the limit."""
        return bool(self.regressions or self.quality_losses)


def evaluate_gate(found: Sequence[Comparison], limit: float) -> Gate:
    """Return which comparisons fail the limit and which cannot be decided."""
    return Gate(
        limit,
        tuple((one.candidate, row) for one in found for row in one.regressions if abs(row.effect or 0) > limit),
        tuple((one.candidate, a) for one in found for a in one.agreements if a.lost > limit),
        tuple((one, row) for one in found for row in _undecided(one, limit)),
    )


def _undecided(comparison: Comparison, limit: float) -> list[ComparisonRow | None]:
    """Return what cannot be judged: None for a comparison as a whole, or rows; empty when every metric is within the limit."""
    judged = [row for row in comparison.rows if row.competes and row.p_corrected is not None]
    if comparison.result == "unequal_settings" or not judged:
        return [None]
    return [
        *(row for row in comparison.rows if row.level_missing),
        *(row for row in judged if row.worst_case > limit),
    ]
