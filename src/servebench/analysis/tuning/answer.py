"""What a race says: the best candidate's gain over stock, what each of its settings contributes, and what is as good. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean
from typing import Literal

from servebench.analysis.tuning.candidates import describe_settings, short_key, value_text
from servebench.analysis.tuning.ledger import Left, Phase, shown_value
from servebench.analysis.tuning.race import Race
from servebench.analysis.verdict.blocks import change_by_slices
from servebench.analysis.verdict.model import Difference
from servebench.analysis.verdict.slices import enough
from servebench.analysis.verdict.starts import STARTS_MIN
from servebench.config.tune_space import TuneSpace
from servebench.contracts.estimate import CONFIDENCE
from servebench.contracts.stored import is_number, value_at
from servebench.contracts.tuning import Candidate, Objective, TuneQuestion
from servebench.store.tune import TuneState

AGAIN_STARTS = 3
"""Starts of each with which the best candidate is measured again beside stock."""
UNFIT = ("start failed", "requests failed", "slo", "answers")
TuneVerdict = Literal["better", "as good", "open", "stock", "none", "too little"]
"""What is known of the best candidate: better than stock; not proven to be, and by less than half the margin in the finals or in
all starts together; by more, but that is not proven; stock itself; none is best; the budget was too small to compare anything
with stock."""


class ChangeKind(StrEnum):
    """What could lead to another answer; in brackets, which fields of a WouldChange have a value."""

    OTHER_LOAD = "other_load"  # another load than these `levels`
    HIGHER_LEVELS = "higher_levels"  # higher `levels` than the highest that was measured, which meets the SLO
    MORE_BUDGET = "more_budget"  # more budget: `count` of `of` candidates were not tried
    MORE_STARTS = "more_starts"  # more starts: `names` may be as good, though not in the finals
    SMALL_GAIN = "small_gain"  # more starts: the gain is smaller than what starts differ by
    SMALLER_VALUES = "smaller_values"  # values below the smallest that was offered (`names`: the setting, its value)
    LARGER_VALUES = "larger_values"  # values above the largest that was offered (`names`)


@dataclass(frozen=True, kw_only=True)
class WouldChange:
    """One thing that could lead to another answer. `kind` says which of the other fields have a value."""

    kind: ChangeKind
    levels: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    count: int = 0
    of: int = 0


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a candidate's points showed, as means over them: each None where it is unknown."""

    throughput: float | None = None
    ttft_ms: float | None = None
    void: int = 0
    doubts: Mapping[str, int] = field(default_factory=dict)
    """How many of its points each warning makes doubtful."""


CandidateStatus = Literal["best", "finalist", "in the race", "not tried yet", "left"]


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A candidate in the answer: its value of the objective, how far it is from stock, and how it ended (`left`: why it left the
    race). `run` is its run."""

    run: str
    name: str
    origin: str
    settings: str
    status: CandidateStatus
    left: Left | None = None
    starts: int = 0
    blocks: int = 0
    value: float | None = None
    from_stock: Difference | None = None
    figures: Figures = Figures()


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """What one of the best candidate's settings gains: the change from the candidate without it."""

    key: str
    before: str
    after: str
    gain: Difference | None


@dataclass(frozen=True, kw_only=True)
class TuneAnswer:
    """The whole answer. `one_more` is what a start of another candidate and its finals would cost, and minutes are engine
    minutes. `gain` is the best one's over stock, and `again` what AGAIN_STARTS new starts of both will show. `recommended` is the
    candidate to use: the best one, or stock where that is as good. The best one is nearer to stock than `equals`, whose estimates
    are higher, but known to be within the margin. `command` is the one that made the study,
    `next_steps` are commands with why to run them, `doubts` how many points each warning makes doubtful, and `imitated` says how
    engines were that are not real."""

    study: str
    question: TuneQuestion
    levels: tuple[float, ...]
    finished: bool
    verdict: TuneVerdict
    best: str | None
    best_name: str
    recommended: str | None
    recommended_name: str
    settings: Mapping[str, object]
    value: float | None
    stock_value: float | None
    gain: Difference | None
    again: Difference | None
    contributions: tuple[Contribution, ...]
    as_good: tuple[str, ...]
    tried: tuple[Tried, ...]
    refused: tuple[tuple[str, str], ...]
    spent: float
    budget: float
    space_size: int
    would_change: tuple[WouldChange, ...]
    equals: tuple[str, ...] = ()
    least_budget: float = 0.0
    one_more: float = 0.0
    void: int = 0
    points: int = 0
    doubts: Mapping[str, int] = field(default_factory=dict)
    imitated: str = ""
    engine_file: str = ""
    engine_command: str = ""
    command: str = ""
    next_steps: tuple[tuple[str, str], ...] = ()

    @property
    def objective(self) -> Objective:
        """What was improved."""
        return self.question.target

    @property
    def unit(self) -> str:
        """The unit of the costs."""
        return "engine minutes" if self.question.trials is None else "engine starts"

    def cost(self, value: float) -> float:
        """Return a cost in that unit."""
        return value / 60 if self.question.trials is None else value


def gain_of(race: Race, again: int = 0) -> Difference | None:
    """Return the best candidate's gain over stock, from the finals alone, or that of so many starts of both which come; None if
    one of them was not in the finals.

    It is the best of several, so the interval is that of all finalists together (Bonferroni). Where starts of both took turns,
    slice by slice, it is by the ratios of their slices.
    """
    if race.best is None or race.best == race.stock:
        return None
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(race.finalists) - 1)
    known = race.slice_differences(race.best, race.stock)
    if len(known) < STARTS_MIN or not enough(known):
        return change_of(race, race.best, race.stock, ("finals",), confidence=confidence, again=again)
    rest = [name for name in race.finalists if name not in (race.best, race.stock)]
    others = [each for pair in zip(rest[::2], rest[1::2], strict=False) for each in race.slice_differences(*pair)]
    return change_by_slices(known, others, race.blocks(("race",)), confidence, again)


def change_of(
    race: Race, one: str, other: str, phases: Sequence[Phase], *, confidence: float = CONFIDENCE, again: int = 0
) -> Difference | None:
    """Return by how much a candidate's objective is above another's, as a share, or will be in so many starts of both which come;
    None if one was not measured in these phases."""
    found = race.estimates(phases)
    if found is None or not {one, other} <= set(found.names):
        return None
    return found.change(one, other, confidence, again)


def contribution_of(race: Race, without: str) -> Difference | None:
    """Return what the best candidate gains over itself without a setting, by the blocks that both measured; with its starts in
    the finals where it was not measured again."""
    if race.best is None:
        return None
    again = change_of(race, race.best, without, ("contributions",))
    return again or change_of(race, race.best, without, ("finals", "contributions"))


def verdict_of(race: Race) -> TuneVerdict:
    """Return what is known of the best candidate."""
    if race.best is None:
        return "none"
    if _nothing_tried(race):
        return "too little"
    if race.best == race.stock:
        return "stock"
    gain = gain_of(race)
    if gain is None:
        return "open"
    if gain.low > 0:
        return "better"
    pooled = change_of(race, race.best, race.stock, ("race", "finals"))
    return "as good" if pooled is None or min(pooled.effect, gain.effect) < race.rules.margin / 2 else "open"


def _nothing_tried(race: Race) -> bool:
    """Whether the budget let no candidate be tried beside stock."""
    return len(_untried(race)) == len(race.entrants) - 1


def _untried(race: Race) -> list[str]:
    return [name for name, left in race.left.items() if left.reason == "not tried"]


def recommended(race: Race) -> str | None:
    """Return the candidate to use: the best one, or stock where that is as good."""
    return race.stock if verdict_of(race) == "as good" else race.best


def answer_of(
    race: Race,
    state: TuneState,
    candidates: Mapping[str, Candidate],
    *,
    study: str,
    finished: bool,
    stock_config: Mapping[str, object],
    figures: Mapping[str, Figures],
    spaces: Iterable[TuneSpace],
) -> TuneAnswer:
    """Return the answer of a race. `candidates` are those of its entrants, and those without one of their settings each."""
    question, levels = state.question, state.levels
    best = candidates[race.best] if race.best is not None else None
    pick = candidates[one] if (one := recommended(race)) is not None else None
    near, cut = _as_good(race, pick), {name for name, left in race.left.items() if left.reason == "budget"}
    tried = [_tried(race, candidates[name], pick, question, figures) for name in race.entrants]
    return TuneAnswer(
        study=study,
        question=question,
        levels=levels,
        finished=finished,
        verdict=verdict_of(race),
        best=race.best,
        best_name=best.name if best is not None else "",
        recommended=pick.run if pick is not None else None,
        recommended_name=pick.name if pick is not None else "",
        settings=dict(best.settings) if best is not None else {},
        value=_value(race, race.best, question),
        stock_value=_value(race, race.stock, question),
        gain=gain_of(race),
        again=gain_of(race, AGAIN_STARTS),
        contributions=tuple(_contributions(race, candidates, stock_config)) if pick == best else (),
        as_good=tuple(candidates[name].name for name in near),
        equals=tuple(candidates[name].name for name in race.equals),
        tried=tuple(sorted(tried, key=lambda one: -(one.from_stock.effect if one.from_stock else -math.inf))),
        refused=tuple((one.candidate.name, one.why) for one in state.refused),
        spent=race.spent,
        budget=race.rules.budget,
        space_size=state.space_size,
        least_budget=race.least_budget,
        one_more=race.cost_of_start(1) + race.least_finals,
        void=sum(one.void for one in figures.values()),
        points=sum(one.blocks for one in tried),
        doubts=dict(sum((Counter(one.doubts) for one in figures.values()), Counter())),
        would_change=(
            WouldChange(kind=ChangeKind.OTHER_LOAD, levels=levels),
            *_would_change(race, [candidates[name].name for name in near if name in cut], levels),
            *(_edges(pick.settings, spaces) if pick is not None else ()),
        ),
    )


def _as_good(race: Race, pick: Candidate | None) -> list[str]:
    """The candidates that are known to be within the margin of the one to use, or not known to be outside of it."""
    found = race.estimates()
    if pick is None or found is None or pick.run not in found.names:
        return []
    unfit = [name for name, one in race.left.items() if one.reason in UNFIT]
    others = [name for name in found.ranking if name != pick.run and name not in unfit]
    least, margin = (1 - CONFIDENCE) / 2, math.log1p(race.rules.margin)
    return [name for name in others if found.difference(pick.run, name).quantile(least) < margin]


def _values(race: Race, name: str | None) -> list[float]:
    """The values of a candidate's blocks: those of its finals, else of the race."""
    of_phases: tuple[tuple[Phase, ...], ...] = (("finals", "contributions"), ("race",))
    found = ([one.value for one in race.blocks(phases) if one.candidate == name] for phases in of_phases)
    return next(filter(None, found), [])


def _value(race: Race, name: str | None, question: TuneQuestion) -> float | None:
    values = _values(race, name)
    return shown_value(fmean(values), question.target) if values else None


def _tried(
    race: Race, candidate: Candidate, pick: Candidate | None, question: TuneQuestion, figures: Mapping[str, Figures]
) -> Tried:
    name = candidate.run
    steps = [(step, result) for step, result in race.results(name) if result.value is not None]
    return Tried(
        run=name,
        name=candidate.name,
        origin=candidate.origin,
        settings=describe_settings(candidate.settings),
        status="best" if candidate == pick and not _nothing_tried(race) else _status(race, name),
        left=race.left.get(name),
        starts=len({(step.start, result.start_id) for step, result in steps}),
        blocks=len(steps),
        value=_value(race, name, question),
        from_stock=change_of(race, name, race.stock, ("race", "finals")) if name != race.stock else None,
        figures=figures.get(name, Figures()),
    )


def _status(race: Race, name: str) -> CandidateStatus:
    left = race.left.get(name)
    if name in race.finalists and (left is None or left.reason in ("slower", "budget")):
        return "finalist"
    if left is None:
        return "in the race" if race.results(name) else "not tried yet"
    return "left"


def _contributions(
    race: Race, candidates: Mapping[str, Candidate], stock_config: Mapping[str, object]
) -> Iterator[Contribution]:
    """What each setting of the best candidate gains. A single one gains the whole."""
    if race.best is None or race.best == race.stock:
        return
    settings = candidates[race.best].settings
    gains = {key: gain_of(race) for key in settings if len(settings) == 1}
    for name in race.contributions_of:
        (key,) = set(settings) - set(candidates[name].settings)
        gains[key] = contribution_of(race, name)
    for key, value in settings.items():
        gain = gains.get(key)
        yield Contribution(key=key, before=value_text(value_at(stock_config, key)), after=value_text(value), gain=gain)


def _would_change(race: Race, near: Sequence[str], levels: Sequence[float]) -> Iterator[WouldChange]:
    """What of the race could lead to another answer; `near` may be as good and were not in the finals."""
    if race.rules.ladder and max(_values(race, race.best), default=-math.inf) >= math.log(levels[0]):
        yield WouldChange(kind=ChangeKind.HIGHER_LEVELS, levels=(levels[0],))
    if untried := len(_untried(race)):
        yield WouldChange(kind=ChangeKind.MORE_BUDGET, count=untried, of=len(race.entrants))
    if near:
        yield WouldChange(kind=ChangeKind.MORE_STARTS, names=tuple(near))
    if (gain := gain_of(race)) is not None and gain.low <= 0:
        yield WouldChange(kind=ChangeKind.SMALL_GAIN)


def _edges(settings: Mapping[str, object], spaces: Iterable[TuneSpace]) -> Iterator[WouldChange]:
    """Which settings have the largest or the smallest value that was offered."""
    known = {key: one.values for space in spaces for key, one in space.parameters.items()}
    for key, value in settings.items():
        numbers = [one for one in known.get(key, ()) if is_number(one)]
        edges = {max(numbers): ChangeKind.LARGER_VALUES, min(numbers): ChangeKind.SMALLER_VALUES} if numbers else {}
        if is_number(value) and len(numbers) >= 3 and value in edges:
            yield WouldChange(kind=edges[value], names=(short_key(key), value_text(value)))
