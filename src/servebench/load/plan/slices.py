"""When each of several engines gets load that goes from one to the other slice by slice. Pure.

What the machine does to one engine it does to the other a moment later, so their ratio is known sooner than from points one after
another ("duet" measurements: Bulej et al. 2020, ICPE, are 2.3 to 12.5 times as exact on shared machines).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from servebench.contracts.level import Level
from servebench.contracts.settings import RunSettings

LEAD_ANSWERS, LEAD_S_MIN = 1.0, 0.4
"""A slice begins with a lead-in of so many answers, and of that many seconds at least: until then its streams start one after
another. Tokens of real llama.cpp come at their rate after 0.7."""
DRAIN_ANSWERS, DRAIN_S_MIN = 1.0, 0.5
"""How long its last requests may take before another engine gets the load; what has not ended by then is given up. Two engines at
work on the same cores may stand still: the threads of llama.cpp wait for each other by turning in a loop."""
MEASURED_ANSWERS, MEASURED_S = 2.5, 4.0
"""How long a slice is measured after its lead-in, in answers and seconds, at least."""
SLICES_MIN = 5
"""Slices of an engine at a level: fewer do not show how much their ratios differ."""
ADDED_SLICES_MIN = 2
"""The same where starts are added until a mean over levels is known, so that all show it."""
LEVELS_SHOW_IT = 3
"""With so many levels one slice of each is enough there: how far the levels of several starts are from what these share shows it,
and a slice less is a lead-in and an end less. Drawn with the times of `tests/calibration`, four levels, slices that scatter by
4% and starts by 0.5%: 10% less speed is found within 3 minutes in 90%, with two slices of 2.5 s in 44%."""
SLICE_TO_START = 4.0
"""How many times the variance of the ratio of two starts is that of a slice: 4% (sd) on two cores to 2%, of 1.4 to 3.3%."""
ADDED_REQUESTS_MIN = 15
"""Requests of a level that are expected to count, by its warm-up, at least: with less than 12 medians have no intervals."""
ADDED_ANSWERS_MIN = 3.3
"""For how many answers a level of such a start is measured: with less than three (`ROUNDS_MIN` of `analysis/serial.py`) it has no
intervals, and answers may take longer than in the warm-up."""
LONGER_MAX = 2.0
"""Slices are made longer by this factor at most for that, and then more of them: the machine wanders between long ones."""
ADDED_SHARED_S, ADDED_MEASURED_S = 10.0, 6.0
"""What fewer levels share in such a start: each has slices of this time by their number, of ADDED_MEASURED_S at most. Two of 6 s
take less time for what they tell than three of 4 s, since each has its lead and end: of 600 drawn studies of one level 76% were
decided within four minutes where 60% were."""
SPARE = 2.0
"""How many times the requests that an engine answers in a slice, by its warm-up, are kept for each."""
COST_MAX = 4.0
"""Longer than this many times the longest point slices are not worth it. On a quiet machine the ratio of two starts of
llama.cpp with answers of 2.6 s scattered by 3.9% in slices of 68 s and by 4.1% in points of 20 s (six pairs each): they pay where
the machine wanders."""
UNTIL_SHARE = 1 / 3
"""The part of `load.max_duration_s` for which each engine is measured where `load.until` would end an ordinary point."""


@dataclass(frozen=True, kw_only=True)
class SlicePlan:
    """The slices of each engine, as (opens, closes) in seconds from the start of the phase, the lead-in of each slice, how
    long the requests of each may take after it, and how many requests are kept for each: all engines get the same ones in the
    same slice, so that their lengths do not differ. 0: that is not known, and each goes on where its last slice ended."""

    slices: tuple[tuple[tuple[float, float], ...], ...]
    lead_s: float
    drain_s: float
    requests: int = 0


@dataclass(frozen=True)
class Rotation:
    """Which of its `levels` each start has where a study adds starts until their mean is known: the first all of them, the
    others `each` so many, in turn. All levels of a start share its effect, so more starts of fewer levels tell more where a
    start takes less time than they do (two-stage samples: Cochran 1977, "Sampling Techniques", chapter 10)."""

    levels: tuple[Level, ...]
    each: int

    @classmethod
    def of(cls, levels: Iterable[Level], start_s: float, level_s: float) -> Self:
        """Return that with the least time in all, where a start of all engines takes `start_s` and a level `level_s`."""
        listed = tuple(sorted(levels))
        if len(listed) < LEVELS_SHOW_IT:
            return cls(listed, len(listed))
        best = (SLICE_TO_START * max(start_s, level_s) / level_s) ** 0.5
        # three of four levels were no faster than all, in drawn studies
        return cls(listed, min(2 ** round(math.log2(best)), len(listed)))

    def of_start(self, start: int) -> frozenset[Level]:
        """Return the levels of a start, counted from 0."""
        count = len(self.levels)
        if not start or self.each >= count:
            return frozenset(self.levels)
        # far from one another
        apart = count // self.each
        return frozenset(self.levels[(start - 1 + number * apart) % count] for number in range(self.each))


@dataclass(frozen=True, kw_only=True)
class AddedStarts:
    """What a study does that adds starts until a mean over `levels` is known; a start of all its engines takes `start_s`,
    and a level has `users` (None: unknown)."""

    levels: int
    start_s: float
    users: int | None = None

    @classmethod
    def of(cls, settings: RunSettings, start_s: float, users: int | None = None) -> Self | None:
        """Return what the study of such runs does; None where it adds no starts, or has no levels of users."""
        levels = len(settings.load.concurrency or ())
        if not levels or settings.study.until != "decided":
            return None
        return cls(levels=levels, start_s=start_s, users=users)

    @property
    def measured_s(self) -> float:
        """How long a slice is measured."""
        return max(min(ADDED_SHARED_S / self.levels, ADDED_MEASURED_S), MEASURED_S)

    def slices(self, round_s: float) -> int:
        """Return how many slices a level has for the least time in all, where those of all engines take `round_s`: the more, the
        longer starts take (two-stage samples: Cochran 1977, "Sampling Techniques", chapter 10)."""
        best = math.ceil((SLICE_TO_START * self.start_s / round_s) ** 0.5 / self.levels)
        return int(min(max(best, 1 if self.levels >= LEVELS_SHOW_IT else ADDED_SLICES_MIN), SLICES_MIN))

    def enough_s(self, slices: int, answer_s: float) -> float:
        """Return how long each of so many slices is measured at least, so that the level has intervals: for answers enough, and
        with requests enough that count, which those sent in the last answer of a slice do not."""
        requests = 1 + ADDED_REQUESTS_MIN / (self.users * slices) if self.users else 0.0
        return answer_s * max(requests, ADDED_ANSWERS_MIN / slices)


def seconds_in_slices(
    point_s: float, answer_s: float = 0.0, *, until: bool = False, added: AddedStarts | None = None
) -> float:
    """Return how long an engine has the load of a point in slices: `point_s` where they are not worth it."""
    plan = plan_slices(1, point_s, answer_s, "", until=until, added=added)
    return point_s if plan is None else plan.slices[0][-1][1] + plan.drain_s


def plan_slices(
    engines: int,
    point_s: float,
    answer_s: float,
    seed: str,
    rate_req_s: float | None = None,
    *,
    settle_s: float = 0.0,
    until: bool = False,
    added: AddedStarts | None = None,
) -> SlicePlan | None:
    """Return slices in which each engine is measured for as long as in a point or longer, in a random order in each round.

    `point_s` is how long a point takes, or at most where `load.until` ends it (`until`): then starts that are `added` have as
    many as are best. `answer_s` is how long an answer of the slowest takes, `rate_req_s` how many requests the fastest answers;
    `settle_s` is how long an engine disturbs the others after its load, which is not measured. None where slices take more than
    COST_MAX times as long.
    """
    best = added if until else None
    lead_s = max(LEAD_S_MIN, LEAD_ANSWERS * answer_s, settle_s)
    each_s = max(MEASURED_S if best is None else best.measured_s, MEASURED_ANSWERS * answer_s)
    drain_s = max(DRAIN_S_MIN, DRAIN_ANSWERS * answer_s)
    rounds = max(SLICES_MIN, math.ceil(point_s * (UNTIL_SHARE if until else 1.0) / each_s))
    if best is not None:
        rounds = best.slices(engines * (lead_s + each_s + drain_s))
        while rounds < SLICES_MIN and best.enough_s(rounds, answer_s) > LONGER_MAX * each_s:
            rounds += 1
        each_s = max(each_s, min(best.enough_s(rounds, answer_s), LONGER_MAX * each_s))
    slice_s = lead_s + each_s
    if rounds * (slice_s + drain_s) > COST_MAX * point_s:
        return None
    rng, order = random.Random(f"{seed}/slices"), list(range(engines))
    found: list[list[tuple[float, float]]] = [[] for _ in order]
    for number in range(rounds):
        rng.shuffle(order)
        for place, engine in enumerate(order):
            # one that goes on would keep its phases, and be compared with one that has just begun
            opens_s = (number * engines + place) * (slice_s + drain_s)
            found[engine].append((opens_s, opens_s + slice_s))
    requests = math.ceil(SPARE * rate_req_s * slice_s) if rate_req_s else 0
    return SlicePlan(slices=tuple(map(tuple, found)), lead_s=lead_s, drain_s=drain_s, requests=requests)
