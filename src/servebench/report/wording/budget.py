"""What a study takes, before it starts, and whether that came true."""

from __future__ import annotations

import math

from servebench.contracts.events import PlanReady, StartsChosen, TunePlanned
from servebench.util.figures import duration, number

UNLIKE, UNLIKE_S = 0.25, 10.0
"""By how much of what was announced, and by how many seconds, the time of a study may differ without a word."""
HOURS_FROM_S = 1800.0
"""Shorter studies are not counted in engine hours."""


def time_lines(plan: PlanReady) -> list[str]:
    """Return how long a study takes, what its engines cost, and what was chosen where the number of starts was left open."""
    runs, each = _counted(len(plan.labels), "run"), plan.each
    virtual = " of virtual time" * (plan.imitated == "simulated")
    cost = "" if plan.cost_usd is None else f", about ${plan.cost_usd:,.2f}"
    real = " if they were real" * bool(cost and plan.imitated)
    chosen = [] if plan.starts is None else [starts_text(plan.starts, virtual)]
    if chosen and plan.points is None:
        return [f"{runs}: {chosen[0]}{cost and f'{cost} at most'}{real}"]
    if plan.seconds is None or each is None:
        points = f", {_counted(plan.points, 'point')}" if plan.points else ""
        takes = f"up to about {duration(plan.seconds)}" if plan.seconds else "the time is known after the first point"
        return [f"{runs}{points}, {takes}{cost}{real}", *chosen]
    levels = f"{_counted(each.levels, 'level')} in " if each.levels else "a search of "
    takes = f"about {duration(plan.seconds)}" if each.earlier else f"up to about {duration(plan.seconds)} and warm-up"
    hours = virtual
    if plan.seconds >= HOURS_FROM_S and not plan.imitated:
        hours = f", {number(plan.seconds / 3600, 2)} engine hours"
    product = f"{runs} x {_counted(each.starts, 'start')} x ({duration(each.start_s)} to start + "
    product += f"{levels}{duration(each.load_s or 0.0)})"
    return [f"{product}: {takes}{hours}{cost}{real}{', as earlier runs took' * each.earlier}", *chosen]


def _counted(number_of: float, word: str) -> str:
    return f"{number_of:.3g} {word}{'s' * (number_of != 1)}"


def took_text(expected_s: float | None, took_s: float | None) -> str:
    """Return how long a study took where that is not what was announced; empty where it is, or unknown."""
    if not expected_s or took_s is None or abs(took_s - expected_s) <= max(UNLIKE * expected_s, UNLIKE_S):
        return ""
    return f"took {duration(took_s)} (announced: {duration(expected_s)})"


def least_text(planned: TunePlanned) -> str:
    """Return what a verdict takes at least, and whether a budget of engine time may be too small."""
    least_s, budget_s = planned.least_s, planned.budget_s
    load = " and the load" if planned.load_s is None else ""
    text = f"a verdict takes at least {planned.starts} starts of an engine, about {duration(least_s)}{load}"
    if budget_s is not None:
        cost = "" if planned.cost_usd is None else f", about ${planned.cost_usd:,.2f}"
        text += f"; this tune takes up to {duration(budget_s)} of engine time{cost}"
    if budget_s is None or budget_s >= least_s:
        return text
    return f"{text}; tune.budget={budget_s:g}s may be too small; give {math.ceil(least_s / 60)}m or more"


def starts_text(chosen: StartsChosen, virtual: str = "") -> str:
    """Return what `study.starts=auto` has chosen, for how long at most, and why where that was weighed; `virtual` follows the
    time of simulated engines."""
    until = "starts are added until there is a verdict"
    if chosen.most is not None:
        return f"{until}: up to {chosen.most} of each simulated engine, which cost little"
    load = f" and its load {duration(chosen.load_s)}" if chosen.load_s is not None else ""
    which = "more starts say more than longer points" if chosen.pays else "longer points say more than more starts"
    why = f"; a start of {chosen.engine} takes {duration(chosen.start_s)}{load}: {which}" if chosen.engine else ""
    each_s = chosen.each_s or 0.0
    if chosen.budget_s is not None:
        each = f" (one of each takes about {duration(each_s)}{', one after another' * chosen.alone})" if each_s else ""
        return f"{until}, as long as they fit into {duration(chosen.budget_s)}{virtual}{each}{why}"
    if chosen.limit:
        least = f"study.budget={math.ceil(2 * each_s / 60)}m is the least for a verdict"
        return f"one start each: two take about {duration(2 * each_s)}, more than study.budget={chosen.limit}; {least}"
    return f"one start each{why} (load.duration_s); study.starts=3 measures three"
