"""How `servebench tune` errs: its race on simulated candidates whose truth is known, beside three other ways to choose.

A candidate is a mean (a logarithm), an engine that may not start, a speed of its own in each start, and noise in each block. No
request is simulated: what the race sees of a block is its value, so thousands of races cost minutes.

The others get what they need: the grid measures whole points in three starts of every candidate; successive halving (Jamieson and
Talwalkar 2016) has the race's own engine time, halves the candidates after each round and spends equally on each round.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean

from calibration.cells import CalibrationCell, Outcome, Promise
from servebench.analysis.tuning.answer import AGAIN_STARTS, contribution_of, gain_of, recommended, verdict_of
from servebench.analysis.tuning.ledger import RaceEntrant, RaceRules, Step
from servebench.analysis.tuning.race import Race
from servebench.analysis.verdict.model import Difference
from servebench.contracts.tuning import Result
from servebench.report.export.markdown import table

CANDIDATES = 24
CHANGES = 2
"""Settings of each candidate that can be taken back."""
START_S, BLOCK_S = 60.0, 20.0
"""The cold start of an engine and its warm-up, and a block of load."""
POINT_BLOCKS = 3
"""Blocks in a whole point, as the grid measures it."""
REPEATS = 3
MARGIN = 0.03
BUDGET_SHARE = 0.45
"""The race's budget, as a share of the grid's engine time."""
FAILED_START_S = 20.0
MACHINE_S = 60.0
NEW = 1000
"""The number of the first start after a study."""
SLICES, SLICE_SD, SLICED_S = 6, 0.03, 20.0
"""Slices of a block in the finals, and by how much those of one candidate differ beside what the machine does; and how
much longer they take than a block."""

WRONG = Promise(
    name="tune",
    text="`servebench tune` picks settings that are more than the margin of 3% worse than the best, "
    f"with {CANDIDATES} candidates and {BUDGET_SHARE:.0%} of the engine time of a grid with three repeats",
    bar=0.05,
)
HELD = Promise(
    name="tune_gain",
    text="the interval of `servebench tune`'s gain over stock, from the finals alone, holds the true gain",
    bar=0.95,
    at_most=False,
)
AGAIN = Promise(
    name="tune_again",
    text=f"the gain in {AGAIN_STARTS} new starts of each that are no slow ones, by their mean, is in the interval that "
    "`servebench tune` gives for it",
    bar=0.95,
    at_most=False,
)
EQUAL = Promise(
    name="tune_aa",
    text=f"where all {CANDIDATES} candidates are equal, `servebench tune` calls one better than stock",
    bar=0.05,
)
PARTS = Promise(
    name="tune_parts",
    text="the interval of what a setting of the winner contributes holds the truth in 95% of them",
    bar=0.95,
    at_most=False,
)


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """The truth: `means` draws the logarithms of all candidates, the first of which is stock, and None where an engine does not
    start. `drift` is by how much everything slows down over the race's budget. With `rough_sd`, starts of every third candidate
    differ by that much. One of `slow_of` starts is slower by 20%. `machine_sd` is by how much the machine wanders, over
    MACHINE_S; with `sliced` the finalists take turns, slice by slice."""

    name: str
    means: Callable[[random.Random], Sequence[float | None]]
    start_sd: float = 0.01
    block_sd: float = 0.01
    drift: float = 0.0
    rough_sd: float | None = None
    slow_of: int | None = None
    machine_sd: float = 0.0
    sliced: bool = False


def _spread_below(rng: random.Random, count: int, nearest: float, farthest: float) -> list[float]:
    return [-math.exp(rng.uniform(math.log(nearest), math.log(farthest))) for _ in range(count)]


def _clear(rng: random.Random) -> list[float | None]:
    """One setting is 12% better than all others."""
    return _shuffled(rng, [0.0, *_spread_below(rng, CANDIDATES - 1, 0.12, 0.7)])


def _plateau(rng: random.Random) -> list[float | None]:
    """A third of the settings are within 4% of each other, on both sides of the margin."""
    near = [-rng.uniform(0, 0.04) for _ in range(CANDIDATES // 3 - 1)]
    return _shuffled(rng, [0.0, *near, *_spread_below(rng, CANDIDATES - len(near) - 1, 0.06, 0.5)])


def _cliff(rng: random.Random) -> list[float | None]:
    """More is better, by 4% a step, until the engine runs out of memory."""
    steps = [-0.04 * index for index in range(CANDIDATES - CANDIDATES // 3)]
    dead: list[float | None] = [None] * (CANDIDATES // 3)
    return _shuffled(rng, [*steps, *dead])


def _close(rng: random.Random) -> list[float | None]:
    """The best is 5% ahead of the next few."""
    near = [-rng.uniform(0.05, 0.09) for _ in range(4)]
    return _shuffled(rng, [0.0, *near, *_spread_below(rng, CANDIDATES - 5, 0.09, 0.6)])


def _equal(_: random.Random) -> list[float | None]:
    """Nothing is better than stock."""
    return [0.0] * CANDIDATES


def _shuffled(rng: random.Random, found: Sequence[float | None]) -> list[float | None]:
    """In random order, with an engine that starts as stock."""
    mixed = list(found)
    rng.shuffle(mixed)
    first = next(index for index, one in enumerate(mixed) if one is not None)
    mixed[0], mixed[first] = mixed[first], mixed[0]
    return mixed


LANDSCAPES = (
    Landscape(name="clear winner", means=_clear),
    Landscape(name="plateau", means=_plateau),
    Landscape(name="cliff of memory", means=_cliff),
    Landscape(name="starts differ by 3%", means=_close, start_sd=0.03),
    Landscape(name="drift of 8%", means=_close, drift=0.08),
)
HARDER = (
    Landscape(name="starts differ by 6%", means=_close, start_sd=0.06),
    Landscape(name="starts and blocks differ by 3%", means=_close, start_sd=0.03, block_sd=0.03),
    Landscape(name="starts of a third differ by 10%", means=_close, rough_sd=0.10),
    Landscape(name="1 of 12 starts is slower by 20%", means=_close, slow_of=12),
)
"""Where it is known to err more often: shown, without a promise on the choice."""
WANDERING = (
    Landscape(name="the machine wanders by 10%", means=_close, machine_sd=0.10),
    Landscape(name="the machine wanders by 10%, slice by slice", means=_close, machine_sd=0.10, sliced=True),
    Landscape(name="starts differ by 3%, slice by slice", means=_close, start_sd=0.03, sliced=True),
    Landscape(name="1 of 12 starts is slower by 20%, slice by slice", means=_close, slow_of=12, sliced=True),
)
ALL_EQUAL = (
    Landscape(name="all equal, starts differ by 1%", means=_equal),
    Landscape(name="all equal, starts differ by 3%", means=_equal, start_sd=0.03),
    Landscape(name="all equal, starts differ by 6%", means=_equal, start_sd=0.06),
    Landscape(name="all equal, starts and blocks differ by 3%", means=_equal, start_sd=0.03, block_sd=0.03),
    Landscape(name="all equal, starts of a third differ by 10%", means=_equal, rough_sd=0.10),
    Landscape(name="all equal, 1 of 12 starts is slower by 20%", means=_equal, slow_of=12),
    Landscape(name="all equal, drift of 8%", means=_equal, drift=0.08),
    *(
        replace(one, name=f"all equal, {one.name}", means=_equal)
        for one in (*WANDERING, Landscape(name="slice by slice", means=_equal, sliced=True))
    ),
)


@dataclass
class SimulatedTune:
    """The candidates of one study and the engine time that was spent on them."""

    landscape: Landscape
    seed: int
    spent_s: float = 0.0
    means: Sequence[float | None] = field(init=False)
    _machine: list[float] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Draw the truth."""
        self.means = self.landscape.means(random.Random(f"{self.seed}/truth"))

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates, stock first."""
        return tuple(f"t{index:02d}" for index in range(len(self.means)))

    @property
    def grid_s(self) -> float:
        """The engine time of a grid with three repeats: an engine that does not start is tried once."""
        whole = START_S + POINT_BLOCKS * BLOCK_S
        return sum(REPEATS * whole if mean is not None else FAILED_START_S for mean in self.means)

    def mean(self, name: str) -> float | None:
        """Return the true logarithm of a candidate, or of one without a setting: `t03/1` is `t03` without its second one."""
        number, _, change = name[1:].partition("/")
        whole = self.means[int(number)]
        if whole is None or not change:
            return whole
        return whole - random.Random(f"{self.seed}/part/{name}").uniform(-0.02, 0.10)

    def changes(self, name: str) -> float:
        """Return by how many settings a candidate differs from stock: 1 to 4."""
        return float(random.Random(f"{self.seed}/changes/{name}").randint(1, 4)) if name != self.names[0] else 0.0

    def start_sd(self, name: str) -> float:
        """Return by how much starts of a candidate differ."""
        number = int(name[1:].partition("/")[0])
        rough = self.landscape.rough_sd
        return rough if rough is not None and number % 3 == 1 else self.landscape.start_sd

    def regret(self, name: str | None) -> float:
        """Return by which share a candidate is worse than the best."""
        best = max(one for one in self.means if one is not None)
        mean = self.mean(name) if name is not None else None
        return 1.0 if mean is None else 1 - math.exp(mean - best)

    def block(self, name: str, start: str, block: int) -> tuple[float | None, float]:
        """Measure a block and return its value, and what it cost. Block 0 begins the start."""
        mean = self.mean(name)
        if mean is None:
            self.spent_s += FAILED_START_S
            return None, FAILED_START_S
        cost = BLOCK_S + (START_S if block == 0 else 0.0)
        self.spent_s += cost
        own = random.Random(f"{self.seed}/{name}/{start}")
        speed = own.gauss(0.0, self.start_sd(name))
        noise = [own.gauss(0.0, self.landscape.block_sd) for _ in range(block + 1)][-1]
        shared = random.Random(f"{self.seed}/{start}/{block}").gauss(0.0, 0.01)
        slow = self.landscape.slow_of
        if slow is not None and random.Random(f"{self.seed}/slow/{name}/{start}").random() * slow < 1:
            speed += math.log(0.8)
        drift = self.landscape.drift * self.spent_s / (BUDGET_SHARE * self.grid_s)
        return mean + speed + noise + shared - drift + self._machine_now(), cost

    def _machine_now(self) -> float:
        """The speed of the machine in this block (a logarithm), which is mostly that of the block before."""
        rng, now = random.Random(f"{self.seed}/machine"), int(self.spent_s // BLOCK_S)
        if not self.landscape.machine_sd:
            return 0.0
        kept, at = math.exp(-BLOCK_S / MACHINE_S), rng.gauss(0.0, 1.0)
        for _ in range(now):
            at = kept * at + math.sqrt(1 - kept**2) * rng.gauss(0.0, 1.0)
        return self.landscape.machine_sd * at

    def slices(self, name: str, start: int, value: float) -> tuple[float, ...]:
        """Return the slices of a block with this value: what the machine does to them it does to those of all candidates."""
        machine = random.Random(f"{self.seed}/machine/{start}")
        own = random.Random(f"{self.seed}/slices/{name}/{start}")
        wander = [self.landscape.machine_sd * machine.gauss(0.0, 1.0) for _ in range(SLICES)]
        return tuple(value - self._machine_now() + one + own.gauss(0.0, SLICE_SD) for one in wander)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What a method chose, the engine seconds that it took, and whether its interval of the gain holds the truth."""

    regret: float
    seconds: float
    held: bool | None = None
    again: bool | None = None


def race(study: SimulatedTune, budget_s: float | None = None) -> Chosen:
    """Return what the race chooses."""
    found = _raced(study, BUDGET_SHARE * study.grid_s if budget_s is None else budget_s)
    pick = recommended(found)
    return Chosen(
        regret=study.regret(pick),
        seconds=study.spent_s,
        held=_holds(gain_of(found), study, found.best, found.stock),
        again=_kept(gain_of(found, AGAIN_STARTS), study, found.best, found.stock),
    )


def _raced(study: SimulatedTune, budget_s: float, changes: int = 0) -> Race:
    """Return a race that has ended; each candidate has so many settings that can be taken back."""
    entrants = [
        RaceEntrant(
            name=name,
            take_backs=tuple(f"{name}/{index}" for index in range(changes)),
            distance=(study.changes(name),),
        )
        for name in study.names
    ]
    found = Race(RaceRules(budget=budget_s, margin=MARGIN, sliced=study.landscape.sliced), entrants)
    while (step := found.next_step()) is not None:
        found.add(_result(study, step))
    return found


def _result(study: SimulatedTune, step: Step) -> Result:
    value, cost = study.block(step.candidate, str(step.start), step.block)
    if value is None:
        return Result(cost=cost, failure="out of memory", start_id=str(step.start))
    found = Result(value=value, cost=cost, start_id=str(step.start), sent=100, sliced_cost=SLICED_S)
    if not study.landscape.sliced or step.phase != "finals":
        return found
    slices = study.slices(step.candidate, step.start, value)
    study.spent_s += SLICED_S
    return replace(
        found,
        value=fmean(slices),
        cost=cost + SLICED_S,
        slice_group=f"{step.start}",
        slices=slices,
    )


def _holds(gain: Difference | None, study: SimulatedTune, one: str | None, other: str) -> bool | None:
    """Whether an interval holds the true gain; None without one of them."""
    true, beside = study.mean(one) if one is not None else None, study.mean(other)
    if gain is None or true is None or beside is None:
        return None
    return gain.low <= math.expm1(true - beside) <= gain.high


def _kept(expected: Difference | None, study: SimulatedTune, one: str | None, other: str) -> bool | None:
    """Whether new starts of two candidates, in turns, differ by as much as was expected; None without one of them."""
    if expected is None or one is None:
        return None
    usual = replace(study, landscape=replace(study.landscape, slow_of=None))
    found = [
        [
            _result(usual, Step(candidate=name, phase="finals", start=NEW + start)).value or -math.inf
            for name in (one, other)
        ]
        for start in range(AGAIN_STARTS)
    ]
    return expected.low <= math.expm1(fmean(ours - theirs for ours, theirs in found)) <= expected.high


def contributions(study: SimulatedTune) -> list[bool]:
    """Return for each setting of the winner whether the interval of its contribution holds the truth."""
    found = _raced(study, study.grid_s, CHANGES)
    held = (_holds(contribution_of(found, name), study, found.best, name) for name in found.contributions_of)
    return [one for one in held if one is not None]


def grid(study: SimulatedTune) -> Chosen:
    """Return what a grid with three repeats chooses: the best mean of whole points."""
    means = {name: _mean_of(study, name, REPEATS, POINT_BLOCKS, "grid") for name in study.names}
    return Chosen(regret=study.regret(max(means, key=lambda name: means[name])), seconds=study.spent_s)


def successive_halving(study: SimulatedTune, budget_s: float) -> Chosen:
    """Return what successive halving chooses with this engine time: all rounds cost the same, and each keeps half."""
    left = list(study.names)
    rounds = max(1, math.ceil(math.log2(len(left))))
    values: dict[str, list[float]] = {name: [] for name in left}
    for number in range(rounds):
        share = budget_s / rounds
        each = share / len(left)
        blocks = POINT_BLOCKS if each >= START_S + POINT_BLOCKS * BLOCK_S else 1
        starts = max(1, int(each // (START_S + blocks * BLOCK_S)))
        for name in left:
            if study.spent_s < budget_s:
                values[name].append(_mean_of(study, name, starts, blocks, f"halving{number}"))
        left.sort(key=lambda name: -fmean(values[name]) if values[name] else math.inf)
        left = left[: max(1, math.ceil(len(left) / 2))]
    return Chosen(regret=study.regret(left[0]), seconds=study.spent_s)


def _mean_of(study: SimulatedTune, name: str, starts: int, blocks: int, what: str) -> float:
    """The mean of a candidate over starts; minus infinity for one that does not start."""
    found: list[float] = []
    for start in range(starts):
        for block in range(blocks):
            value, _ = study.block(name, f"{what}-{start}", block)
            if value is None:
                return -math.inf
            found.append(value)
    return fmean(found)


def cells() -> list[CalibrationCell]:
    """Return a cell for each landscape."""
    kinds = (
        ((WRONG, HELD, AGAIN), _trial, LANDSCAPES),
        ((HELD, AGAIN), _trial, (*HARDER, *WANDERING)),
        ((EQUAL,), equal_trial, ALL_EQUAL),
        ((PARTS,), _parts_trial, (*LANDSCAPES, *HARDER)),
    )
    return [
        CalibrationCell(promises=promises, name=one.name, trial=partial(trial, landscape=one))
        for promises, trial, landscapes in kinds
        for one in landscapes
    ]


def _trial(seed: int, _truth: None, *, landscape: Landscape) -> Outcome:
    found = race(SimulatedTune(landscape, seed))
    kept = {
        (promise, ""): None if one is None else float(one)
        for promise, one in ((HELD, found.held), (AGAIN, found.again))
    }
    chosen: Outcome = {(WRONG, ""): float(found.regret > MARGIN)} if landscape in LANDSCAPES else {}
    return {**chosen, **kept}


def equal_trial(seed: int, _truth: None, *, landscape: Landscape) -> Outcome:
    """Return whether a candidate is called better than stock."""
    study = SimulatedTune(landscape, seed)
    return {(EQUAL, ""): float(verdict_of(_raced(study, BUDGET_SHARE * study.grid_s)) == "better")}


def _parts_trial(seed: int, _truth: None, *, landscape: Landscape) -> Outcome:
    held = contributions(SimulatedTune(landscape, seed))
    return {(PARTS, f"part {index + 1}"): float(one) for index, one in enumerate(held)} or {(PARTS, "part 1"): None}


Method = Callable[[SimulatedTune, float], Chosen]
METHODS: Mapping[str, Method] = {
    "servebench tune": lambda study, _: race(study),
    "grid, 3 repeats": lambda study, _: grid(study),
    "successive halving, same time": successive_halving,
}


def tune_page(
    repetitions: int, seed: int, progress: Callable[[str], None], methods: Mapping[str, Method] = METHODS
) -> str:
    """Return the table of all methods side by side as Markdown; `progress` gets each line as it is known."""
    rows = []
    for landscape in (*LANDSCAPES, *HARDER):
        rng = random.Random(f"{seed}/tune/{landscape.name}")
        seeds = [rng.randrange(1 << 31) for _ in range(repetitions)]
        spent: dict[int, float] = {}
        for name, method in methods.items():
            found = []
            for one in seeds:
                chosen = method(SimulatedTune(landscape, one), spent.get(one, 0.0))
                spent.setdefault(one, chosen.seconds)
                found.append(chosen)
            rows.append(
                [landscape.name, name, *_figures(found, [SimulatedTune(landscape, one).grid_s for one in seeds])]
            )
            progress(" | ".join(rows[-1]))
    columns = ["landscape", "method", "more than 3% worse than the best", "mean loss"]
    return "\n".join([*table([*columns, "engine time, share of the grid's"], rows), ""])


def _figures(found: Sequence[Chosen], grids: Sequence[float]) -> list[str]:
    wrong = sum(one.regret > MARGIN for one in found)
    share = [one.seconds / grid_s for one, grid_s in zip(found, grids, strict=True)]
    return [f"{wrong} of {len(found)}", f"{fmean(one.regret for one in found):.2%}", f"{fmean(share):.0%}"]
