"""What a tune takes at least, before it starts."""

from __future__ import annotations

import math

from servebench.contracts.events import TunePlanned
from servebench.util.figures import duration


def least_text(planned: TunePlanned) -> str:
    """Return what a verdict takes at least, and whether a budget of engine time may be too small."""
    least_s, budget_s = planned.least_s, planned.budget_s
    load = " and the load" if planned.load_s is None else ""
    text = f"a verdict takes at least {planned.starts} starts of an engine, about {duration(least_s)}{load}"
    if budget_s is None or budget_s >= least_s:
        return text
    return f"{text}: tune.budget={budget_s:g}s may be too small; give {math.ceil(least_s / 60)}m or more"
