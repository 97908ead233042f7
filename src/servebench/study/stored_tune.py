"""A tune as its study's folder holds it: the race up to where it was measured, and its answer."""

import json
import math
import shlex
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import yaml

from servebench.analysis.estimate import THROUGHPUT, levels_of, mean_of
from servebench.analysis.tuning.answer import AGAIN_STARTS, Figures, TuneAnswer, answer_of
from servebench.analysis.tuning.candidates import override_words, take_backs, with_settings
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
from servebench.analysis.warnings.catalog import type_of
from servebench.config import Job
from servebench.config.tune_space import TuneSpace, load_space, split_words
from servebench.contracts.emulation import imitated
from servebench.contracts.level import Level
from servebench.contracts.point_id import PointId
from servebench.contracts.point_row import PointRow
from servebench.contracts.precision import may_be_replaced
from servebench.contracts.tuning import MAX_LOAD, Candidate, Result
from servebench.load.plan.levels import plan_levels
from servebench.load.plan.slices import seconds_in_slices
from servebench.registry.registry import Registry
from servebench.report.html.page import tune_page
from servebench.report.wording.tuning import gain_text
from servebench.run.preflight import planned_job
from servebench.run.prior import PriorProgress, prior_progress
from servebench.store.files import writing
from servebench.store.layout import StudyFolder
from servebench.store.plan import read_plan
from servebench.store.state import read_study
from servebench.store.studies import load_run
from servebench.store.tune import TuneState, read_signed_tune
from servebench.study.show_commands import describe_command, engine_command
from servebench.study.tune_plan import candidate_job, entrants_of
from servebench.util.errors import ConfigError, ServebenchError, StoreError
from servebench.util.short_id import short_id
from servebench.util.units import MS_PER_S

CONF = "conf"
"""The folder in a study with the best candidate's engine file, for --config-dir."""


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
        points = [one for first, one in self.known(name).points.items() if first not in asked]
        left = [one.judged_row for one in points if (one.id.repeat or 0) // BLOCKS_MAX == start]
        return sum(self._cost_of(name, row) for row in left)

    def _cost_of(self, name: str, row: PointRow) -> float:
        """Return what a point of a candidate cost. Engines that are alive at once share the time."""
        seconds, begins = engine_seconds(row, self._rows(name))
        if self.state.question.trials is not None:
            return float(begins)
        arms = self.race.finalists if row.slice_group else ()
        return seconds / max(1, sum(any(one.slice_group == row.slice_group for one in self._rows(arm)) for arm in arms))

    def _rows(self, name: str) -> list[PointRow]:
        return [point.judged_row for point in self.known(name).points.values()]

    @property
    def candidates(self) -> dict[str, Candidate]:
        """The candidates by the names of their runs, each also without one of its settings."""
        return {each.run: each for one in self.state.candidates for each in (one, *take_backs(one))}

    def stored_result(self, step: Step) -> Result | None:
        """Return the result of a step that was measured; None if it must be measured, or measured again because it is void."""
        if (noted := self.state.noted.get(step_key(step))) is not None or step.quality:
            return noted
        if (row := self.row(step)) is None:
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
        load, answer_s = self.job(self.candidates[step.candidate]).settings.load, (row.e2e_ms_mean or 0.0) / MS_PER_S
        planned = next(one for one in plan_levels(load, 0) if one.id.level == self.point(step).level)
        sliced_s = seconds_in_slices(planned.duration_s or row.window_s, answer_s, until=bool(planned.targets))
        return replace(found, point_cost=row.window_s, sliced_cost=sliced_s)

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


def write_answer(tune: StoredTune, *, finished: bool) -> TuneAnswer:
    """Write the best candidate's engine file and the page, and return the answer. Raises ConfigError, StoreError, OSError."""
    answer, folder = make_answer(tune, finished=finished), tune.folder
    if answer.engine_file and answer.recommended is not None:
        file, best = Path(answer.engine_file), tune.candidates[answer.recommended]
        if not file.resolve().is_relative_to((_conf(tune) / "engine").resolve()):
            raise StoreError(
                f"{file} is not in the folder for the best candidate's file; choose another engine= in a new tune"
            )
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(engine_file(answer, best), encoding="utf-8")
    with writing(folder.tune_page):
        folder.tune_page.write_text(tune_page(answer), encoding="utf-8")
        (folder.path / "tune_answer.json").write_text(
            json.dumps(asdict(answer), indent=1, default=str) + "\n", encoding="utf-8"
        )
    return answer


def make_answer(tune: StoredTune, *, finished: bool) -> TuneAnswer:
    """Return the answer; writes nothing, and reads no file that the state names unless it is this user's own.

    Raises ConfigError, StoreError.
    """
    race, folder = tune.race, tune.folder
    answer = answer_of(
        race,
        tune.state,
        tune.candidates,
        study=folder.name,
        finished=finished,
        stock_config=tune.stock_job(tune.candidates[race.best or race.stock]).resolved,
        figures={name: figures for name in race.measured if (figures := _figures(folder, name)) is not None},
        spaces=stored_spaces(tune.state, tune.registry).values() if tune.own else (),
    )
    how = imitated(job.settings.launch.name for job in tune.planned.values())
    return _with_commands(replace(answer, imitated=how), tune)


def stored_answer(folder: StudyFolder, registry: Registry) -> TuneAnswer:
    """Return the answer of a stored tune, from what is measured. Raises ConfigError, StoreError."""
    found = load_tune(folder, registry)
    # a newer servebench may have another use for what the budget left
    return make_answer(found, finished=found.race.next_step() is None or read_study(folder).status == "finished")


def stored_spaces(state: TuneState, registry: Registry) -> dict[str, TuneSpace]:
    """Return the space of each engine's option as its file is now; an empty one for a file that is gone."""
    options = dict.fromkeys(one.engine for one in state.candidates)
    found = {option: TuneSpace.model_construct(engine=option, file="", parameters={}) for option in options}
    for option, file in zip(options, state.spaces, strict=False):
        with suppress(ConfigError):
            found[option] = load_space(option, registry, path=file)
    return found


def _figures(folder: StudyFolder, name: str) -> Figures | None:
    rows = load_run(folder.run(name).path).point_rows
    if not rows:
        return None
    level, own = list(levels_of(rows).items())[-1]
    void = sum(row.verdict == "void" and row.level == level for row in rows)
    codes = (
        code
        for row in rows
        if row.verdict == "doubtful"
        for code in dict.fromkeys(row.doubts)
        if not type_of(code).mark
    )
    return Figures(
        throughput=mean_of(own, THROUGHPUT),
        ttft_ms=mean_of(own, "ttft_ms_p50"),
        void=void,
        # before Python 3.12 `asdict` makes counted pairs of what is in a Counter
        doubts=dict(Counter(codes)),
    )


def _with_commands(answer: TuneAnswer, tune: StoredTune) -> TuneAnswer:
    """Add the commands that use the best candidate, and the name of its engine file if it needs one."""
    study, trials, made = short_id(tune.folder.name), tune.state.question.trials, read_study(tune.folder).words
    answer = replace(answer, command=shlex.join(["servebench", *made]))
    again = f"servebench tune --continue {study} "
    more = again + ("tune.budget=30m" if trials is None else f"tune.trials={trials}")
    if answer.recommended is None:
        return answer
    best = tune.candidates[answer.recommended]
    stock = tune.stock_job(best)
    try:
        job = candidate_job(stock, best, tune.registry)
    except ConfigError:
        return answer
    with suppress(ServebenchError):
        answer = replace(answer, engine_command=describe_command(engine_command(job.settings, tune.registry)))
    if answer.verdict == "too little":
        minutes, count = math.ceil(answer.least_budget / 60), math.ceil(answer.least_budget)
        more = again + (f"tune.budget={minutes}m" if trials is None else f"tune.trials={count}")
        return replace(answer, next_steps=((more, "enough to compare one candidate with stock"),))
    if answer.verdict in ("stock", "as good"):
        return replace(answer, next_steps=((more, "a longer race"),))
    option = stock.chosen("engine")
    words = [word for word in split_words(made)[1] if word not in ("tune", "-m", "--multirun")]
    rest = [word for word in words if not word.startswith(("engine=", "study.name="))]
    conf = _conf(tune)
    tuned = f"{option}_tuned" if best.settings else option
    known = ["--config-dir", str(conf)] if best.settings else []
    first = tune.state.candidates[0].engine
    # an engine's file holds no other settings
    others = override_words({key: value for key, value in best.settings.items() if not key.startswith("engine.")})
    use = shlex.join(["servebench", *known, f"engine={tuned}", *rest, *others])
    check = shlex.join(["servebench", "-m", *known, f"engine={first},{tuned}", *rest, f"study.starts={AGAIN_STARTS}"])
    checks = () if others else ((check, "the best candidate against stock, measured again"),)
    steps = ((use, "the best candidate"), *checks, (more, "a longer race"))
    file = str(conf / "engine" / f"{tuned}.yaml") if best.settings else ""
    return replace(answer, engine_file=file, next_steps=steps)


def _conf(tune: StoredTune) -> Path:
    """Return the folder for --config-dir in which the best candidate's engine file goes."""
    out = tune.state.question.out
    return Path(out).expanduser().absolute() if out else tune.folder.path / CONF


def engine_file(answer: TuneAnswer, best: Candidate) -> str:
    """Return the best candidate as a file of the config group `engine`."""
    own = with_settings({}, best.settings).get("engine", {})
    gain = f" ({gain_text(answer.gain)} over stock)" if answer.gain is not None else ""
    head = f"# The settings that 'servebench tune' found best in {answer.study}{gain}:\n"
    head += f"# {answer.objective.name} at {', '.join(f'{one:g}' for one in answer.levels)}.\n"
    defaults = f"defaults:\n  - {best.engine}\n  - _self_\n\n"
    return head + defaults + str(yaml.safe_dump(own, sort_keys=False, allow_unicode=True))
