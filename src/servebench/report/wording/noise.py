"""The words of what is known of how engines wander."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from servebench.analysis.serial import likely_wander
from servebench.contracts.noise import AGE_MAX_S, FLAT_PRIOR, LONG_S, LearnedNoise
from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import RunData
from servebench.util.figures import short_percent
from servebench.util.safe_text import clean_line

DAY_S = 86_400
LONG_POINT = "a point of 300 s: later intervals of this engine on this machine are about a fifth narrower"


def nothing_known_line(command: str) -> str:
    """Return what is missing where no long point is stored, with the command that measures one."""
    return (
        f"no long point is stored here, so intervals allow any wander; '{command}' measures one (5 minutes), "
        "and later points of that engine on this machine have narrower intervals, down to half as wide on a steady engine"
    )


def prior_line(run: RunData, known: Iterable[tuple[LearnedNoise, Mapping[str, Any]]], now_s: float) -> str | None:
    """Return one line on the prior of the intervals of a real engine's closed loops: the long points that it is from, or that
    none is `known`; None where neither applies."""
    learned = [row.interval_prior for row in _closed_loops(run) if row.interval_prior != FLAT_PRIOR]
    if learned:
        names = ", ".join(map(str, dict.fromkeys(learned)))
        return clean_line(f"Intervals: as this engine has wandered on this machine in {names}.")
    return "Intervals: flat prior, for no long point is stored." if long_point_helps(run, known, now_s) else None


def long_point_helps(run: RunData, known: Iterable[tuple[LearnedNoise, Mapping[str, Any]]], now_s: float) -> bool:
    """Return whether a long point would make later intervals of a run's engine narrower: of a real one, in closed loops, of which
    none is `known`."""
    rows = _closed_loops(run)
    facts = {name: run.fact(name) for name in ("engine", "engine_version", "launch", "gpu")}
    shown = any(noise.usable(now_s) and facts.items() <= own.items() for noise, own in known)
    flat = all(row.interval_prior == FLAT_PRIOR and (row.window_s or 0.0) < LONG_S for row in rows)
    return bool(rows) and flat and not shown


def _closed_loops(run: RunData) -> list[PointRow]:
    return [] if run.emulated else [row for row in run.point_rows if row.interval_prior and row.rate is None]


def noise_line(noise: LearnedNoise, facts: Mapping[str, Any], now_s: float) -> str:
    """Return one line on how an engine wanders, where that comes from and how old it is."""
    sizes, (short, long) = likely_wander(noise.likelihood)
    least, most = map(short_percent, sizes)
    size = f"by {least} to {most}" if least != most else f"by {most}"
    wander = f"wanders {size}, over {short:g} to {long:g} s" if sizes[1] else "does not wander"
    age_s = now_s - noise.ended_s
    age = (
        "too old to be used" if age_s > AGE_MAX_S else f"{age_s / DAY_S:.0f} days old" if age_s >= DAY_S else "of today"
    )
    return clean_line(
        f"{facts.get('engine')} {facts.get('engine_version')} on {facts.get('gpu')}, closed loops: {wander} "
        f"({noise.point}, {noise.window_s:.0f} s, {age})"
    )
