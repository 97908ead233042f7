"""The race between candidates: what to measure next, who leaves, and who wins. Pure, without clocks and files.

*Rounds.* In each round every candidate that is left starts its engine once and measures the same blocks, stock first in the
first round, in alternating directions, so that what drifts hits all alike. How many blocks a start measures follows from what
starts and blocks cost and how much each varies: the square root of the two ratios' product is the cheapest (Cochran 1977,
"Sampling Techniques", section 10.6).

*Looks.* After round n, a candidate leaves when it is worse than the leader by more than the margin, one-sided, at the level
error / (n + 1). One that fails the SLO, or more than a few requests, leaves at once, and so does one whose engine does not start:
that is a result, and costs no second try. Between blocks of one start a candidate that would leave is not measured on.

*Budget.* The finals are reserved first. The first round may take EXPLORE of the budget; candidates that do not fit are not
tried. If another round of all does not fit, those with the lowest estimates leave, as `budget` says. Nothing is begun that is
predicted to end after the budget.

*Ahead.* With `ahead`, which is for a cluster, all starts of a round that are predicted to fit are decided together and stand in
`upcoming`, so that they can be measured at once; nothing that one of them gives changes the others. A start is then measured as
a whole, and what the race does not ask of it counts as spent.

*Finals.* The best few, and stock, start again on prompts that nobody has seen, interleaved. The best is that by all that was
measured, or one that is known to be within the margin of it and is nearer to stock. Its gain over stock is from the finals alone,
so the luck that brought it there is not in it: by the ratios of slices where the engines took turns. Then each of its settings is
taken back, one at a time.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from servebench.analysis.tuning.ledger import (
    BLOCKS_MAX,
    FAILED_SHARE,
    FIRST_OF_PHASE,
    Ledger,
    Left,
    Phase,
    RaceEntrant,
    RaceRules,
    Reason,
    Step,
)
from servebench.analysis.verdict.blocks import Estimates
from servebench.contracts.tuning import Result
from servebench.util.proportions import wilson

EXPLORE = 0.6
"""The share of the budget that the first round may take."""
FINALS_SHARE = 0.4
"""Of the budget, that the finals may take; there are fewer finalists, or starts of each, where that does not suffice."""
FINAL_STARTS_MIN = 2
CONTRIBUTIONS_SHARE = 0.15
"""Of the budget, that is kept for taking back the best candidate's settings."""
CONTRIBUTION_STARTS = 2


class Race(Ledger):
    """The race as a script that asks for one step after another. Results are added in the order in which they were asked for;
    the same results lead to the same steps, so a race that was cut off goes on from what is stored."""

    def __init__(
        self, rules: RaceRules, entrants: Sequence[RaceEntrant], unasked: Callable[[str, int], float] | None = None
    ) -> None:
        """The first entrant is the stock settings. `unasked` returns what a start of a candidate has cost beside the steps that
        the race has asked for."""
        super().__init__(rules, entrants)
        self.upcoming: tuple[tuple[Step, ...], ...] = ()
        """The starts that are decided, each with all its steps: nothing that one of them gives changes which others follow."""
        self._unasked = unasked
        self.stock = entrants[0].name
        self.round = 0
        self.left: dict[str, Left] = {}
        self.finalists: tuple[str, ...] = ()
        self.best: str | None = None
        self.equals: tuple[str, ...] = ()
        """Those with higher estimates than the best, to which it is equal and nearer to stock."""
        self.contributions_of: tuple[str, ...] = ()
        self.phase: Phase = "race"
        self._sliced: bool | None = None
        self._pending: Step | None = None
        self._script = self._run()
        self._checked: dict[str, bool] = {}

    def next_step(self) -> Step | None:
        """Return what to measure next; None when the race is over."""
        if self._pending is None:
            self._pending = next(self._script, None)
        return self._pending

    def add(self, result: Result) -> None:
        """Take the result of the step that was asked for."""
        step = self.next_step()
        assert step is not None
        self._pending = None
        self.keep(step, result)

    @property
    def alive(self) -> list[str]:
        """The candidates that have not left."""
        return [name for name in self.entrants if name not in self.left]

    @property
    def leader(self) -> str | None:
        """The best candidate that has not left; None before any was measured."""
        found = self.estimates()
        return self._leader_of(found) if found is not None else None

    def _leader_of(self, found: Estimates) -> str | None:
        """The best that may win: one that spoils answers must not drive out others."""
        names = (name for name in found.ranking if name not in self.left)
        return next((name for name in names if not self.entrants[name].answers or self._checked.get(name)), None)

    def _fits(self, cost: float, limit: float | None = None) -> bool:
        return self.spent + cost <= (self.rules.budget if limit is None else limit)

    @property
    def reserved(self) -> float:
        """What the finals are predicted to cost, and taking back the settings of the leader, if that is not too much."""
        finalists, starts = self._finals_plan()
        finals = (finalists + 1) * starts * self._cost_of_final(self._blocks_per_start())
        leader = self.leader if any(one.take_backs for one in self.entrants.values()) else None
        back = len(self.entrants[leader].take_backs) if leader is not None else 0
        contributions = (back + 1) * self.cost_of_start(1) if back else 0.0
        return finals + (contributions if contributions <= CONTRIBUTIONS_SHARE * self.rules.budget else 0.0)

    def _finals_plan(self) -> tuple[int, int]:
        """Return how many finalists there are beside stock, and how many starts each has: fewer where the budget is small."""
        finalists = min(self.rules.finalists, max(1, len(self.alive) - 1))
        starts, cost = self.rules.final_starts, self._cost_of_final(self._blocks_per_start())
        room = FINALS_SHARE * self.rules.budget
        while (finalists + 1) * starts * cost > room and (finalists > 1 or starts > FINAL_STARTS_MIN):
            if finalists > 1 and finalists >= starts - 1:
                finalists -= 1
            else:
                starts = max(starts - 1, FINAL_STARTS_MIN)
        return finalists, starts

    @property
    def least_budget(self) -> float:
        """The budget with which one candidate could be compared with stock."""
        return 2 * self.cost_of_start(1) + self.least_finals

    @property
    def least_finals(self) -> float:
        """What finals of one candidate and stock cost."""
        return 2 * FINAL_STARTS_MIN * self._cost_of_final(1)

    def _cost_of_final(self, blocks: int, name: str | None = None) -> float:
        """What a start in the finals is predicted to cost, which has so many blocks, or one in slices."""
        return self.cost_in_slices(name, self.stock) if self.sliced else self.cost_of_start(blocks, name)

    @property
    def sliced(self) -> bool:
        """Whether the finals are in slices: the fewest starts of one finalist and stock fit into their share of the budget, or
        cost no more than ordinary ones."""
        if self._sliced is not None:
            return self._sliced
        ordinary = 2 * FINAL_STARTS_MIN * self.cost_of_start(1)
        return self.rules.sliced and self.least_in_slices <= max(FINALS_SHARE * self.rules.budget, ordinary)

    @property
    def least_in_slices(self) -> float:
        """What finals of one candidate and stock cost in slices."""
        return 2 * FINAL_STARTS_MIN * self.cost_in_slices(None, self.stock)

    def _blocks_per_start(self) -> int:
        """How many blocks of a start are worth their cost, as far as the fewest finals can have so many."""
        found = self.estimates()
        one, two = self.cost_of_start(1), self.cost_of_start(2)
        block = two - one
        start = max(one - block, 0.0)
        if block <= 0 or found is None:
            return 1
        count = max(1, min(BLOCKS_MAX, round(found.block_to_start * math.sqrt(start / block))))
        while count > 1 and 2 * FINAL_STARTS_MIN * self.cost_of_start(count) > FINALS_SHARE * self.rules.budget:
            count -= 1
        return count

    def _run(self) -> Iterator[Step]:
        yield from self._first_round()
        while self._another_round():
            yield from self._later_round()
        yield from self._finals()
        yield from self._contributions()

    def _first_round(self) -> Iterator[Step]:
        self.round = 1

        def blocks() -> int:
            """More than one in a start only where all candidates fit with so many."""
            count, room = self._blocks_per_start(), EXPLORE * self.rules.budget / len(self.entrants)
            while count > 1 and self.cost_of_start(count) > room:
                count -= 1
            return count

        def fits(names: Sequence[str]) -> bool:
            cost = len(names) * self.cost_of_start(blocks())
            explores = self._fits(cost, EXPLORE * self.rules.budget) and self._fits(cost + self.reserved)
            return explores or list(names) == [self.stock]

        for names, fit in self._batches(self.entrants, fits):
            if fit:
                yield from self._starts(names, "race", 0, blocks())
            else:
                self.left[names[0]] = Left(reason="not tried", round=1)
        yield from self._look()

    def _batches(
        self, names: Iterable[str], fits: Callable[[Sequence[str]], bool]
    ) -> Iterator[tuple[Sequence[str], bool]]:
        """Yield who starts next, and whether that fits: one after another, or with `ahead`, once a cost is known, as many as
        are predicted to fit together."""
        waiting = deque(names)
        while waiting:
            batch = [waiting.popleft()]
            fit = fits(batch)
            while fit and self.rules.ahead and self.measured and waiting and fits([*batch, waiting[0]]):
                batch.append(waiting.popleft())
            yield batch, fit

    def _another_round(self) -> bool:
        """Whether another round is made; those that it cannot afford leave."""
        alive, leader = self.alive, self.leader
        finalists, _ = self._finals_plan()
        if leader is None or self.round >= self.rules.rounds or len(alive) <= finalists:
            return False
        blocks = self._blocks_per_start()
        room = self.rules.budget - self.spent - self.reserved
        affordable = int(room // max(self.cost_of_start(blocks), 1e-9))
        if affordable <= finalists:
            self._cut(finalists)
            return False
        # half of what is left, so that a round of fewer can follow
        self._cut(max(finalists + 1, affordable // 2 if affordable < 2 * len(alive) else len(alive)))
        return not self._all_equal()

    def _later_round(self) -> Iterator[Step]:
        self.round += 1
        order = self.alive
        if self.round % 2 == 0:
            order.reverse()
        blocks = self._blocks_per_start()

        def fits(names: Sequence[str]) -> bool:
            return self._fits(sum(self.cost_of_start(blocks, name) for name in names) + self.reserved)

        for names, fit in self._batches(order, fits):
            if fit:
                yield from self._starts(names, "race", self.round - 1, blocks)
        yield from self._look()

    def _starts(self, names: Sequence[str], phase: Phase, number: int, blocks: int) -> Iterator[Step]:
        """Ask for a start of each of these candidates."""
        start = FIRST_OF_PHASE[phase] + number
        starts = [
            tuple(
                Step(candidate=name, phase=phase, start=start, block=block, level=level)
                for block in range(blocks)
                for level in range(self.rules.levels)
            )
            for name in names
        ]
        self.upcoming = tuple(starts)
        for steps in starts:
            yield from self._start(steps)
            if self._unasked is not None:
                self.spent += self._unasked(steps[0].candidate, start)
        self.upcoming = ()

    def _start(self, steps: Sequence[Step]) -> Iterator[Step]:
        """Ask for the blocks of one start, until it is clear that the candidate leaves."""
        name, phase = steps[0].candidate, steps[0].phase
        for block in range(len(steps) // self.rules.levels):
            for level in range(self.rules.levels):
                may_leave = block + level and phase == "race" and name != self.stock and not self.rules.ahead
                if may_leave and self._leaves_now(name, level):
                    return
                yield steps[block * self.rules.levels + level]
                last = self._own[name][-1][1]
                # stock is the baseline: it is measured on, as long as it runs
                if self._disqualified(name) and (name != self.stock or last.failure):
                    return
                if self.rules.ladder and last.value is not None and self.passes({level: last.value}):
                    break

    def _leaves_now(self, name: str, level: int) -> bool:
        """Whether a candidate leaves between the blocks of a start, by the busiest level where others are not measured yet: it
        would then have to be better than the leader by the margin at each of the others."""
        if self.rules.ladder and level:
            return False
        found = self.estimates(level=None if level == 0 else 0)
        if found is None or name not in found.names:
            return False
        leader = self._leader_of(found) or name
        margin = self.rules.margin * (1 if level == 0 else self.rules.levels)
        if leader == name or not self._worse(found, name, leader, margin):
            return False
        self.left[name] = self._behind(found, name, leader, "slower")
        return True

    def _worse(self, found: Estimates, name: str, leader: str, margin: float) -> bool:
        return found.difference(leader, name).below(math.log1p(margin)) < self.rules.error / (self.round + 1)

    def _disqualified(self, name: str) -> bool:
        """Whether a candidate leaves whatever its speed: its engine failed, its requests failed, or it misses the SLO."""
        results = [one for _, one in self.results(name)]
        result, failed, sent = results[-1], sum(one.failed for one in results), sum(one.sent for one in results)
        good, tested = sum(one.good for one in results), sum(one.tested for one in results)
        left: Left | None = None
        if result.failure is not None:
            left = Left(reason="start failed", round=self.round, note=result.failure)
        elif sent and wilson(failed, sent)[0] > FAILED_SHARE:
            left = Left(reason="requests failed", round=self.round, note=f"{failed} of {sent} requests")
        elif self.rules.attainment is not None and tested and not self.rules.ladder:
            high = wilson(round(good), max(1, round(tested)))[1]
            if high < self.rules.attainment:
                note = f"{good / tested:.1%} of the requests met it"
                left = Left(reason="slo", round=self.round, note=note)
        if left is not None and name not in self.left:
            self.left[name] = left
        return left is not None

    def _look(self) -> Iterator[Step]:
        """Let those leave that are worse than the leader by more than the margin, once its answers are known to be good."""
        yield from self._check_answers(1)
        found, leader = self.estimates(), self.leader
        if found is None or leader is None:
            return
        for name in self.alive:
            if name != leader and name in found.names and self._worse(found, name, leader, self.rules.margin):
                self.left[name] = self._behind(found, name, leader, "slower")

    def _behind(self, found: Estimates, name: str, leader: str, reason: Reason) -> Left:
        known, tail = found.difference(leader, name), self.rules.error / 2
        behind, low, high = (known.quantile(share) for share in (0.5, tail, 1 - tail))
        return Left(reason=reason, round=self.round, leader=leader, behind=behind, low=low, high=high)

    def _cut(self, keep: int) -> None:
        """Let those leave for which the budget does not suffice: all but the best `keep`."""
        found, leader = self.estimates(), self.leader
        if found is None or leader is None:
            return
        ranked = [name for name in found.ranking if name not in self.left]
        for name in ranked[keep:]:
            self.left[name] = self._behind(found, name, leader, "budget")

    def _all_equal(self) -> bool:
        """Whether all that are left are known to be within the margin of the leader."""
        found, leader = self.estimates(), self.leader
        if found is None or leader is None:
            return True
        margin, level = math.log1p(self.rules.margin), self.rules.error / (self.round + 1)
        pairs = [found.difference(leader, name) for name in self.alive if name != leader and name in found.names]
        return all(max(one.below(-margin), 1 - one.below(margin)) < level for one in pairs)

    def _ranked(self) -> list[str]:
        """Those that may be in the finals, best first. For whom only the budget did not suffice may replace another."""
        found = self.estimates()
        names = found.ranking if found is not None else ()
        return [name for name in names if name not in self.left or self.left[name].reason == "budget"]

    def _finals(self) -> Iterator[Step]:
        self.phase, self._sliced = "finals", self.sliced
        yield from self._check_answers(self.rules.finalists)
        ranked, found = self._ranked(), self.estimates()
        finalists, starts = self._finals_plan()
        chosen = ranked[:finalists]
        if not chosen or found is None:
            return
        for name in chosen:
            self.left.pop(name, None)
        for name in ranked[finalists:]:
            self.left.setdefault(name, self._behind(found, name, chosen[0], "budget"))
        # where not all fit into the memory at once, stock and the leader do
        arms = list(dict.fromkeys([*([self.stock] if self.stock in self.measured else []), *chosen]))
        self.finalists = tuple(arms)
        if arms != [self.stock]:
            yield from self._interleaved(arms, "finals", starts)
        self.best = self._best(arms)

    def _check_answers(self, best: int) -> Iterator[Step]:
        """Ask for the answers of those that may change them, as far as they are among the best few."""
        while True:
            near = [name for name in self._ranked()[:best] if self.entrants[name].answers]
            name = next((one for one in near if one not in self._checked), None)
            if name is None:
                return
            reference = self.entrants[name].reference or self.stock
            asked = [one for one in (reference, name) if one not in self._checked]
            if not self._fits(len(asked) * self.cost_of_answers() + self.least_finals):
                self._checked[name] = False
                self.left[name] = Left(reason="answers", round=self.round, note="not checked: no budget")
                continue
            start = FIRST_OF_PHASE["finals"]
            checks = [Step(candidate=one, phase="finals", start=start, quality=True) for one in asked]
            self.upcoming = tuple((step,) for step in checks)
            for one, step in zip(asked, checks, strict=True):
                yield step
                _, result = self._own[one][-1]
                self._checked[one] = result.same_answers is True
                if one == name and not self._checked[one]:
                    self.left[one] = Left(reason="answers", round=self.round, note=result.note)
            self.upcoming = ()

    def _interleaved(self, arms: Sequence[str], phase: Phase, starts: int) -> Iterator[Step]:
        """Ask for starts of all arms in turns, as long as a whole round fits."""
        sliced = self.sliced and phase == "finals"
        blocks, cost_of = (1, self._cost_of_final) if sliced else (self._blocks_per_start(), self.cost_of_start)
        for number in range(starts):
            running = [name for name in arms if self.left.get(name) is None or name == self.stock]
            # a start that took longer than predicted costs the later ones blocks rather than a start
            while blocks > 1 and not self._fits((starts - number) * sum(cost_of(blocks, name) for name in running)):
                blocks -= 1
            if not self._fits(sum(cost_of(blocks, name) for name in running)):
                return
            yield from self._starts(running if number % 2 == 0 else running[::-1], phase, number, blocks)

    def _best(self, arms: Sequence[str]) -> str | None:
        """Return the candidate nearest to stock of those that are known to be within the margin of the highest estimate."""
        found, margin = self.estimates(), math.log1p(self.rules.margin)
        fit = [name for name in found.ranking if name in arms and name not in self.left] if found is not None else []
        if found is None or not fit:
            return None
        near = [name for name in fit[1:] if found.difference(fit[0], name).below(margin) > 1 - self.rules.error]
        equal = [fit[0], *near]
        best = min(equal, key=lambda name: self.entrants[name].distance)
        self.equals = tuple(equal[: equal.index(best)])
        return best

    def _contributions(self) -> Iterator[Step]:
        if self.best is None or self.best == self.stock:
            return
        arms = list(self.entrants[self.best].take_backs)
        if not arms:
            return
        self.phase = "contributions"
        each = self.cost_of_start(1)
        # where the budget does not suffice for the best candidate once more, its starts in the finals have to do
        again = [self.best] if self._fits((len(arms) + 1) * each) else []
        while arms and not self._fits((len(again) + len(arms)) * each):
            arms.pop()
        if arms:
            self.contributions_of = tuple(arms)
            yield from self._interleaved([*again, *arms], "contributions", CONTRIBUTION_STARTS)


def replay(race: Race, result_of: Callable[[Step], Result | None]) -> Step | None:
    """Feed a race with stored results, and return the first step without one; None if the race is over."""
    while (step := race.next_step()) is not None:
        result = result_of(step)
        if result is None:
            return step
        race.add(result)
    return None
