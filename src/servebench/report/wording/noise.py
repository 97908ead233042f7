"""The words of what is known of how engines wander."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servebench.analysis.serial import likely_wander
from servebench.contracts.noise import AGE_MAX_S, LearnedNoise
from servebench.util.figures import short_percent
from servebench.util.safe_text import clean_line

NOTHING_KNOWN = (
    "no long point is stored here, so intervals allow any wander; 'servebench load=long engine=...' measures one (5 minutes), "
    "and later points of that engine on this machine have narrower intervals, down to half as wide on a steady engine"
)


def noise_line(noise: LearnedNoise, facts: Mapping[str, Any], now_s: float) -> str:
    """Return one line on how an engine wanders, where that comes from and how old it is."""
    likely = likely_wander(noise.likelihood)
    least, most = (short_percent(one) for one in likely.sd)
    size = f"by {least} to {most}" if least != most else f"by {most}"
    wander = (
        f"wanders {size}, over {likely.seconds[0]:g} to {likely.seconds[1]:g} s" if likely.sd[1] else "does not wander"
    )
    days = (now_s - noise.ended_s) / 86_400
    age = (
        "too old to be used"
        if now_s - noise.ended_s > AGE_MAX_S
        else f"{days:.0f} days old"
        if days >= 1
        else "of today"
    )
    return clean_line(
        f"{facts.get('engine')} {facts.get('engine_version')} on {facts.get('gpu')}, closed loops: {wander} "
        f"({noise.point}, {noise.window_s:.0f} s, {age})"
    )
