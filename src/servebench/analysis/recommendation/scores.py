"""Whether a load level meets an SLO, the score of each entrant, the ranking, and what would change it: another limit, load or
price, or doubtful points."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from servebench.analysis.estimate import COSTS, THROUGHPUT
from servebench.analysis.recommendation.model import Entrant, NotRanked, Score, UseReason, UseReasonKind
from servebench.analysis.recommendation.rules import Range, UseCase
from servebench.analysis.verdict.levels import RankedLevel, metric_interval, metric_value
from servebench.analysis.verdict.model import ComparedPoint
from servebench.analysis.verdict.starts import STARTS_MIN, group_by_start
from servebench.analysis.warnings.catalog import is_wide
from servebench.analysis.warnings.disturbed import taker_of
from servebench.analysis.warnings.load import HALF_WIDTH_SHARE_MAX
from servebench.analysis.within_run import VALUES_MIN, slow_power
from servebench.contracts.estimate import CONFIDENCE
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.contracts.precision import half_width, precision_targets
from servebench.contracts.settings import SloSettings
from servebench.contracts.stored import mapping
from servebench.measure.cost import break_even_price
from servebench.util.arrays import Floats

LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
Status = Literal["met", "missed", "undecided"]

ONE_START_SD = 0.10
"""By how much the latencies of one start are taken to differ from the engine's, where only one was measured: two starts of
vLLM on one machine differed by 19% (vllm#42484), so one differs from their mean by about 10%."""
FAR = 0.8
"""A level whose slowest request took less than this part of the limit meets it, however few its requests are."""
Z_ONE_SIDED = 1.645
SLO_FACTORS = (0.25, 0.5, 2.0, 4.0)


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
    share, variance = float(bad.mean()), float(bad.var())
    count, square = float(bad.size), Z_ONE_SIDED**2
    if variance != 0 and bad.size >= VALUES_MIN:
        # by how much the variance of the share exceeds that of independent requests
        count = bad.size / max(1.0, slow_power(bad - bad.mean()) / (bad.size * variance))
    middle = share + square / (2 * count)
    reach = Z_ONE_SIDED * (share * (1 - share) / count + square / (4 * count**2)) ** 0.5
    end = middle + reach if upper else middle - reach
    return float(end / (1 + square / count))


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The entrants with a score, best first; why the others have none; and those of them that may have one after all, because
    it is undecided whether they meet the SLO."""

    scores: tuple[Score, ...]
    missing: tuple[NotRanked, ...]
    possible: tuple[Score, ...] = ()


def rank(case: UseCase, entrants: Sequence[Entrant]) -> Ranking:
    """Rank the entrants by their score; void points are left out, doubtful ones are marked."""
    found = [(entrant.name, _score(case, entrant)) for entrant in entrants]
    cold, sign = case.measure == "cold_start", 1 if case.lower_is_better else -1
    ranked = [one for _, one in found if isinstance(one, Score) and (cold or one.level is not None)]
    possible = [one for _, one in found if isinstance(one, Score) and not cold and one.level is None]
    without = ((name, one.undecided if isinstance(one, Score) and one.level is None else one) for name, one in found)
    return Ranking(
        scores=tuple(sorted(ranked, key=lambda score: sign * score.value)),
        missing=tuple(NotRanked(name, why) for name, why in without if isinstance(why, UseReason)),
        possible=tuple(possible),
    )


def _score(case: UseCase, entrant: Entrant) -> Score | UseReason:
    """An entrant's score, or why it has none. Without a level it only may have one."""
    if case.measure == "cold_start":
        start = mapping(entrant.run.manifest.get("cold_start"))
        start_s = None if start.get("shared") else start.get("seconds")
        return UseReason(kind=UseReasonKind.NO_COLD_START) if start_s is None else Score(entrant=entrant, value=start_s)
    usable = [level for level in entrant.levels if level.verdict != "void"]
    if not usable:
        codes = tuple(dict.fromkeys(code for level in entrant.levels for code in level.doubts))
        taker = taker_of(row for level in entrant.levels for row in level.rows)
        return UseReason(kind=UseReasonKind.NO_VALID_POINT, codes=codes, taker=taker)
    levels = sorted((one for one in usable if _meets(one.rows, case.require)), key=lambda level: level.level)
    if not levels:
        return UseReason(kind=UseReasonKind.NOT_MET, names=tuple(case.require))
    if case.measure == "within_slo":
        return _score_within_slo(case, entrant, levels)
    if case.measure == "lowest_load":
        if case.max_load is not None and levels[0].level.load > case.max_load:
            lowest = (levels[0].level,)
            return UseReason(kind=UseReasonKind.LOAD_TOO_HIGH, levels=lowest, limit=case.max_load)
        levels = levels[:1]
    best = _best_level(case, levels)
    without = UseReason(kind=UseReasonKind.NO_VALUE, metric=case.metric)
    return without if best is None else _scored(case, entrant, best, worst=best, best=best)


def _score_within_slo(case: UseCase, entrant: Entrant, levels: Sequence[RankedLevel]) -> Score | UseReason:
    counts = levels_met(levels, case.slo)
    level, worst, best = (_best_level(case, levels[:count]) for count in counts)
    doubtful = [one for one in levels if level_status(one, case.slo) == "undecided"]
    undecided = _why_undecided(case, doubtful[0]) if doubtful else None
    if level is not None:
        slo_at = levels[counts[0] - 1].level
        return _scored(case, entrant, level, slo_at=slo_at, worst=worst, best=best, undecided=undecided)
    if counts[0]:
        return UseReason(kind=UseReasonKind.NO_VALUE, metric=case.metric)
    if best is None:
        return UseReason(
            kind=UseReasonKind.SLO_MISSED, levels=(levels[0].level,), names=(describe_limits(case.slo),),
            share=good_share(levels[0], case.slo),
        )  # fmt: skip
    value = metric_value(case.metric, best)
    assert value is not None
    return Score(entrant=entrant, value=value, metric=case.metric, best=best, undecided=undecided)


def _why_undecided(case: UseCase, level: RankedLevel) -> UseReason:
    at, count = (level.level,), sum(point.failed.size for point in level.samples)
    if not count:
        return UseReason(kind=UseReasonKind.NO_REQUESTS, levels=at)
    share, wanted = good_share(level, case.slo), case.slo.attainment
    return UseReason(kind=UseReasonKind.TOO_CLOSE, levels=at, share=share, count=count, limit=wanted)


def _scored(case: UseCase, entrant: Entrant, level: RankedLevel, **facts: Any) -> Score:
    value = metric_value(case.metric, level)
    assert value is not None
    interval = metric_interval(case.metric, level)
    doubtful = level.verdict != "valid"
    return Score(
        entrant=entrant, value=value, at=level.level, level=level, metric=case.metric, interval=interval, doubtful=doubtful,
        **facts,
    )  # fmt: skip


def _best_level(case: UseCase, levels: Sequence[RankedLevel]) -> RankedLevel | None:
    known = [(value, level) for level in levels if (value := metric_value(case.metric, level)) is not None]
    if not known:
        return None
    return (min if case.lower_is_better else max)(known, key=lambda pair: pair[0])[1]


def _meets(rows: Sequence[PointRow], require: Mapping[str, Range]) -> bool:
    known = ((limits, [row.get(column) for row in rows]) for column, limits in require.items())
    return all(None not in own and one.min <= float(np.mean(own)) <= one.max for one, own in known)


def codes_of_mean(level: RankedLevel, entrant: Entrant) -> tuple[str, ...]:
    """Return the warnings of a level's mean: those of its points, but not that they are wide where their mean is known as well as
    a point has to be."""
    ends = metric_interval(THROUGHPUT, level) if len(level.rows) > 1 and is_wide(level.doubts) else None
    load = mapping(entrant.run.config.get("load"))
    try:
        targets = precision_targets(load.get("until"), open_loop=bool(load.get("rate")))
    except (TypeError, ValueError):
        # another version's, or changed by hand
        targets = {}
    if ends is None or half_width(*ends) > targets.get(THROUGHPUT, HALF_WIDTH_SHARE_MAX):
        return level.doubts
    return tuple(code for code in level.doubts if not is_wide([code]))


def what_would_change(
    case: UseCase, entrants: Sequence[Entrant], ranking: Sequence[Score], *, margin: float
) -> Iterator[UseReason]:
    """Yield what would change the answer."""
    leader = ranking[0].entrant.name if ranking else None
    if leader is not None and case.measure == "within_slo":
        yield from _by_limit(case, entrants, leader)
        yield from _still_within_limits(ranking)
    if leader is not None and case.measure in ("best", "within_slo"):
        yield from _by_level(case, entrants, leader, margin)
    if ranking and case.metric in COSTS:
        yield from _by_price(ranking, COSTS[case.metric])
    valid = [replace(one, levels=tuple(level for level in one.levels if level.verdict == "valid")) for one in entrants]
    firm = rank(case, valid).scores
    if firm and firm[0].entrant.name != leader:
        doubted = {one.name: [level for level in one.levels if level.verdict == "doubtful"] for one in entrants}
        name = next((name for name in (leader, firm[0].entrant.name) if name and doubted[name]), None)
        for level in doubted[name] if name else ():
            yield UseReason(kind=UseReasonKind.IN_DOUBT, run=name or "", levels=(level.level,), codes=level.doubts)


def _by_limit(case: UseCase, entrants: Sequence[Entrant], leader: str) -> Iterator[UseReason]:
    name = "ttft_ms" if case.slo.ttft_ms is not None else "e2e_ms" if case.slo.e2e_ms is not None else "tpot_ms"
    for factor in SLO_FACTORS:
        limit = getattr(case.slo, name) * factor
        other_case = case.model_copy(update={"slo": replace(case.slo, **{name: limit})})
        ranking = rank(other_case, entrants).scores
        if not ranking:
            yield UseReason(kind=UseReasonKind.NONE_WITH_LIMIT, metric=name, limit=limit)
        elif (other := ranking[0].entrant.name) != leader:
            yield UseReason(kind=UseReasonKind.LEADS_WITH_LIMIT, run=other, metric=name, limit=limit)


def _still_within_limits(ranking: Sequence[Score]) -> Iterator[UseReason]:
    for score in ranking:
        levels = [level for level in score.entrant.levels if level.verdict != "void"]
        if levels and score.slo_at == max(level.level for level in levels):
            yield UseReason(kind=UseReasonKind.STILL_MET, run=score.entrant.name, levels=(score.slo_at,))


def _by_level(case: UseCase, entrants: Sequence[Entrant], leader: str, margin: float) -> Iterator[UseReason]:
    at: dict[Level, dict[str, float]] = {}
    for entrant in entrants:
        for level in entrant.levels:
            value = metric_value(case.metric, level) if level.verdict != "void" else None
            if value is not None:
                at.setdefault(level.level, {})[entrant.name] = value
    leads: dict[str, list[Level]] = {}
    for load, values in at.items():
        best = (min if case.lower_is_better else max)(values, key=lambda name: values[name])
        own = values.get(leader)
        if own and values[best] and abs(values[best] / own - 1) >= margin:
            leads.setdefault(best, []).append(load)
    return (UseReason(kind=UseReasonKind.LEADS_AT, run=name, levels=tuple(own)) for name, own in leads.items())


def _by_price(ranking: Sequence[Score], rate_metric: str) -> Iterator[UseReason]:
    for score in ranking[1:]:
        rate = metric_value(rate_metric, score.level) if score.level is not None else None
        if rate:
            price = break_even_price(float(rate), ranking[0].value, score.entrant.gpus[1])
            yield UseReason(kind=UseReasonKind.AS_CHEAP, run=score.entrant.name, limit=price)
