"""Service-level objectives: which requests meet the limits, and up to which load enough of them do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servebench.contracts.settings import SloSettings
from servebench.util.arrays import Floats


def describe_limits(slo: SloSettings) -> str:
    """Return the limits as text."""
    named = (("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms), ("E2E", slo.e2e_ms))
    parts = [f"{name} ≤ {limit:g} ms" for name, limit in named if limit is not None]
    return f"{' and '.join(parts)} for {100 * slo.attainment:g}% of requests" if parts else "no limit"


def good_requests(
    ttft_ms: Floats, tpot_ms: Floats, e2e_ms: Floats, failed: NDArray[np.bool_], limits: SloSettings
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
