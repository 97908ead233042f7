"""`servebench tune`: race the settings of engines, from the command or from what is stored, and say which are best."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from servebench.analysis.limits import findings
from servebench.analysis.quality.parity import parities
from servebench.analysis.quality.summary import summaries
from servebench.analysis.tuning.race import Race
from servebench.analysis.tuning.results import result_of_point
from servebench.analysis.tuning.steps import FIRST_OF_PHASE, ROUNDS, RaceRules, Result, Step
from servebench.config import Job, settings_from_dict
from servebench.contracts.point_id import PointId
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import RunOutcome
from servebench.contracts.tuning import MAX_LOAD
from servebench.engine.pool import EnginePool
from servebench.registry.registry import Registry
from servebench.report.terminal.display import Detail, Display, Schedule
from servebench.run.jobs import planned_job
from servebench.run.manifest import stop_facts
from servebench.run.prior import PriorProgress, prior_progress
from servebench.run.session import Turn
from servebench.run.task import RunContext, RunTask, run_task
from servebench.store.graded import read_quality
from servebench.store.layout import StudyFolder, check_writable, create_study, outputs_folder
from servebench.store.manifest import read_manifest, write_manifest
from servebench.store.plan import read_plan, write_plan
from servebench.store.state import read_run, read_study, write_study
from servebench.store.studies import load_run
from servebench.store.tune import NotedResult, StoredCandidate, TuneState, read_tune, write_tune
from servebench.study.recover import recover_study
from servebench.study.study import StudySession, exclusive, new_state, open_context, resumed_state, study_label
from servebench.study.tracking import StudyTracker
from servebench.study.trust import confirm_study
from servebench.study.tune_answer import print_tune, write_answer
from servebench.study.tune_plan import candidate_job, entrants_of, plan_tune, proposed_candidates, take_backs_of
from servebench.util.cache import cache_folder
from servebench.util.errors import ConfigError, FailureKind, ServebenchError, StoreError
from servebench.util.redaction import remember_config
from servebench.util.short_id import short_id
from servebench.util.signals import interrupts

NOT_THE_ENGINE = frozenset(
    {FailureKind.STORE, FailureKind.DAMAGED, FailureKind.WORKER, FailureKind.LEDGER, FailureKind.QUALITY}
    | {FailureKind.INTERRUPTED, FailureKind.KILLED, FailureKind.LOST}
)
"""Failures that say nothing of the candidate: they stop the study, which can be resumed."""


def run_tune(words: Sequence[str], registry: Registry, *, detail: Detail | None = None) -> int:
    """Race the settings that the words describe. Returns the exit code: 0 if there is a winner, 130 on Ctrl-C.

    Raises ConfigError, PreflightError or StoreError before anything is started.
    """
    plan = plan_tune(words, registry)
    first = plan.jobs[0]
    outputs = outputs_folder(first.settings.study.dir)
    check_writable(outputs)
    folder = create_study(outputs, first.settings.study.name, f"tune-{study_label(plan.jobs)}")
    with exclusive(folder, "choose another study.name"):
        if folder.state.exists():
            raise StoreError(f"another servebench has just created {folder.path}; choose another study.name")
        state = new_state(folder.name, ("tune", *words), [first], plan.runs[:1])
        write_plan(folder, plan.runs)
        write_tune(folder, plan.state)
        write_study(folder, state)
        return _execute(folder, registry, detail)


def continue_tune(
    folder: StudyFolder, registry: Registry, *, more: float = 0.0, trusted: bool = False, detail: Detail | None = None
) -> int:
    """Continue a stored tune, with `more` budget than before. Returns the exit code.

    Raises ConfigError, PreflightError or StoreError before anything is started.
    """
    with exclusive(folder, "it cannot be resumed before that ends"):
        confirm_study(folder, registry, trusted=trusted, adopt=True)
        state = read_tune(folder)
        recover_study(folder)
        if more:
            state = replace(state, more=state.more + more, continued=state.continued + 1)
            write_tune(folder, state)
        write_study(folder, resumed_state(read_study(folder)))
        return _execute(folder, registry, detail)


def _execute(folder: StudyFolder, registry: Registry, detail: Detail | None) -> int:
    planned = {run.name: planned_job(run, registry) for run in read_plan(folder)}
    for job in planned.values():
        remember_config(job.resolved)
    first = next(iter(planned.values()))
    with interrupts(), Display(detail=detail) as display:
        tracker = StudyTracker(folder, first.settings.tracking, display)
        session = StudySession(folder=folder, state=read_study(folder), display=display, tracker=tracker)
        pool = EnginePool(registry, display, cache_folder())
        tuner = Tuner(session, registry, pool, planned, read_tune(folder))
        labels = {one.run: one.candidate.name for one in tuner.state.candidates}
        timed = tuner.state.question.trials is None
        display.plan(Schedule(labels=labels, seconds=tuner.state.budget if timed else None))
        code = FailureKind.INTERRUPTED.exit_code
        try:
            code = tuner.run()
        except KeyboardInterrupt:
            pass
        except ServebenchError as error:
            display.problem(str(error))
            code = error.exit_code
        finally:
            pool.stop()
        return tuner.finish(code)


@dataclass
class Tuner:
    """The race of one study, and what this process needs to measure its steps."""

    session: StudySession
    registry: Registry
    pool: EnginePool
    planned: dict[str, Job]
    state: TuneState
    race: Race = field(init=False)
    _context: RunContext | None = field(default=None, init=False)
    _progress: dict[str, PriorProgress] = field(default_factory=dict, init=False)
    _running: tuple[str, int] | None = field(default=None, init=False)
    """The candidate and the number of the start whose engine runs."""
    _said: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Make the race."""
        self.race = self._new_race()

    @property
    def folder(self) -> StudyFolder:
        """The study's folder."""
        return self.session.folder

    def _new_race(self) -> Race:
        question = self.state.question
        slo = self._job(self.state.candidates[0]).settings.slo
        limited = any(one is not None for one in (slo.ttft_ms, slo.tpot_ms, slo.e2e_ms))
        rules = RaceRules(
            budget=self.state.budget,
            margin=question.margin_share,
            error=question.error_share,
            finalists=question.finalists,
            final_starts=question.final_starts,
            levels=len(self.state.levels),
            rounds=min(ROUNDS * (1 + self.state.continued), FIRST_OF_PHASE["finals"]),
            attainment=slo.attainment if limited and question.objective != "goodput" else None,
            ladder=self.state.levels if question.objective == MAX_LOAD else (),
        )
        return Race(rules, entrants_of(self.state.candidates))

    # --- the loop

    def run(self) -> int:
        """Measure step after step until the race is over. Returns the exit code. Raises KeyboardInterrupt."""
        while (step := self.race.next_step()) is not None:
            result = self.stored_result(step)
            if result is None:
                if self._propose(step):
                    continue
                self._release_unless(step)
                result, code = self._measure(step)
                if result is None:
                    return code
            left = len(self.race.left)
            self.race.add(result)
            self._say_leaving(left)
            stock = self.race.stock
            if step.candidate == stock and stock in self.race.left and self.race.left[stock].reason == "start failed":
                self.session.display.problem(f"the stock settings do not start: {self.race.left[stock].note}")
                return FailureKind.OTHER.exit_code
        self._release_unless(None)
        tried = any(name != self.race.stock for name in self.race.measured)
        return 0 if self.race.winner is not None and tried else 1

    def _say_leaving(self, before: int) -> None:
        for name, left in list(self.race.left.items())[before:]:
            if left.reason in ("slower", "slo", "requests failed", "start failed", "answers"):
                behind = f" by {math.expm1(left.behind):.1%}" if left.behind is not None else f": {left.note}"
                self.session.display.say(f"{self._label(name)} leaves: {left.reason}{behind}")

    def _label(self, name: str) -> str:
        return self.candidate(name).candidate.name

    def candidate(self, name: str) -> StoredCandidate:
        """Return the candidate of a run, or the one without a setting of it."""
        own = {one.run: one for one in self.state.candidates}
        if name in own:
            return own[name]
        return next(each for one in own.values() for each in take_backs_of(one) if each.run == name)

    # --- what is stored

    def stored_result(self, step: Step) -> Result | None:
        """Return the result of a step that an earlier process measured; None if it must be measured."""
        noted = self.state.noted.get(_key(step))
        if noted is not None:
            return Result(failure=noted.failure, cost=noted.cost, same_answers=noted.same_answers, note=noted.note)
        if step.quality:
            return None
        row = self._row(step)
        return None if row is None else self._result(step, row)

    def _known(self, name: str) -> PriorProgress:
        if name not in self._progress:
            self._progress[name] = prior_progress(self.folder.run(name))
        return self._progress[name]

    def _point(self, step: Step) -> PointId:
        level, load = self.state.levels[step.level], self._job(self.candidate(step.candidate)).settings.load
        return (
            PointId.at_concurrency(int(level), step.repeat) if load.concurrency else PointId.at_rate(level, step.repeat)
        )

    def _row(self, step: Step) -> PointRow | None:
        point = self._known(step.candidate).points.get(self._point(step))
        return None if point is None else point.row

    def _result(self, step: Step, row: PointRow) -> Result:
        rows = [point.row for point in self._known(step.candidate).points.values()]
        return result_of_point(row, rows, self.state.question.target, per_start=self.state.question.trials is not None)

    def _job(self, candidate: StoredCandidate) -> Job:
        """Return the job of a candidate: the stock settings of its engine with its own. Raises ConfigError."""
        if candidate.run in self.planned:
            return self.planned[candidate.run]
        stock = next(one for one in self.state.candidates if one.candidate.engine == candidate.candidate.engine)
        job = candidate_job(self.planned[stock.run], candidate.candidate, self.registry)
        if isinstance(job, str):
            raise ConfigError(job)
        return job

    # --- measuring

    def _propose(self, step: Step) -> bool:
        """Once stock is measured, add what the finding of limits proposes; return whether the race is a new one."""
        if self.state.proposed or step.candidate == self.race.stock:
            return False
        stock = self.state.candidates[0]
        proposals = [
            (one.override, one.action)
            for finding in findings(load_run(self.folder.run(stock.run).path))
            for one in finding.proposals
            if one.override is not None and self.state.question.only == ()
        ]
        found = proposed_candidates(self.state, proposals, self._job(stock), self.registry)
        self.state = replace(self.state, proposed=True, candidates=(stock, *found, *self.state.candidates[1:]))
        write_tune(self.folder, self.state)
        for one in found:
            self.session.display.say(f"from what limits stock: {one.candidate.note}")
        self.race = self._new_race()
        return True

    def _measure(self, step: Step) -> tuple[Result | None, int]:
        """Measure a step. Returns its result, or None and the exit code if the study stops. Raises KeyboardInterrupt."""
        candidate = self.candidate(step.candidate)
        job = self._job(candidate)
        began = time.monotonic()
        if step.quality:
            job, turn = self._with_quality(job), Turn(range(0), first=False, last=True)
        else:
            level = self._point(step).level
            fresh = not self._known(step.candidate).points
            turn = Turn(
                range(step.repeat, step.repeat + 1),
                first=fresh,
                last=False,
                start=step.start,
                levels=frozenset({level}),
            )
        task = RunTask(candidate.run, job, self._known(step.candidate), turn)
        what = "answers" if step.quality else f"{step.phase}, start {step.start % FIRST_OF_PHASE['finals'] + 1}"
        outcome = self._run(task, f"[{what}: {candidate.candidate.name}] ")
        self._running = (step.candidate, step.start)
        if outcome.status == "interrupted":
            return None, outcome.exit_code
        self._progress[step.candidate] = self._known(step.candidate).after(outcome)
        seconds = time.monotonic() - began
        if step.quality and outcome.status == "finished":
            return self._note(step, self._answers(step, seconds)), 0
        row = None if step.quality or outcome.status != "finished" else self._row(step)
        if row is not None:
            return self._result(step, row), 0
        if outcome.failure in NOT_THE_ENGINE:
            self.session.display.problem(f"{candidate.candidate.name}: {outcome.error}")
            return None, outcome.exit_code
        cost = 1.0 if self.state.question.trials is not None else seconds
        reason = (outcome.error or "it measured nothing").splitlines()[0]
        return self._note(step, NotedResult(failure=reason, cost=cost)), 0

    def _run(self, task: RunTask, label: str) -> RunOutcome:
        """Execute a part of a run; its engine keeps running."""
        state = self.session.state
        if task.name not in state.runs:
            self.session.state = replace(state, runs=(*state.runs, task.name))
            write_study(self.folder, self.session.state)
        if self._context is None:
            context = open_context(self.session, [task.job], self.registry, self.pool)
            self._context = replace(context, prompts=self.folder.prompts)
        remember_config(task.job.resolved)
        return run_task(self._context, task, task.job.settings, label)

    def _note(self, step: Step, noted: NotedResult) -> Result:
        self.state = self.state.with_noted(_key(step), noted)
        write_tune(self.folder, self.state)
        result = self.stored_result(step)
        assert result is not None
        return result

    def _with_quality(self, job: Job) -> Job:
        config = {**job.resolved, "quality": dict(self.state.quality)}
        return replace(job, settings=settings_from_dict(config, self.registry), resolved=config)

    def _answers(self, step: Step, seconds: float) -> NotedResult:
        """Compare the answers of a candidate with those of stock."""
        cost = 1.0 if self.state.question.trials is not None else seconds
        if step.candidate == self.race.stock:
            return NotedResult(same_answers=True, cost=cost)
        stock, own = (read_quality(self.folder.run(name)) for name in (self.race.stock, step.candidate))
        found = parities(stock, own)
        if found:
            bad = [one for one in found if one.finding in ("more than itself", "too small to tell")]
            note = (bad or found)[0].sentence
            return NotedResult(same_answers=not bad, cost=cost, note=note)
        floor = {one.benchmark: one.accuracy for one in summaries(stock)}
        margin = self.state.question.quality_share
        scores = [(one, floor.get(one.benchmark)) for one in summaries(own)]
        worse = [
            f"{one.benchmark}: {one.accuracy:.1%} right, stock {known:.1%}"
            for one, known in scores
            if one.accuracy is not None and known is not None and one.accuracy < known - margin
        ]
        known = [one for one, of_stock in scores if of_stock is not None]
        note = "; ".join(worse) if worse else "" if known else "the answers could not be compared"
        return NotedResult(same_answers=bool(known) and not worse, cost=cost, note=note)

    def _release_unless(self, step: Step | None) -> None:
        """Stop the running engine, unless the next step is in the same start of it."""
        if self._running is None or (step is not None and self._running == (step.candidate, step.start)):
            return
        name, self._running = self._running[0], None
        stopped = self.pool.release(None)
        if stopped is None:
            return
        if stopped.leftover:
            self.session.display.problem(f"the engine left something behind: {'; '.join(stopped.leftover)}")
        manifest = self.folder.run(name).manifest
        write_manifest(manifest, {**read_manifest(manifest), **stop_facts(stopped)})

    # --- the end

    def finish(self, code: int) -> int:
        """Store how the study ended, close its runs, write and print the answer. Returns the exit code."""
        whole = self.race.next_step() is None
        if whole:
            self._close()
        status = (
            "finished"
            if whole and code == 0
            else "interrupted"
            if code == FailureKind.INTERRUPTED.exit_code
            else "failed"
        )
        self.session.store_status(status)
        self.session.tracker.conclude(self.session.state)
        display = self.session.display
        display.where(self.folder.path)
        self.session.tracker.print_location()
        if whole or self.race.measured:
            try:
                answer = write_answer(self.folder, self.race, self.state, self.planned, self.registry, finished=whole)
                print_tune(answer, display)
            except (ServebenchError, OSError) as error:
                display.problem(f"the answer cannot be written: {error}")
        if not whole:
            display.say(f"to continue:\nservebench resume {short_id(self.folder.name)}")
        return code

    def _close(self) -> None:
        """Mark the runs as finished that have all that the race wanted of them."""
        silent = Display(quiet=True, detail=Detail(as_json=True))
        for name in self.session.state.runs:
            run = self.folder.run(name)
            if not run.state.exists() or read_run(run).status in ("finished", "failed") or self._context is None:
                continue
            task = RunTask(
                name, self._job(self.candidate(name)), self._known(name), Turn(range(0), first=False, last=True)
            )
            context: Any = replace(self._context, display=silent)
            run_task(context, task, None)


def _key(step: Step) -> str:
    return f"{step.candidate}/{step.start}/{step.block}/{step.level}{'/answers' if step.quality else ''}"
