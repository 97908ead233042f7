"""What a race is made of: its rules and entrants, what to measure next, what was measured, and what follows from that."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean, median
from typing import Literal

import numpy as np

from servebench.analysis.estimate import error_of
from servebench.analysis.verdict.blocks import Estimates, MeasuredBlock, estimate
from servebench.analysis.verdict.slices import SliceDifference, difference_of, slice_logs
from servebench.contracts.point_row import PointRow
from servebench.contracts.tuning import Objective, Result
from servebench.util.arrays import Floats
from servebench.util.proportions import wilson
from servebench.util.units import NS_PER_S

Phase = Literal["race", "finals", "contributions"]
Reason = Literal["start failed", "requests failed", "slo", "slower", "budget", "not tried", "answers"]

BLOCKS_MAX = 4
"""Blocks of one start at most."""
ROUNDS = 3
"""Rounds at most: as many starts as a grid with three repeats would give each candidate."""
FIRST_OF_PHASE: Mapping[Phase, int] = {"race": 0, "finals": 20, "contributions": 40}
"""The number of the first start of a phase: each start has prompts of its own, so those of the finals are new."""
STARTS_MAX = 60
BY_SLICES = frozenset({"output_throughput_tok_s", "cost_usd_per_mtok", "ttft_ms_p50_all", "e2e_ms_p50_all"})
"""The columns of objectives that slices have values of."""


@dataclass(frozen=True, kw_only=True)
class RaceRules:
    """The budget, in the unit of `Result.cost`, the margin and the error as shares, and the size of the finals."""

    budget: float
    margin: float = 0.03
    error: float = 0.05
    finalists: int = 3
    final_starts: int = 3
    levels: int = 1
    rounds: int = ROUNDS
    attainment: float | None = None
    """The share of requests that must meet the SLO; None for no limit."""
    ladder: tuple[float, ...] = ()
    """The levels, busiest first, if the objective is the highest load that meets the SLO. The values of results are then shares
    of good requests, and levels below the first that meets it are not measured."""
    ahead: bool = False
    """Starts of several candidates are decided together, so that machines can measure them at once."""
    sliced: bool = False
    """In the finals engines take turns, slice by slice: a start has one block, which costs what the results of others say
    (`sliced_cost`)."""


@dataclass(frozen=True, kw_only=True)
class RaceEntrant:
    """A candidate as the race sees it. `answers`: its answers must be checked before it may win, against those of `reference`
    (empty: stock). `take_backs` are the names of the candidates without one of its changes each. Of equal candidates the one at
    the least `distance` from stock wins."""

    name: str
    answers: bool = False
    reference: str = ""
    take_backs: tuple[str, ...] = ()
    distance: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """What to measure next: a block of a candidate at a level (0: the busiest), in a start of its engine; or, with `quality`,
    its answers."""

    candidate: str
    phase: Phase
    start: int
    block: int = 0
    level: int = 0
    quality: bool = False

    @property
    def repeat(self) -> int:
        """The number of the repeat, which fixes the prompts."""
        return self.start * BLOCKS_MAX + self.block


@dataclass(frozen=True, kw_only=True)
class Left:
    """Why and when a candidate left: after which round, and, if it was measured, how far behind the leader it was (a
    logarithm with its interval)."""

    reason: Reason
    round: int
    note: str = ""
    leader: str = ""
    behind: float | None = None
    low: float | None = None
    high: float | None = None


FAILED_SHARE = 0.01
"""The share of failed requests above which a candidate leaves."""


class Ledger:
    """The results of a race by candidate."""

    def __init__(self, rules: RaceRules, entrants: Sequence[RaceEntrant]) -> None:
        """Begin without results."""
        self.rules = rules
        self.entrants = {one.name: one for one in entrants}
        self.spent = 0.0
        self._own: dict[str, list[tuple[Step, Result]]] = {}
        self._known: dict[tuple[tuple[Phase, ...], int | None], Estimates | None] = {}

    def keep(self, step: Step, result: Result) -> None:
        """Add a result."""
        self._own.setdefault(step.candidate, []).append((step, result))
        self.spent += result.cost
        self._known.clear()

    def results(self, name: str) -> Sequence[tuple[Step, Result]]:
        """Return all steps of a candidate with their results."""
        return self._own.get(name, ())

    def measures_again(self, result: Result) -> bool:
        """Return whether a void point is worth another attempt: not if its requests failed, which is the engine's doing; nor if
        it took turns with others, or another stayed void in all attempts, for then something is wrong with all alike; nor beyond
        the budget."""
        failing = result.sent > 0 and wilson(result.failed, result.sent)[0] > FAILED_SHARE
        alike = any(kept.void for own in self._own.values() for _, kept in own)
        # alone it would have no slices to be compared by
        of_its_own = result.slice_group is None and not alike
        return result.void and not failing and of_its_own and self.spent + 2 * result.cost <= self.rules.budget

    @property
    def measured(self) -> list[str]:
        """The candidates with at least one value."""
        return [name for name, own in self._own.items() if any(one.value is not None for _, one in own)]

    def blocks(self, phases: Sequence[Phase] = ("race", "finals"), level: int | None = None) -> list[MeasuredBlock]:
        """Return the values of the blocks of these phases: those of one level, or the means of blocks with all levels."""
        found: dict[tuple[str, str, int], dict[int, Result]] = {}
        for name, own in self._own.items():
            for step, result in own:
                if result.value is not None and math.isfinite(result.value) and step.phase in phases:
                    start = f"{name}/{step.start}/{result.start_id}"
                    found.setdefault((name, start, step.repeat), {})[step.level] = result
        if self.rules.ladder:
            shares = ((key, {at: one.value or 0.0 for at, one in known.items()}) for key, known in found.items())
            # a block has a load once a level of it passes, or all are measured
            known = [(key, own) for key, own in shares if self.passes(own) or len(own) == len(self.rules.ladder)]
            loads = [(key, [(self.rules.ladder[at], one) for at, one in own.items()]) for key, own in known]
            return [MeasuredBlock(*key, highest_load(own, self.rules.attainment or 1.0)) for key, own in loads]
        asked = range(self.rules.levels) if level is None else (level,)
        whole = ((key, [known[at] for at in asked]) for key, known in found.items() if known.keys() >= set(asked))
        return [MeasuredBlock(*key, fmean(one.value or 0.0 for one in own), _error_of_mean(own)) for key, own in whole]

    def passes(self, shares: Mapping[int, float]) -> bool:
        """Return whether one of some shares of good requests, by level, meets the SLO."""
        return any(share >= (self.rules.attainment or 1.0) for share in shares.values())

    def estimates(self, phases: Sequence[Phase] = ("race", "finals"), level: int | None = None) -> Estimates | None:
        """Return the estimates from the blocks of these phases, with the spread of everything; None without blocks."""
        key = (tuple(phases), level)
        if key not in self._known:
            blocks = self.blocks(phases, level)
            everything = self.blocks(("race", "finals", "contributions"), level)
            self._known[key] = estimate(blocks, everything) if blocks else None
        return self._known[key]

    def slice_differences(self, one: str, other: str) -> list[SliceDifference]:
        """Return the differences of starts of two candidates that took turns slice by slice: of `one` from `other`."""
        beside = {result.slice_group: result.slices for _, result in self.results(other) if result.slices}
        starts: dict[int, list[tuple[Floats, Floats]]] = {}
        for step, result in self.results(one):
            if result.slices and result.slice_group in beside:
                pair = np.array(beside[result.slice_group]), np.array(result.slices)
                starts.setdefault(step.start, []).append(pair)
        whole = (difference_of(pairs) for pairs in starts.values() if len(pairs) == self.rules.levels)
        return [each for each in whole if each is not None]

    def cost_of_start(self, blocks: float, name: str | None = None) -> float:
        """Return the predicted cost of a start with this many blocks; 0 as long as nothing is known."""
        first = self._costs(name, begins=True) or self._costs(None, begins=True)
        points = [result.point_cost for own in self._own.values() for _, result in own if result.point_cost]
        more = self._costs(name, begins=False) or self._costs(None, begins=False) or points
        steps = blocks * self.rules.levels - 1
        begun = median(first) if first else 0.0
        # where nothing says what a second block costs, it is taken to be a third of a start with one
        return begun + steps * (median(more) if more else begun / 3)

    def cost_in_slices(self, name: str | None, stock: str) -> float:
        """Return the predicted cost of a start with one block in slices, which stock takes as long as any: it is in them, too."""
        more: dict[int, float] = {}
        for step, result in self.results(stock):
            more[step.level] = max(result.sliced_cost - result.point_cost, more.get(step.level, 0.0))
        return self.cost_of_start(1, name) + sum(more.values())

    def cost_of_answers(self) -> float:
        """Return what a check of answers is predicted to cost."""
        known = [result.cost for own in self._own.values() for step, result in own if step.quality]
        return max(known, default=2 * self.cost_of_start(1))

    def _costs(self, name: str | None, *, begins: bool) -> list[float]:
        steps = (one for each in (list(self._own) if name is None else [name]) for one in self.results(each))
        known = ((step, one) for step, one in steps if one.value is not None and one.slice_group is None)
        return [one.cost for step, one in known if not step.quality and (step.block + step.level == 0) == begins]


def _error_of_mean(results: Sequence[Result]) -> float | None:
    """The standard error of the mean of results; None where one has none."""
    errors = [one.error for one in results if one.error is not None]
    return math.hypot(*errors) / len(errors) if len(errors) == len(results) else None


def highest_load(shares: Sequence[tuple[float, float]], attainment: float) -> float:
    """Return the logarithm of the highest load at which the share of good requests is at least `attainment`, from pairs of a
    load and its share: between two measured loads by a straight line over the logarithm, below the lowest in proportion."""
    ordered = sorted(shares)
    passing = [load for load, share in ordered if share >= attainment]
    if not passing:
        load, share = ordered[0]
        return math.log(load) + math.log(max(share, 0.01) / attainment)
    best = max(passing)
    own = dict(ordered)
    above = [load for load, _ in ordered if load > best]
    if not above:
        return math.log(best)
    drop = own[best] - own[above[0]]
    part = (own[best] - attainment) / drop if drop > 0 else 0.0
    return math.log(best) + min(part, 1.0) * math.log(above[0] / best)


def result_of_point(row: PointRow, objective: Objective, cost: float) -> Result:
    """Return what a point says."""
    sliced = row.slice_group is not None and objective.column in BY_SLICES
    # in slices no request counts as infinitely slow: who fails more than a few has left
    logs = slice_logs(row, objective.column.removesuffix("_all")) if sliced else np.empty(0)
    effect = max(1.0, row.slo_design_effect or 1.0)
    failed, answered = row.requests_failed or 0, row.requests_ok or 0
    # requests were answered, but others on the machine disturbed all of them
    unknown = bool(objective.column and answered) and row.get(objective.column) is None
    return Result(
        value=good_share(row) if not objective.column else log_value(row.get(objective.column), objective),
        error=(error_of((row,), objective.column) or None) if objective.column else None,
        cost=cost,
        good=(row.slo_good or 0) / effect,
        tested=(row.slo_requests or 0) / effect,
        failed=failed,
        sent=failed + answered,
        start_id=row.start_id or "",
        void=row.verdict == "void" or unknown,
        slice_group=row.slice_group,
        slices=tuple((logs if objective.higher else -logs).tolist()),
    )


def good_share(row: PointRow) -> float:
    """The share of requests that met the SLO."""
    return (row.slo_good or 0) / row.slo_requests if row.slo_requests else 0.0


def log_value(value: float | None, objective: Objective) -> float:
    """Return the logarithm of an objective's value, higher for better; minus infinity where nothing was achieved."""
    if value is None or not math.isfinite(value) or value <= 0:
        return -math.inf
    return math.log(value) if objective.higher else -math.log(value)


def shown_value(log: float, objective: Objective) -> float:
    """Return an objective's value from its logarithm."""
    return math.exp(log if objective.higher else -log)


def engine_seconds(row: PointRow, rows: Sequence[PointRow]) -> tuple[float, bool]:
    """Return for how long the engine ran for a point: since the point before it in the same start, or since its start. The second
    value says whether it is the first of its start."""
    if row.start_id is None or row.window_end_ns is None:
        return 0.0, True
    earlier = [
        int(one.window_end_ns)
        for one in rows
        if one.start_id == row.start_id and one.window_end_ns is not None and one.window_end_ns < row.window_end_ns
    ]
    began = max(earlier) if earlier else datetime.fromisoformat(row.start_id).timestamp() * NS_PER_S
    return max(0.0, (int(row.window_end_ns) - began) / NS_PER_S), not earlier
