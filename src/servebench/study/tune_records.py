"""A tune as its study's folder holds it: the race up to where it was measured."""

from dataclasses import dataclass, field, replace

from servebench.analysis.tuning.candidates import take_backs
from servebench.analysis.tuning.ledger import (
    BLOCKS_MAX,
    FIRST_OF_PHASE,
    ROUNDS,
    RaceRules,
    Step,
    engine_seconds,
    result_of_point,
)
from servebench.analysis.tuning.race import Race, replay
from servebench.config import Job
from servebench.contracts.level import Level
from servebench.contracts.point_id import PointId
from servebench.contracts.point_row import PointRow
from servebench.contracts.precision import may_be_replaced
from servebench.contracts.tuning import MAX_LOAD, Candidate, Result
from servebench.load.plan.levels import plan_levels
from servebench.load.plan.slices import seconds_in_slices
from servebench.registry.registry import Registry
from servebench.run.preflight import planned_job
from servebench.run.prior import PriorProgress, prior_progress
from servebench.store.layout import StudyFolder
from servebench.store.plan import read_plan
from servebench.store.state import read_study
from servebench.store.tune import TuneState, read_signed_tune
from servebench.study.tune_plan import candidate_job, entrants_of
from servebench.util.errors import ConfigError
from servebench.util.units import MS_PER_S


@dataclass(kw_only=True)
class StoredTune:
    """The race of a study, with what is stored of it. `planned` are the jobs of its plan by run; `own`: this user signed its
    state."""

    folder: StudyFolder
    registry: Registry
    planned: dict[str, Job]
    state: TuneState
    own: bool = True
    race: Race = field(init=False)
    progress: dict[str, PriorProgress] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Make the race."""
        self.race = self.new_race()

    def new_race(self) -> Race:
        """Return the race from its beginning."""
        question = self.state.question
        slo = self.job(self.state.candidates[0]).settings.slo
        rules = RaceRules(
            budget=self.state.budget,
            margin=question.share("margin"),
            error=question.share("error"),
            finalists=question.finalists,
            final_starts=question.final_starts,
            levels=len(self.state.levels),
            rounds=min(ROUNDS * (1 + self.state.continued), FIRST_OF_PHASE["finals"]),
            attainment=slo.attainment if slo.limited and question.objective != "goodput" else None,
            ladder=self.state.levels if question.objective == MAX_LOAD else (),
            ahead=bool(read_study(self.folder).launcher),
            sliced=self.state.slices,
        )
        entrants = entrants_of(self.state.candidates, lambda one: self.stock_job(one).resolved)
        return Race(rules, entrants, self._unasked if rules.ahead or rules.sliced else None)

    def _unasked(self, name: str, start: int) -> float:
        """Return what the points of a start cost that were measured and that the race has not asked for."""
        asked = {self.point(step) for step, _ in self.race.results(name)}
        rows = {point.id.first: point.judged_row for point in self.known(name).points.values()}
        left = [rows[one] for one in rows if one not in asked and (one.repeat or 0) // BLOCKS_MAX == start]
        return sum(self._cost_of(name, row) for row in left)

    def _cost_of(self, name: str, row: PointRow) -> float:
        """Return what a point of a candidate cost. Engines that are alive at once share the time."""
        seconds, begins = engine_seconds(row, self._rows(name))
        if self.state.question.trials is not None:
            return float(begins)
        groups = (
            [{one.slice_group for one in self._rows(arm)} for arm in self.race.finalists] if row.slice_group else []
        )
        return seconds / max(1, sum(row.slice_group in own for own in groups))

    def _rows(self, name: str) -> list[PointRow]:
        return [point.judged_row for point in self.known(name).points.values()]

    @property
    def candidates(self) -> dict[str, Candidate]:
        """The candidates by the names of their runs, each also without one of its settings."""
        return {each.run: each for one in self.state.candidates for each in (one, *take_backs(one))}

    def stored_result(self, step: Step) -> Result | None:
        """Return the result of a step that was measured; None if it must be measured, or measured again because it is void."""
        noted = self.state.noted.get(step_key(step))
        if noted is not None:
            return noted
        if step.quality:
            return None
        row = self.row(step)
        if row is None:
            return None
        result = self.result_of(step, row)
        again = may_be_replaced(row.verdict, row.point) and self.race.measures_again(result)
        return None if again else result

    def known(self, name: str) -> PriorProgress:
        """Return what is stored of a run."""
        if name not in self.progress:
            self.progress[name] = prior_progress(self.folder.run(name))
        return self.progress[name]

    def point(self, step: Step) -> PointId:
        """Return the identity of a step's point."""
        level, load = self.state.levels[step.level], self.job(self.candidates[step.candidate]).settings.load
        return PointId.at(Level(int(level)) if load.concurrency else Level(rate=level), step.repeat)

    def row(self, step: Step) -> PointRow | None:
        """Return the stored point of a step; None without one."""
        point = self.known(step.candidate).points.get(self.point(step))
        return None if point is None else point.judged_row

    def result_of(self, step: Step, row: PointRow) -> Result:
        """Return what a step's point says."""
        found = result_of_point(row, self.state.question.target, self._cost_of(step.candidate, row))
        if row.slice_group or self.state.question.trials is not None or row.window_s is None:
            # a budget of starts does not count what a point costs
            return found
        sliced_s = self._sliced_s(step, row.window_s, (row.e2e_ms_mean or 0.0) / MS_PER_S)
        return replace(found, point_cost=row.window_s, sliced_cost=sliced_s)

    def _sliced_s(self, step: Step, took_s: float, answer_s: float) -> float:
        """Return how long the load of a step takes in slices."""
        load = self.job(self.candidates[step.candidate]).settings.load
        planned = next(one for one in plan_levels(load, 0) if one.id.level == self.point(step).level)
        return seconds_in_slices(planned.duration_s or took_s, answer_s, until=bool(planned.targets))

    def job(self, candidate: Candidate) -> Job:
        """Return the job of a candidate: the stock settings of its engine with its own. Raises ConfigError."""
        if candidate.run in self.planned:
            return self.planned[candidate.run]
        return candidate_job(self.stock_job(candidate), candidate, self.registry)

    def stock_job(self, candidate: Candidate) -> Job:
        """Return the job with the stock settings of a candidate's engine. Raises ConfigError."""
        stock = self.planned.get(self.state.stock_of(candidate).run)
        if stock is None:
            raise ConfigError(f"{self.folder.plan} has no stock settings for '{candidate.name}'")
        return stock


def load_tune(folder: StudyFolder, registry: Registry) -> StoredTune:
    """Return a stored tune with its race as far as it was measured. Raises ConfigError, StoreError."""
    planned = {run.name: planned_job(run, registry) for run in read_plan(folder)}
    state, origin = read_signed_tune(folder, read_study(folder).scope)
    found = StoredTune(folder=folder, registry=registry, planned=planned, state=state, own=origin.own)
    replay(found.race, found.stored_result)
    return found


def step_key(step: Step) -> str:
    """Return the name of a step in `tune.json`."""
    return f"{step.candidate}/{step.start}/{step.block}/{step.level}{'/answers' if step.quality else ''}"
