"""Who leads at a load level, by how much, and that in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, groupby

from servebench.analysis.answer.model import AnswerCell, LevelLead
from servebench.analysis.comparison.compare import SIGNIFICANCE
from servebench.analysis.comparison.decisions import starts_may_differ
from servebench.analysis.comparison.model import FAILED, Comparison, ComparisonRow
from servebench.analysis.comparison.starts import EARLIER_STARTS
from servebench.contracts.labels import RunLabel
from servebench.contracts.point_row import level_words
from servebench.util.figures import number

THROUGHPUT = "output_throughput_tok_s"
AHEAD_MIN = 0.03
"""Smaller leads of single starts are not worth a word: starts of one engine often differ by as much."""
TIMES_FROM = 1.0
"""From this lead on, a factor is easier to read than a percentage."""


def find_lead(
    level: str,
    cells: Mapping[str, Mapping[str, AnswerCell]],
    labels: Mapping[str, RunLabel],
    comparisons: Sequence[Comparison],
) -> LevelLead | None:
    """Return the lead at a level; None with fewer than two runs that count there."""
    values = {
        run: own[level].value or 0.0 for run, own in cells.items() if level in own and own[level].verdict != "void"
    }
    order = sorted((run for run, value in values.items() if value), key=lambda run: -values[run])
    if len(order) < 2:
        return None
    first, second = order[:2]
    rows = {rival: row_between(first, rival, level, comparisons) for rival in order[1:]}
    margins = {rival: one.margin for one in comparisons for rival in order[1:] if set(one.ids) == {first, rival}}
    bounds = {rival: _bound(row, cells[first][level], cells[rival][level]) for rival, row in rows.items()}
    open_rivals = [rival for rival, row in rows.items() if not _is_clear(row, bounds[rival], margins.get(rival, 0.0))]
    # where a lead is not clear, the rival that it is not clear against is the one to name
    rival = open_rivals[0] if open_rivals else second
    row = rows[rival]
    unequal = [
        (one.key, rival in comparison.ids)
        for comparison in comparisons
        if first in comparison.ids and set(comparison.ids) <= set(order)
        for one in comparison.unequal
        if one.matters
    ]
    return LevelLead(
        level=level,
        leader=labels[first].series,
        rival=labels[rival].series,
        size=row.effect if row is not None and row.effect is not None else values[first] / values[rival] - 1,
        low=row.low if row is not None else None,
        high=row.high if row is not None else None,
        clear=not open_rivals,
        bound=bounds[rival],
        tied=tuple(labels[rival].series for rival in open_rivals),
        over_starts=row is not None and row.p_corrected is not None,
        certain=row is not None and row.p_corrected is not None and row.p_corrected < SIGNIFICANCE,
        verdict=all(row is not None and row.competes and row.result == "faster" for row in rows.values()),
        unequal=tuple(dict.fromkeys(key for key, _ in unequal)),
        unequal_rival=any(named for _, named in unequal),
        codes=tuple(dict.fromkeys(code for one in rows.values() if one is not None for code in one.doubts)),
        within=_equal_within(row_between(a, b, level, comparisons) for a, b in combinations(order, 2)),
        behind=tuple((labels[run].series, values[run] / values[first] - 1) for run in rows if run not in open_rivals),
        by_earlier=any(one is not None and one.method.endswith(EARLIER_STARTS) for one in rows.values()),
    )


def _equal_within(rows: Iterable[ComparisonRow | None]) -> float | None:
    """Return the largest difference that there may be between any two runs, where none of them differ; else None."""
    bounds = [one.bound if one and one.competes and one.result == "no difference" else None for one in rows]
    return max((one for one in bounds if one is not None), default=None) if None not in bounds else None


def _is_clear(row: ComparisonRow | None, bound: float, margin: float) -> bool:
    """Whether a lead is more than chance, and may be as large as a difference that matters, the margin of the comparison.

    Over several starts, or where the spread of earlier ones is known, by the corrected p-value of the comparison. The interval
    of one start each leaves out that starts differ, so there a lead must exceed `bound`.
    """
    if row is None or row.effect is None or row.low is None or row.high is None or row.low <= 0 or row.high <= margin:
        return False
    if row.p_corrected is not None:
        return row.p_corrected < SIGNIFICANCE and (row.bound is None or row.bound > margin)
    return row.effect > bound


def _bound(row: ComparisonRow | None, ours: AnswerCell, theirs: AnswerCell) -> float:
    """Return by how much one start each of two equal engines may differ, as a share: what starts do, and what the intervals of
    the lead and of the two numbers leave open, whichever is more. The comparison pairs requests, which leaves out that the
    engines or the machine may have wandered slowly at different times; the intervals of the numbers allow for that."""
    own = (
        math.log1p(row.effect) - math.log1p(row.low) if row and row.effect is not None and row.low is not None else 0.0
    )
    apart = math.hypot(_log_distance(ours.value, ours.low), _log_distance(theirs.high, theirs.value))
    return math.expm1(math.hypot(max(own, apart), math.log1p(starts_may_differ())))


def _log_distance(upper: float | None, lower: float | None) -> float:
    return math.log(upper / lower) if upper and lower and lower > 0 else 0.0


def row_between(
    first: str, rival: str, level: str, comparisons: Iterable[Comparison], metric: str = THROUGHPUT
) -> ComparisonRow | None:
    """Return the row of two runs for a metric at a level, with the first as the candidate; None where there is none."""
    for one in comparisons:
        if set(one.ids) != {first, rival}:
            continue
        row = next((row for row in one.rows if row.level == level and row.metric.name == metric), None)
        return row if row is None or one.ids == (rival, first) else row.turned()
    return None


def lead_text(lead: LevelLead) -> str:
    """Return a lead with its interval: `41% [35, 48] more tok/s than x`, `2.3 times [2.1, 2.6] the tok/s of x`."""
    ends = lead.low, lead.high
    if lead.size >= TIMES_FROM:
        interval = "" if None in ends else f" [{', '.join(number(1 + (end or 0), 2) for end in ends)}]"
        return f"{number(1 + lead.size, 2)} times{interval} the tok/s of {lead.rival}"
    digits = 0 if lead.size >= 0.1 else 1
    interval = "" if None in ends else f" [{', '.join(f'{100 * (end or 0):.{digits}f}' for end in ends)}]"
    return f"{100 * lead.size:.{digits}f}%{interval} more tok/s than {lead.rival}"


def _ahead(leads: Sequence[LevelLead]) -> str:
    """The largest of leads that are not clear: those of single starts from AHEAD_MIN on, and those over starts whose interval
    leaves out 0, where a level is one of many questions."""
    ahead = [lead for lead in leads if (lead.low or 0.0) > 0 or (not lead.over_starts and lead.size >= AHEAD_MIN)]
    if not ahead:
        return ""
    most = max(ahead, key=lambda lead: lead.size)
    at = f" at {level_words(most.level)}" if len(leads) > 1 else ""
    of = f" of {most.rival}" if len(most.tied) > 1 else ""
    but = f"; with one start of each, up to {most.bound:.0%} may be chance"
    if most.over_starts:
        but = ", which is too little to matter" if most.certain else ", which may still be chance"
    return f" ({most.leader} is {most.size:.0%} ahead{of}{at}{but})"


NAMED_MAX = 4
"""More runs without a difference are only counted."""
PAIRS_MAX = 3
"""More pairs that differ in other metrics are only counted."""


def _kind(lead: LevelLead) -> tuple[str | frozenset[str], bool, bool]:
    """What neighbouring levels must share to be one clause: the leader, or those between which there is no clear difference."""
    who = lead.leader if lead.clear else frozenset((lead.leader, *lead.tied))
    return who, lead.clear, lead.within is not None


def _behind(leads: Sequence[LevelLead]) -> str:
    """Who is clearly slower than the leader where others are not, with the distance at the heaviest level."""
    last = leads[-1]
    if not last.behind:
        return ""
    named = [f"{name} ({100 * share:+.0f}%)" for name, share in last.behind[: NAMED_MAX - 1]]
    more = len(last.behind) - len(named)
    names = ", ".join([*named, *([f"{more} more"] if more else [])])
    at = f" at {level_words(last.level)}" if len(leads) > 1 else ""
    return f"; behind {last.leader}{at}: {names}"


def leads_in_words(leads: Sequence[LevelLead]) -> str:
    """Return who leads where: neighbouring levels with the same leader share a clause, with the lead at the highest of them."""
    clauses = []
    for (_, clear, same), found in groupby(leads, key=_kind):
        group = list(found)
        last = group[-1]
        begin = "" if len(group) == 1 else f"{level_words(group[0].level, short=True)} to "
        if clear:
            text = f"{last.leader} gives {lead_text(last)}"
            if len(group) > 1:
                text = f"{last.leader} leads, at {level_words(last.level)} with {lead_text(last)}"
        else:
            names = list(dict.fromkeys(name for lead in group for name in (lead.leader, *lead.tied)))
            if len(names) > NAMED_MAX:
                names = [*names[: NAMED_MAX - 1], f"{len(names) - NAMED_MAX + 1} others"]
            both = f"{', '.join(names[:-1])} and {names[-1]}"
            bound = max(lead.within or 0.0 for lead in group)
            text = f"no clear difference in tok/s between {both}"
            text = f"{both} differ by at most {bound:.1%} in tok/s" if same else text
            text += "" if same else _ahead(group) + _behind(group)
        but = _but("provisional", [lead for lead in group if lead.codes], group)
        but += _but("different settings", [lead for lead in group if lead.clear and lead.unequal_rival], group)
        clauses.append(f"{begin}{level_words(last.level)}: {text}" + (f" ({', '.join(but)})" if but else ""))
    return "; ".join(clauses)


def _but(word: str, found: Sequence[LevelLead], group: Sequence[LevelLead]) -> list[str]:
    """What holds for some levels of a clause, with these levels if it does not hold for all."""
    if not found:
        return []
    *first, last = (lead.level for lead in found)
    some = " and ".join(filter(None, (", ".join(level_words(one, short=True) for one in first), level_words(last))))
    return [word if len(found) == len(group) else f"{word} at {some}"]


def other_metrics(leads: Sequence[LevelLead], comparisons: Iterable[Comparison], labels: Mapping[str, RunLabel]) -> str:
    """Return what differs by the comparisons between runs whose throughput does not at a level, such as latency at a rate that
    all engines complete: of each pair the largest change."""
    open_at = {lead.level: {lead.leader, *lead.tied} for lead in leads if not lead.clear}
    found = []
    for one in comparisons:
        pair = {labels[run].series for run in one.ids}
        rows = [
            row
            for row in one.rows
            if pair <= open_at.get(row.level, set())
            and row.competes
            and row.result in ("faster", "slower")
            and row.metric.name != THROUGHPUT
        ]
        if rows:
            row = max(rows, key=lambda row: abs(row.effect or 0.0))
            worse = "worse" if row.metric is FAILED else row.result
            baseline, candidate = (labels[run].series for run in one.ids)
            found.append(f"{candidate} is {worse} than {baseline}: {row.description}")
    more = [f"{len(found) - PAIRS_MAX} more pairs differ"] if len(found) > PAIRS_MAX else []
    return "; ".join([*found[:PAIRS_MAX], *more])
