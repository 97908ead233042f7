"""`servebench tune`: the race of the settings of engines as a policy, and its commands, which say which are best."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from servebench.analysis.decided import ENDED
from servebench.analysis.events import TuneAnswered
from servebench.analysis.limits import findings
from servebench.analysis.quality.parity import parities
from servebench.analysis.quality.summary import summaries
from servebench.analysis.tuning.ledger import FIRST_OF_PHASE, Step
from servebench.config import launcher_from_dict
from servebench.contracts.cluster import ClusterSettings
from servebench.contracts.events import AtOnce, ErrorSaid, Listen, Notice, OneAtATime, PlanReady, RaceEnded, Said
from servebench.contracts.results import RunOutcome
from servebench.contracts.tuning import Candidate, Result
from servebench.contracts.turns import Turn, closing_turn
from servebench.registry.registry import Registry
from servebench.report.wording.comparison import parity_text
from servebench.report.wording.limits import action_text
from servebench.report.wording.tuning import left_text
from servebench.run.preflight import planned_job
from servebench.run.session import RunTask
from servebench.store.graded import read_quality
from servebench.store.layout import StudyFolder, check_writable, outputs_folder
from servebench.store.plan import PlannedRun, write_plan
from servebench.store.state import StudyState, read_run, write_study
from servebench.store.studies import load_run
from servebench.store.tune import TuneState, write_tune
from servebench.study.at_once import Place, at_once, places_at_once
from servebench.study.outlook import earlier_runs, tune_planned
from servebench.study.resume import recover_study
from servebench.study.stored_tune import StoredTune, step_key, stored_spaces, write_answer
from servebench.study.study import (
    StudySession,
    check_study,
    exclusive,
    execute,
    new_state,
    new_study,
    open_session,
    resumed_state,
    study_label,
)
from servebench.study.trust import confirm_study
from servebench.study.tune_plan import plan_tune, proposed_candidates
from servebench.util.errors import FailureKind, ServebenchError, StoreError
from servebench.util.figures import seconds
from servebench.util.redaction import remember_config
from servebench.util.short_id import short_id

NOT_THE_ENGINE = frozenset(
    {FailureKind.STORE, FailureKind.DAMAGED, FailureKind.WORKER, FailureKind.LEDGER, FailureKind.QUALITY}
    | {FailureKind.INTERRUPTED, FailureKind.KILLED, FailureKind.LOST}
)
"""Failures that say nothing of the candidate: they stop the study, which can be resumed."""


PATIENCE, PATIENCE_MIN_S = 3.0, 60.0
"""The longest time of a start, as a multiple of the first start and block of stock, and the least limit in seconds."""


@dataclass(kw_only=True)
class Tuner(StoredTune):
    """Yields what the race of a tune asks for: step by step, or with `ahead` all starts that it has decided, so that machines
    can measure them at once."""

    session: StudySession
    code: int = field(default=0, init=False)
    """The exit code of the outcome that has stopped the race; 0 while none has."""
    _asked: list[tuple[Turn, Step]] = field(default_factory=list, init=False)
    _over: bool = field(default=False, init=False)

    def next_turns(self) -> Sequence[Turn]:
        """Return what is to be measured, or what closes the runs when the race is over."""
        while not self.code and (step := self.race.next_step()) is not None:
            result = self.stored_result(step)
            if result is None:
                if not self._propose(step):
                    return self._turns(step)
                continue
            left = len(self.race.left)
            self.race.add(result)
            self.race.next_step()
            for name, gone in list(self.race.left.items())[left:]:
                if gone.reason in ("slower", "slo", "requests failed", "start failed", "answers"):
                    self.session.events(Said(f"{self._label(name)}: {left_text(gone)}"))
        return () if self.code else self._closing()

    @property
    def has_best(self) -> bool:
        """Whether a candidate was tried beside stock, and one has won."""
        return self.race.best is not None and any(name != self.race.stock for name in self.race.measured)

    def task(self, run: str) -> RunTask:
        """Return the run of a candidate, with what is stored of it."""
        job = self.job(self.candidates[run])
        remember_config(job.resolved)
        return RunTask(run, job, self.known(run))

    def add(self, turns: Sequence[Turn], outcome: RunOutcome) -> None:
        """Note what turns of a candidate have given, as far as no table holds it."""
        name = turns[0].run
        if outcome.status == "finished":
            self.progress[name] = self.known(name).after(outcome)
        else:
            self.progress.pop(name, None)
        steps = [step for turn, step in self._asked if turn in turns]
        if outcome.status == "interrupted":
            self.code = self.code or outcome.exit_code
        elif not steps:
            # it was only closed
            return
        elif steps[0].quality and (outcome.status == "finished" or outcome.failure is FailureKind.QUALITY):
            self._note(steps[0], self._answers(steps[0], self._cost(name)))
        elif outcome.failure in NOT_THE_ENGINE or (name == self.race.stock and outcome.status == "failed"):
            # not noted, so that `resume` measures the step again: all others are compared with stock
            self.session.events(Notice("tune_stopped", self._label(name)))
            self.code = self.code or outcome.exit_code
        elif (missing := self._missing(steps)) or outcome.status != "finished":
            reason = (outcome.error or "it measured nothing").splitlines()[0]
            self._note((*missing, *steps)[0], Result(failure=reason, cost=self._cost(name)))

    def _cost(self, name: str) -> float:
        """Return for how long the last attempt at a run took on its machine, by the clock of that."""
        if self.state.question.trials is not None:
            return 1.0
        state = read_run(self.folder.run(name))
        return max(0.0, (state.ended_s or state.started_s) - state.started_s)

    def _turns(self, step: Step) -> list[Turn]:
        """Return the turns of a step without a result, and of what the race has decided beside it."""
        if not step.quality and self.row(step) is not None:
            self.session.events(Notice("point_void", self._label(step.candidate)))
        places = self._places(step)
        due = self._due(step) if self.race.rules.ahead or places else [(step,)]
        # engines that are alive at once measure a start as a whole
        parts = [
            (own, number == 0)
            for steps in due
            for number, own in enumerate([steps] if places else [(one,) for one in steps])
        ]
        turns = [at_once(self._turn(own, first=first), places) for own, first in parts]
        self._asked = [(turn, one) for turn, (own, _) in zip(turns, parts, strict=True) for one in own]
        state = self.session.state
        if new := [name for name in (steps[0].candidate for steps in due) if name not in state.runs]:
            self.session.state = replace(state, runs=(*state.runs, *new))
            write_study(self.folder, self.session.state)
        return turns

    def _places(self, step: Step) -> Mapping[str, Place]:
        """Return the places of the finalists whose engines are alive at once; empty where a step is measured alone."""
        if not self.race.rules.sliced or step.phase != "finals" or step.quality:
            return {}
        if not self.race.sliced:
            if step.start == FIRST_OF_PHASE["finals"]:
                minutes = self.race.least_in_slices / 60
                self.session.events(OneAtATime(f"slices would take {minutes:.1f} engine minutes, more than finals may"))
            return {}
        places = places_at_once({name: self.job(self.candidates[name]) for name in self.race.finalists}, self.registry)
        if places and step.start == FIRST_OF_PHASE["finals"]:
            self.session.events(AtOnce([self._label(name) for name in places]))
        return places

    def _turn(self, steps: Sequence[Step], *, first: bool) -> Turn:
        step, name = steps[0], steps[0].candidate
        what = "answers" if step.quality else f"{step.phase}, start {step.start % FIRST_OF_PHASE['finals'] + 1}"
        turn = Turn(
            range(0),
            name,
            first=False,
            last=False,
            start=step.start,
            own_engine=True,
            ready_timeout_s=self._patience(step),
            label=f"[{what}: {self._label(name)}] ",
        )
        if step.quality:
            return replace(turn, quality=self.state.quality)
        return replace(
            turn,
            repeats=range(step.repeat, steps[-1].repeat + 1),
            levels=frozenset(self.point(one).level for one in steps),
            first=first and not self.known(name).points,
            replaces_void=True,
            enough=(self.race.rules.attainment or 1.0) if self.race.rules.ladder else None,
        )

    def _due(self, step: Step) -> list[tuple[Step, ...]]:
        """Return what is to be measured now, by start: a step that has no result, and what the race has decided beside it."""
        stocks = {one.run for one in self.state.candidates if not one.settings}
        # what limits stock decides who is in the first round
        early = not self.state.proposed
        due = []
        for steps in self.race.upcoming:
            if step in steps:
                # a void point is measured once more, though it has a row
                left = (step, *self._missing(steps[steps.index(step) + 1 :]))
            elif early and steps[0].candidate not in stocks:
                continue
            else:
                left = self._missing(steps)
            if left:
                due.append(left)
        return due

    def _missing(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Return the steps of a start that must be measured."""
        if any(step_key(one) in self.state.noted for one in steps):
            return ()
        found, enough = [], None
        for one in steps:
            if one.block == enough:
                continue
            row = None if one.quality else self.row(one)
            if row is None:
                found.append(one)
            elif self.race.rules.ladder:
                value = self.result_of(one, row).value
                enough = one.block if value is not None and self.race.passes({one.level: value}) else None
        return tuple(found)

    def _closing(self) -> list[Turn]:
        if not self._over:
            self.session.events(RaceEnded())
        self._over = True
        runs = {name: self.folder.run(name) for name in self.session.state.runs}
        left = [name for name, one in runs.items() if one.state.exists() and read_run(one).status not in ENDED]
        return [closing_turn(name) for name in left]

    def _label(self, name: str) -> str:
        return self.candidates[name].name

    def _propose(self, step: Step) -> bool:
        """Once stock is measured, add what the finding of limits proposes; return whether the race is a new one."""
        stocks = tuple(one for one in self.state.candidates if not one.settings)
        if self.state.proposed or step.candidate in [one.run for one in stocks]:
            return False
        spaces = stored_spaces(self.state, self.registry)
        found: list[Candidate] = []
        for stock in () if self.state.question.only else stocks:
            found += proposed_candidates(
                *((*self.state.candidates, *found), self._proposals(stock), self.job(stock), self.registry),
                space=spaces[stock.engine],
                guarded=bool(self.state.quality),
                here=not self.session.state.launcher,
            )
        others = self.state.candidates[len(stocks) :]
        self.state = replace(self.state, proposed=True, candidates=(*stocks, *found, *others))
        write_tune(self.folder, self.state, self.session.state)
        for one in found:
            self.session.events(Notice("candidate_proposed", self.state.stock_of(one).name, one.note))
        self.race = self.new_race()
        return True

    def _proposals(self, stock: Candidate) -> list[tuple[str, str]]:
        """What the finding of limits proposes for measured stock settings: pairs of an override and why."""
        # without telemetry, with a damaged table, or if the engine did not start, there is just no proposal
        with suppress(StoreError):
            return [
                (one.override, action_text(one))
                for finding in findings(load_run(self.folder.run(stock.run).path))
                for one in finding.proposals
                if one.override is not None
            ]
        return []

    def _note(self, step: Step, noted: Result) -> None:
        self.state = replace(self.state, noted={**self.state.noted, step_key(step): noted})
        write_tune(self.folder, self.state, self.session.state)

    def _patience(self, step: Step) -> float | None:
        """Return how long the engine of a step may take to become ready, by how long stock takes: settings with which an engine
        hangs must not use up the budget. None for as long as its settings say."""
        known = [result.cost for one, result in self.race.results(self.race.stock) if result.value is not None]
        if step.candidate == self.race.stock or not known or self.state.question.trials is not None:
            return None
        limit = self.job(self.candidates[step.candidate]).settings.engine.ready_timeout_s
        return min(limit, max(PATIENCE_MIN_S, PATIENCE * known[0]))

    def _answers(self, step: Step, cost: float) -> Result:
        reference = self.race.entrants[step.candidate].reference or self.race.stock
        if step.candidate == reference:
            return Result(same_answers=True, cost=cost)
        stock, own = (read_quality(self.folder.run(name)) for name in (reference, step.candidate))
        found = parities(stock, own)
        if found:
            bad = [one for one in found if one.finding in ("more than itself", "too small to tell")]
            note = parity_text((bad or found)[0])
            return Result(same_answers=not bad, cost=cost, note=note)
        floor = {one.benchmark: one.value for one in summaries(stock)}
        margin = self.state.question.share("quality_margin")
        scores = [(one, floor.get(one.benchmark)) for one in summaries(own)]
        worse = [
            f"{one.benchmark}: {one.value:.1%} {one.measure}, stock {known:.1%}"
            for one, known in scores
            if one.value is not None and known is not None and one.value < known - margin
        ]
        known = [one for one, of_stock in scores if of_stock is not None]
        note = "; ".join(worse) if worse else "" if known else "the answers could not be compared"
        return Result(same_answers=bool(known) and not worse, cost=cost, note=note)


def run_tune(words: Sequence[str], registry: Registry, *, listen: Listen) -> int:
    """Race the settings that the words describe. Returns the exit code: 0 if one is best, 130 on Ctrl-C.
    `listen` opens what listens to its events.

    Raises ConfigError, PreflightError or StoreError before anything is started.
    """
    plan = plan_tune(words, registry, listen)
    first = plan.jobs[0]
    outputs = outputs_folder(first.settings.study.dir)
    check_writable(outputs)
    with new_study(outputs, first.settings.study.name, f"tune-{study_label(plan.jobs)}") as folder:
        state = new_state(folder.name, ("tune", *words), [first], plan.runs[:1])
        write_plan(folder, plan.runs)
        write_tune(folder, plan.state, state)
        write_study(folder, state)
        return _execute(folder, state, plan.runs, plan.state, registry=registry, listen=listen, cluster=first.launcher)


def continue_tune(
    folder: StudyFolder,
    registry: Registry,
    *,
    listen: Listen,
    more: float = 0.0,
    here: bool = False,
    trusted: bool = False,
) -> int:
    """Continue a stored tune, with `more` budget than before: on its cluster, or with `here` on this machine. Returns the exit
    code.

    Raises ConfigError, PreflightError or StoreError before anything is started.
    """
    with exclusive(folder, "it cannot be resumed before that ends"):
        study = confirm_study(folder, registry, trusted=trusted, adopt=True)
        before, tune = study.state, study.tune
        if tune is None:
            raise StoreError(f"{folder.path} has no {folder.tune.name}, without which a tune cannot be continued")
        cluster = None if here else launcher_from_dict(before.launcher)
        recover_study(folder)
        check_study([], cluster, registry, listen)
        state = resumed_state(before)
        if more:
            tune = replace(tune, more=tune.more + more, continued=tune.continued + 1)
            write_tune(folder, tune, state)
        write_study(folder, state)
        return _execute(folder, state, study.plan, tune, registry=registry, listen=listen, cluster=cluster)


def _execute(
    folder: StudyFolder,
    study: StudyState,
    plan: Sequence[PlannedRun],
    tune: TuneState,
    *,
    registry: Registry,
    listen: Listen,
    cluster: ClusterSettings | None,
) -> int:
    """Race the candidates, store how the study ended, write and print the answer. Returns the exit code."""
    began = time.monotonic()
    planned = {run.name: planned_job(run, registry) for run in plan}
    with open_session(folder, study, list(planned.values()), listen, cluster=cluster) as session:
        events = session.events
        tuner = Tuner(folder=folder, registry=registry, planned=planned, state=tune, session=session)
        labels = {one.run: one.name for one in tuner.state.candidates}
        timed = tuner.state.question.trials is None
        budget_s = tuner.state.budget if timed else None
        if not tuner.known(tuner.race.stock).points:
            events(tune_planned(next(iter(planned.values())), budget_s, earlier_runs(folder.path.parent)))
        events(PlanReady(labels, seconds=budget_s if cluster is None else None))
        code = FailureKind.INTERRUPTED.exit_code
        try:
            if not execute(session, tuner, list(planned.values())[:1], registry):
                code = tuner.code or (0 if tuner.has_best else 1)
        except ServebenchError as error:
            events(ErrorSaid(str(error)))
            code = error.exit_code
        if cluster is not None and timed:
            events(Notice("engine_time", note=seconds(tuner.race.spent), at=seconds(time.monotonic() - began)))
        whole = tuner.race.next_step() is None
        interrupted = code == FailureKind.INTERRUPTED.exit_code
        session.end("interrupted" if interrupted else "finished" if whole and code == 0 else "failed")
        if whole or tuner.race.measured:
            try:
                events(TuneAnswered(write_answer(tuner, finished=whole)))
            except (ServebenchError, OSError) as error:
                events(Notice("tune_answer_failed", note=str(error)))
        if not whole:
            here = bool(session.state.launcher) and cluster is None
            events(Notice("tune_unfinished", short_id(folder.name) + " --here" * here))
        return code
