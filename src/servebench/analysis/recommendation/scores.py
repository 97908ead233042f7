"""The score of each entrant, and the ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from servebench.analysis.estimate import THROUGHPUT
from servebench.analysis.recommendation.model import Entrant, NotRanked, Score, UseReason, UseReasonKind
from servebench.analysis.recommendation.objectives import describe_limits, good_share, level_status, levels_met
from servebench.analysis.recommendation.rules import Range, UseCase
from servebench.analysis.verdict.levels import RankedLevel, metric_interval, metric_value
from servebench.analysis.warnings.catalog import is_wide
from servebench.analysis.warnings.disturbed import taker_of
from servebench.analysis.warnings.load import HALF_WIDTH_SHARE_MAX
from servebench.contracts.point_row import PointRow
from servebench.contracts.precision import half_width, precision_targets
from servebench.contracts.stored import mapping


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The entrants with a score, best first; why the others have none; and those of them that may have one after all, because
    it is undecided whether they meet the SLO."""

    scores: tuple[Score, ...]
    missing: tuple[NotRanked, ...]
    possible: tuple[Score, ...] = ()


def rank(case: UseCase, entrants: Sequence[Entrant]) -> Ranking:
    """Rank the entrants by their score; void points are left out, doubtful ones are marked."""
    scores: list[Score] = []
    possible: list[Score] = []
    missing = []
    for entrant in entrants:
        found = _score(case, entrant)
        if isinstance(found, Score):
            (scores if found.level is not None or case.measure == "cold_start" else possible).append(found)
            why = found.undecided if found.level is None else None
        else:
            why = found
        if why is not None:
            missing.append(NotRanked(entrant.name, why))
    sign = 1 if case.lower_is_better else -1
    ordered = sorted(scores, key=lambda score: sign * score.value)
    return Ranking(scores=tuple(ordered), missing=tuple(missing), possible=tuple(possible))


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
    for column, limits in require.items():
        values = [row.get(column) for row in rows]
        if None in values or not limits.min <= float(np.mean(values)) <= limits.max:
            return False
    return True


def codes_of_mean(level: RankedLevel, entrant: Entrant) -> tuple[str, ...]:
    """Return the warnings of a level's mean: those of its points, but not that they are wide where their mean is known as well as
    a point has to be."""
    ends = metric_interval(THROUGHPUT, level) if len(level.rows) > 1 and is_wide(level.doubts) else None
    if ends is None or half_width(*ends) > _half_width_asked(entrant):
        return level.doubts
    return tuple(code for code in level.doubts if not is_wide([code]))


def _half_width_asked(entrant: Entrant) -> float:
    """Return half the width from which on the interval of a throughput is wide, as a share: what `load.until` asks, or the
    usual one."""
    load = mapping(entrant.run.config.get("load"))
    try:
        targets = precision_targets(load.get("until"), open_loop=bool(load.get("rate")))
    except (TypeError, ValueError):
        # another version's, or changed by hand
        targets = {}
    return targets.get(THROUGHPUT, HALF_WIDTH_SHARE_MAX)
