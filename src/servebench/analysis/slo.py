"""Service levels: which share of requests met the limits, and up to which load that was enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SloLimits:
    """What a good request keeps to; null is no limit. `attainment` is the share of requests that must be good."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    attainment: float = 0.99

    @property
    def any(self) -> bool:
        """Whether there is a limit at all."""
        return any(limit is not None for limit in (self.ttft_ms, self.tpot_ms, self.e2e_ms))

    def words(self) -> str:
        """The limits in words."""
        parts = [
            f"{name} ≤ {limit:g} ms"
            for name, limit in (("TTFT", self.ttft_ms), ("TPOT", self.tpot_ms), ("E2E", self.e2e_ms))
            if limit is not None
        ]
        return f"{' and '.join(parts)} for {100 * self.attainment:g} % of requests" if parts else "no limit"


def good(
    ttft_ms: Floats, tpot_ms: Floats, e2e_ms: Floats, failed: NDArray[np.bool_], limits: SloLimits
) -> NDArray[np.bool_]:
    """Which requests are good. A failed one never is. One whose TPOT is undetermined does not fail that limit; one
    without TTFT or E2E does."""
    kept = ~failed
    with np.errstate(invalid="ignore"):
        for values, limit in ((ttft_ms, limits.ttft_ms), (e2e_ms, limits.e2e_ms)):
            if limit is not None:
                kept = kept & (values <= limit)
        if limits.tpot_ms is not None:
            kept = kept & (np.isnan(tpot_ms) | (tpot_ms <= limits.tpot_ms))
    return kept


def slo_point(levels: Sequence[tuple[float, float]], limits: SloLimits) -> int | None:
    """Which of (load, share of good requests) is the highest load up to which every level meets the limits.

    Returns its index; None when even the lowest load does not. A level that meets them above one that does not is luck or
    noise and does not count.
    """
    best = None
    for index in sorted(range(len(levels)), key=lambda i: levels[i][0]):
        if levels[index][1] < limits.attainment:
            break
        best = index
    return best
