"""Whether a load level meets an SLO: yes, no, or undecided."""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from servebench.analysis.verdict.levels import RankedLevel
from servebench.analysis.verdict.model import ComparedPoint
from servebench.analysis.verdict.starts import STARTS_MIN, group_by_start
from servebench.analysis.within_run import VALUES_MIN, slow_power
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


def describe_limits(slo: SloSettings) -> str:
    """Return the limits as text."""
    named = (("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms), ("E2E", slo.e2e_ms))
    parts = [f"{name} ≤ {limit:g} ms" for name, limit in named if limit is not None]
    return f"{' and '.join(parts)} for {100 * slo.attainment:g}% of requests" if parts else "no limit"


def good_requests(points: Iterable[ComparedPoint], limits: SloSettings, factor: float = 1.0) -> Floats:
    """Return 1 for each request of these points that would be good if all latencies were `factor` times as long, else 0.

    A failed request never is. An undetermined TPOT does not violate its limit; an undetermined TTFT or E2E does.
    """
    found = [np.empty(0)]
    for point in points:
        good = ~point.failed
        for name, limit in _limits(limits).items():
            values = getattr(point, name)
            good = good & np.where(np.isnan(values), name == "tpot_ms", values * factor <= limit)
        found.append(good.astype(np.float64))
    return np.concatenate(found)


def _limits(limits: SloSettings) -> dict[str, float]:
    """Return the latencies that have a limit."""
    return {name: limit for name in LATENCIES if (limit := getattr(limits, name)) is not None}


def good_share(level: RankedLevel, limits: SloSettings) -> float:
    """Return the share of requests that met the limits; failed ones never do."""
    good = good_requests(level.samples, limits)
    return float(good.mean()) if good.size else 0.0


def levels_met(levels: Sequence[RankedLevel], limits: SloSettings) -> tuple[int, int, int]:
    """Return how many of these levels, in ascending load, meet the limits as all lower ones do: by the observed shares, at
    least, and at most."""
    statuses = [level_status(level, limits) for level in levels]
    observed = [good_share(level, limits) >= limits.attainment for level in levels]
    met, possible = ([one == "met" for one in statuses], [one != "missed" for one in statuses])
    return [*observed, False].index(False), [*met, False].index(False), [*possible, False].index(False)


def level_status(level: RankedLevel, limits: SloSettings) -> Status:
    """Return whether a level meets the limits, as far as its requests and starts can tell.

    Starts of one engine differ, so latencies are also taken longer and shorter by as much as the mean over its starts may be
    off, and as the warnings of their points may make them wrong. The share of bad requests has Wilson's bound (one-sided, 95%),
    with as many requests as the slow waves of the series leave independent (design effect: Rao and Scott 1992, Biometrics 48).
    """
    warned = max((level.weight(name).bound for name in _limits(limits)), default=0.0)
    factor = float(np.exp(_start_error(level, limits))) * (1 + warned)
    slower, faster, far = (good_requests(level.samples, limits, one) for one in (factor, 1 / factor, factor / FAR))
    if not slower.size:
        return "undecided"
    bad_max = 1 - limits.attainment
    if _wilson(1 - slower, upper=True) <= bad_max or (slower.all() and far.all()):
        return "met"
    return "missed" if _wilson(1 - faster, upper=False) > bad_max else "undecided"


def _start_error(level: RankedLevel, limits: SloSettings) -> float:
    """By how much, as a logarithm, the latencies over a level's starts may differ from the engine's."""
    from scipy.special import stdtrit

    starts = group_by_start(level.samples)
    if len(starts) < STARTS_MIN:
        return Z_ONE_SIDED * ONE_START_SD
    errors = [0.0]
    for name in _limits(limits):
        values = [np.concatenate([getattr(point, name) for point in points]) for points in starts]
        finite = [one[np.isfinite(one)] for one in values]
        if all(one.size for one in finite):
            logs = np.log([max(float(np.median(one)), 1e-9) for one in finite])
            errors.append(float(logs.std(ddof=1)) / logs.size**0.5 * float(stdtrit(logs.size - 1, CONFIDENCE)))
    return max(errors)


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
