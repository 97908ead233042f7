"""What a study takes, before it starts."""

from __future__ import annotations

import math

from servebench.contracts.events import StartsChosen, TunePlanned
from servebench.util.figures import duration


def least_text(planned: TunePlanned) -> str:
    """Return what a verdict takes at least, and whether a budget of engine time may be too small."""
    least_s, budget_s = planned.least_s, planned.budget_s
    load = " and the load" if planned.load_s is None else ""
    text = f"a verdict takes at least {planned.starts} starts of an engine, about {duration(least_s)}{load}"
    if budget_s is None or budget_s >= least_s:
        return text
    return f"{text}: tune.budget={budget_s:g}s may be too small; give {math.ceil(least_s / 60)}m or more"


def starts_text(chosen: StartsChosen) -> str:
    """Return what `study.starts=auto` has chosen, for how long at most, and why where that was weighed."""
    until = "starts are added until there is a verdict"
    if chosen.most is not None:
        return f"{until}: up to {chosen.most} of each simulated engine, which cost little"
    load = f" and its load {duration(chosen.load_s)}" if chosen.load_s is not None else ""
    which = "more starts say more than longer points" if chosen.pays else "longer points say more than more starts"
    why = f"; a start of {chosen.engine} takes {duration(chosen.start_s)}{load}: {which}" if chosen.engine else ""
    each_s = chosen.each_s or 0.0
    if chosen.budget_s is not None:
        each = f" (one of each takes about {duration(each_s)})" if each_s else ""
        return f"{until}, as long as they fit into {duration(chosen.budget_s)}{each}{why}"
    if chosen.limit:
        return f"one start each: two take about {duration(2 * each_s)}, more than study.budget={chosen.limit}"
    return f"one start each{why} (load.duration_s); study.starts=3 measures three"
