"""Service-level objectives: which requests meet the limits, and up to which load enough of them do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servebench.util.arrays import Floats


@dataclass(frozen=True, kw_only=True)
class SloLimits:
    """The limits of a good request; None is no limit. `attainment` is the share of requests that must be good."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    attainment: float = 0.99

    @property
    def description(self) -> str:
        """The limits as text."""
        parts = [
            f"{name} ≤ {limit:g} ms"
            for name, limit in (("TTFT", self.ttft_ms), ("TPOT", self.tpot_ms), ("E2E", self.e2e_ms))
            if limit is not None
        ]
        return f"{' and '.join(parts)} for {100 * self.attainment:g}% of requests" if parts else "no limit"


def good_requests(
    ttft_ms: Floats, tpot_ms: Floats, e2e_ms: Floats, failed: NDArray[np.bool_], limits: SloLimits
) -> NDArray[np.bool_]:
    """Return which requests are good.

    A failed request never is. An undetermined TPOT does not violate its limit; an undetermined TTFT or E2E does.
    """
    good = ~failed
    with np.errstate(invalid="ignore"):
        for values, limit in ((ttft_ms, limits.ttft_ms), (e2e_ms, limits.e2e_ms)):
            if limit is not None:
                good = good & (values <= limit)
        if limits.tpot_ms is not None:
            good = good & (np.isnan(tpot_ms) | (tpot_ms <= limits.tpot_ms))
    return good
