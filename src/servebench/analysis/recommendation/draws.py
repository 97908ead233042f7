"""A metric at a load level, and its value in each resample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from servebench.analysis import cost
from servebench.analysis.comparison.model import BLOCKS_MIN, ComparedPoint
from servebench.analysis.comparison.resampling import BLOCKS, RESAMPLES, resampled, statistic
from servebench.analysis.rates import pooled_rate_error
from servebench.analysis.slo import SloLimits, good_requests
from servebench.analysis.statistics import Floats
from servebench.contracts.point_row import PointRow

SOURCES: Mapping[str, tuple[str, float | None]] = {
    "output_throughput_tok_s": ("throughput_tok_s", None),
    **{
        f"{name}_ms_p{percent}": (f"{name}_ms", float(percent))
        for name in ("ttft", "tpot", "e2e")
        for percent in (50, 90, 95, 99)
    },
}
"""The array of a ComparedPoint behind each metric, and its percentile."""
COSTS = {"cost_usd_per_mtok": "output_throughput_tok_s", "cost_usd_per_mgood": "goodput_req_s"}
"""The rate behind each cost per million."""


def metric_value(metric: str, row: PointRow, points: Sequence[ComparedPoint]) -> float | None:
    """Return a metric over all repeats of a level where its requests are stored, otherwise the row's value."""
    source = SOURCES.get(metric)
    if source is not None:
        values = _pooled(points, source[0])
        if values.size:
            found = float(statistic(values, source[1]))
            return found if np.isfinite(found) else None
    value = row.get(metric)
    return None if value is None else float(value)


def good_share(points: Sequence[ComparedPoint], limits: SloLimits) -> float:
    """Return the share of requests that met the limits; failed ones never do."""
    good = _good(points, limits)
    return float(good.mean()) if good.size else 0.0


def resampled_metric(
    metric: str,
    row: PointRow,
    points: Sequence[ComparedPoint],
    *,
    limits: SloLimits,
    seed: str,
    price_usd_per_hour: float | None,
    gpu_count: int,
) -> Floats | None:
    """Return the metric of each resample; None when there is too little data."""
    rate_metric = COSTS.get(metric, metric)
    # goodput varies as the engine does, and with which requests are good
    is_goodput = rate_metric == "goodput_req_s"
    source = SOURCES.get("output_throughput_tok_s" if is_goodput else rate_metric)
    if source is None:
        return None
    values = _pooled(points, source[0])
    if values.size < BLOCKS_MIN:
        return None
    rng = np.random.default_rng([ord(letter) for letter in seed])
    if source[0] == "throughput_tok_s":
        error = pooled_rate_error([p.throughput_tok_s for p in points if p.throughput_tok_s is not None])
        rate = row.goodput_req_s if is_goodput else float(values.mean())
        if error is None or not rate:
            return None
        found = float(rate) * np.exp(error.share * rng.standard_t(error.freedom, RESAMPLES))
        if is_goodput:
            found = found * _relative_good_shares(_good(points, limits), rng)
    else:
        found = resampled(values, max(1, len(values) // BLOCKS), source[1], rng)
    if metric in COSTS:
        return np.array([cost.usd_per_million(rate, price_usd_per_hour, gpu_count) or np.nan for rate in found])
    return found


def _pooled(points: Sequence[ComparedPoint], source: str) -> Floats:
    parts = [getattr(point, source) for point in points]
    kept = [part[~np.isnan(part)] for part in parts if part is not None]
    return np.concatenate(kept) if kept else np.empty(0)


def _good(points: Sequence[ComparedPoint], limits: SloLimits) -> Floats:
    """1 for each good request, 0 for the others."""
    kept = [good_requests(p.ttft_ms, p.tpot_ms, p.e2e_ms, p.failed, limits) for p in points if p.failed.size]
    return np.concatenate(kept).astype(np.float64) if kept else np.empty(0)


def _relative_good_shares(good: Floats, rng: np.random.Generator) -> Floats:
    """The share of good requests in each resample, relative to the observed share."""
    if good.size < BLOCKS_MIN or not good.any():
        return np.ones(RESAMPLES)
    drawn = resampled(good, max(1, good.size // BLOCKS), None, rng)
    found: Floats = drawn / good.mean()
    return found
