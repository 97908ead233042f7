"""The score of each entrant, the ranking, and the lead of the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from servebench.analysis.comparison.resampling import widen_for_starts
from servebench.analysis.recommendation.draws import good_share, metric_value
from servebench.analysis.recommendation.model import Entrant, RankedLevel, Score
from servebench.analysis.recommendation.rules import Rules, UseCase
from servebench.analysis.slo import slo_point
from servebench.analysis.statistics import CONFIDENCE
from servebench.contracts.point_row import PointRow
from servebench.util.figures import percent


def rank(
    case: UseCase, entrants: Sequence[Entrant], *, with_doubtful: bool
) -> tuple[tuple[Score, ...], tuple[str, ...]]:
    """Return the scores, best first, and why the other entrants have none."""
    scores, missing = [], []
    for entrant in entrants:
        found = _score(case, entrant, with_doubtful)
        if isinstance(found, str):
            missing.append(f"{entrant.name}: {found}")
        else:
            scores.append(found)
    sign = 1 if case.lower_is_better else -1
    return tuple(sorted(scores, key=lambda score: sign * score.value)), tuple(missing)


def _score(case: UseCase, entrant: Entrant, with_doubtful: bool) -> Score | str:
    """An entrant's score, or why it has none."""
    if case.measure == "cold_start":
        start_s = entrant.cold_start_s
        return "no cold start was measured" if start_s is None else Score(entrant=entrant, value=start_s)
    allowed = ("valid", "doubtful") if with_doubtful else ("valid",)
    levels = [level for level in entrant.levels if level.verdict in allowed]
    if not levels:
        codes = ", ".join(dict.fromkeys(code for level in entrant.levels for code in level.doubts))
        return f"no valid point ({codes})" if codes else "no valid point"
    eligible = _eligible_levels(case, levels)
    if isinstance(eligible, str):
        return eligible
    kept, slo_at = eligible
    values = [(metric_value(case.metric, level.row, level.samples), level) for level in kept]
    known = [(value, level) for value, level in values if value is not None]
    if not known:
        return f"no {case.metric}"
    value, level = (min if case.lower_is_better else max)(known, key=lambda pair: pair[0])
    return Score(
        entrant=entrant,
        value=value,
        at=level.label,
        level=level,
        slo_at=slo_at,
        doubtful=level.verdict != "valid",
        metric=case.metric,
    )


def _eligible_levels(case: UseCase, levels: Sequence[RankedLevel]) -> tuple[Sequence[RankedLevel], str | None] | str:
    """The levels that the rule looks at, and the SLO point; or why there are none."""
    levels = [level for level in levels if _meets(level.row, case.require)]
    if not levels:
        return f"no point meets the requirements for {', '.join(case.require)}"
    if case.measure == "within_slo":
        shares = [(level.load, good_share(level.samples, case.limits)) for level in levels]
        index = slo_point(shares, case.limits)
        if index is None:
            lowest, (_, share) = min(zip(levels, shares, strict=True), key=lambda pair: pair[0].load)
            met = f"{100 * share:.3g}% of requests do"
            return f"not even the lowest load ({lowest.label}) meets {case.limits.description}: {met}"
        return [level for level in levels if level.load <= levels[index].load], levels[index].label
    if case.measure == "lowest_load":
        lowest = min(levels, key=lambda level: level.load)
        if case.max_load is not None and lowest.load > case.max_load:
            return f"its lowest load is {lowest.label}, above {case.max_load:g}"
        return [lowest], None
    return levels, None


def _meets(row: PointRow, require: Mapping[str, Mapping[str, float]]) -> bool:
    for column, limits in require.items():
        value = row.get(column)
        if value is None or value < limits.get("min", -np.inf) or value > limits.get("max", np.inf):
            return False
    return True


@dataclass(frozen=True, kw_only=True)
class Lead:
    """The leader's lead over the runner-up with its interval, and why it is no win (empty when it is one)."""

    size: float
    low: float | None
    high: float | None
    why: str


def lead_of(ranking: Sequence[Score], rules: Rules) -> Lead:
    """Return the lead of the first of a ranking of at least two."""
    first, rivals = ranking[0], ranking[1:]
    tail = (1 - CONFIDENCE) / 2 / len(rivals)
    bounds = [_lead_interval(first, rival, tail) for rival in rivals]
    low, high = bounds[0] if bounds[0] is not None else (None, None)
    reasons = (_why_no_win(first, rival, bound, rules) for rival, bound in zip(rivals, bounds, strict=True))
    size = first.value / rivals[0].value - 1 if rivals[0].value else 0.0
    return Lead(size=size, low=low, high=high, why=next(filter(None, reasons), ""))


def _why_no_win(first: Score, rival: Score, bound: tuple[float, float] | None, rules: Rules) -> str:
    size = abs(first.value / rival.value - 1) if rival.value else 0.0
    lead = f"the lead of {percent(size)} over {rival.entrant.name}"
    if bound is None:
        return f"{lead} may be chance, as each was measured once: measure again" if size < rules.once_margin else ""
    if bound[0] <= 0 <= bound[1]:
        return f"the interval of the lead over {rival.entrant.name} includes 0%"
    return f"{lead} is below the margin of {100 * rules.margin:g}%" if size < rules.margin else ""


def _lead_interval(first: Score, rival: Score, tail: float) -> tuple[float, float] | None:
    if first.draws is None or rival.draws is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(first.draws) - np.log(rival.draws)
    logs = logs[np.isfinite(logs)]
    if logs.size < first.draws.size / 2:
        return None
    low, high = np.quantile(logs, [tail, 1 - tail]).tolist()
    return widen_for_starts(float(np.log(first.value / rival.value)), low, high)
