"""The words of what is known of how engines wander."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from servebench.analysis.serial import likely_wander
from servebench.contracts.noise import AGE_MAX_S, FLAT_PRIOR, LONG_S, LearnedNoise
from servebench.contracts.stored import RunData
from servebench.util.figures import short_percent
from servebench.util.safe_text import clean_line

DAY_S = 86_400
NOTHING_KNOWN = (
    "no long point is stored here, so intervals allow any wander; 'servebench load=long engine=...' measures one (5 minutes), "
    "and later points of that engine on this machine have narrower intervals, down to half as wide on a steady engine"
)


def prior_line(run: RunData, known: Iterable[tuple[LearnedNoise, Mapping[str, Any]]], now_s: float) -> str | None:
    """Return one line on the prior of the intervals of a real engine's closed loops: the long points that it is from, or what one
    would save where none is `known`; None where neither applies."""
    rows = [row for row in run.point_rows if row.interval_prior and row.rate is None]
    if run.emulated or not rows:
        return None
    if learned := list(dict.fromkeys(row.interval_prior for row in rows if row.interval_prior != FLAT_PRIOR)):
        return clean_line(f"Intervals: as this engine has wandered on this machine in {', '.join(map(str, learned))}.")
    facts = {name: run.fact(name) for name in ("engine", "engine_version", "launch", "gpu")}
    shown = any(noise.usable(now_s) and facts.items() <= own.items() for noise, own in known)
    if shown or any((row.window_s or 0.0) >= LONG_S for row in rows):
        return None
    return (
        "Intervals: flat prior; one point of 300 s (load=long) makes those of later points of this engine on this machine about "
        "a fifth narrower, more on a steady engine."
    )


def noise_line(noise: LearnedNoise, facts: Mapping[str, Any], now_s: float) -> str:
    """Return one line on how an engine wanders, where that comes from and how old it is."""
    likely = likely_wander(noise.likelihood)
    least, most = (short_percent(one) for one in likely.sd)
    size = f"by {least} to {most}" if least != most else f"by {most}"
    wander = (
        f"wanders {size}, over {likely.seconds[0]:g} to {likely.seconds[1]:g} s" if likely.sd[1] else "does not wander"
    )
    age_s = now_s - noise.ended_s
    age = (
        "too old to be used" if age_s > AGE_MAX_S else f"{age_s / DAY_S:.0f} days old" if age_s >= DAY_S else "of today"
    )
    return clean_line(
        f"{facts.get('engine')} {facts.get('engine_version')} on {facts.get('gpu')}, closed loops: {wander} "
        f"({noise.point}, {noise.window_s:.0f} s, {age})"
    )
