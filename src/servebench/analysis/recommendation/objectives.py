"""Whether a load level meets an SLO: yes, no, or undecided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from servebench.analysis.rates import VALUES_MIN, slow_power
from servebench.analysis.slo import good_requests
from servebench.analysis.verdict.levels import RankedLevel, pooled_latencies
from servebench.analysis.verdict.starts import STARTS_MIN, group_by_start
from servebench.analysis.warnings.weighing import weigh
from servebench.contracts.estimate import CONFIDENCE
from servebench.contracts.settings import SloSettings
from servebench.util.arrays import Floats

LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
Status = Literal["met", "missed", "undecided"]

ONE_START_SD = 0.10
"""By how much the latencies of one start are taken to differ from the engine's, where only one was measured: two starts of
vLLM on one machine differed by 19% (vllm#42484), so one differs from their mean by about 10%."""
FAR = 0.8
"""A level whose slowest request took less than this part of the limit meets it, however few its requests are."""
Z_ONE_SIDED = 1.645


@dataclass(frozen=True, kw_only=True)
class SloRange:
    """Up to which level, in ascending load, an SLO is met: by the observed shares, at least, and at most. None: by no level."""

    observed: int | None
    at_least: int | None
    at_most: int | None


def good_share(level: RankedLevel, limits: SloSettings) -> float:
    """Return the share of requests that met the limits; failed ones never do."""
    good = _good(level, limits, 1.0)
    return float(good.mean()) if good.size else 0.0


def slo_range(levels: Sequence[RankedLevel], limits: SloSettings) -> SloRange:
    """Return up to which of these levels, in ascending load, the limits are met. Every lower level must meet them, too."""
    statuses = [level_status(level, limits) for level in levels]
    observed = [good_share(level, limits) >= limits.attainment for level in levels]
    return SloRange(
        observed=_last_before_false(observed),
        at_least=_last_before_false([status == "met" for status in statuses]),
        at_most=_last_before_false([status != "missed" for status in statuses]),
    )


def _last_before_false(flags: Sequence[bool]) -> int | None:
    count = next((index for index, flag in enumerate(flags) if not flag), len(flags))
    return count - 1 if count else None


def level_status(level: RankedLevel, limits: SloSettings) -> Status:
    """Return whether a level meets the limits, as far as its requests and starts can tell.

    Starts of one engine differ, so latencies are also taken longer and shorter by as much as the mean over its starts may be
    off, and as the warnings of their points may make them wrong. The share of bad requests has Wilson's bound (one-sided, 95%),
    with as many requests as the slow waves of the series leave independent (design effect: Rao and Scott 1992, Biometrics 48).
    """
    factor = float(np.exp(_start_error(level, limits))) * _warned(level, limits)
    slower, faster = _good(level, limits, factor), _good(level, limits, 1 / factor)
    if not slower.size:
        return "undecided"
    bad_max = 1 - limits.attainment
    if _wilson(1 - slower, upper=True) <= bad_max or (slower.all() and _good(level, limits, factor / FAR).all()):
        return "met"
    return "missed" if _wilson(1 - faster, upper=False) > bad_max else "undecided"


def _start_error(level: RankedLevel, limits: SloSettings) -> float:
    """By how much, as a logarithm, the latencies over a level's starts may differ from the engine's."""
    from scipy.special import stdtrit

    names = [name for name in LATENCIES if getattr(limits, name) is not None]
    starts = group_by_start(level.samples)
    if len(starts) < STARTS_MIN:
        return Z_ONE_SIDED * ONE_START_SD
    errors = [0.0]
    for name in names:
        values = [np.concatenate([getattr(point, name) for point in points]) for points in starts]
        finite = [one[np.isfinite(one)] for one in values]
        if all(one.size for one in finite):
            logs = np.log([max(float(np.median(one)), 1e-9) for one in finite])
            errors.append(float(logs.std(ddof=1)) / logs.size**0.5 * float(stdtrit(logs.size - 1, CONFIDENCE)))
    return max(errors)


def _warned(level: RankedLevel, limits: SloSettings) -> float:
    """Return by what factor the warnings of a level's points may make its latencies wrong, where that is bounded."""
    names = [name for name in LATENCIES if getattr(limits, name) is not None]
    return 1 + max((weigh([(row.doubts, row) for row in level.rows], name).bound for name in names), default=0.0)


def _good(level: RankedLevel, limits: SloSettings, factor: float) -> Floats:
    """1 for each request that would meet the limits if all latencies were `factor` times as long, else 0."""
    ttft, tpot, e2e, failed = pooled_latencies(level.samples)
    return good_requests(ttft * factor, tpot * factor, e2e * factor, failed > 0, limits).astype(np.float64)


def _wilson(bad: Floats, *, upper: bool) -> float:
    """Wilson's bound of the share of bad requests, in the order sent, with their effective number."""
    share = float(bad.mean())
    count = bad.size / design_effect(bad)
    square = Z_ONE_SIDED**2
    middle = share + square / (2 * count)
    reach = Z_ONE_SIDED * (share * (1 - share) / count + square / (4 * count**2)) ** 0.5
    end = middle + reach if upper else middle - reach
    return float(end / (1 + square / count))


def design_effect(flags: Floats) -> float:
    """Return by how much the variance of a share exceeds that of independent requests; at least 1."""
    variance = float(flags.var())
    if variance == 0 or flags.size < VALUES_MIN:
        return 1.0
    return max(1.0, slow_power(flags - flags.mean()) / (flags.size * variance))
