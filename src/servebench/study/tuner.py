"""A tune that this process measures, one step of the race after another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar

from servebench.analysis.events import TuneAnswered
from servebench.analysis.limits import findings
from servebench.analysis.quality.parity import parities
from servebench.analysis.quality.summary import summaries
from servebench.analysis.tuning.steps import FIRST_OF_PHASE, Result, Step
from servebench.config import Job, settings_from_dict
from servebench.contracts.events import RaceEnded, Said
from servebench.contracts.notices import (
    CandidateProposed,
    LeftBehind,
    PointVoid,
    ResultsStored,
    StepFailed,
    StudyStep,
    TuneStopped,
    TuneUnfinished,
    Void,
)
from servebench.contracts.results import RunOutcome
from servebench.contracts.tuning import TuneSpace
from servebench.engine.pool import EnginePool
from servebench.report.wording.limits import action_text
from servebench.report.wording.quality import parity_text
from servebench.report.wording.tuning import left_text
from servebench.run.manifest import stop_facts
from servebench.run.prior import without_void
from servebench.run.session import Turn
from servebench.run.task import RunContext, RunTask, run_task
from servebench.store.graded import read_quality
from servebench.store.manifest import read_signed_manifest, write_manifest
from servebench.store.state import read_run, write_run, write_study
from servebench.store.studies import load_run
from servebench.store.tune import NotedResult, StoredCandidate, write_tune
from servebench.study.study import StudySession, open_context
from servebench.study.tune_answer import stored_spaces, write_answer
from servebench.study.tune_plan import proposed_candidates
from servebench.study.tune_records import StoredTune, step_key
from servebench.util.errors import FailureKind, ServebenchError, StoreError
from servebench.util.redaction import remember_config

NOT_THE_ENGINE = frozenset(
    {FailureKind.STORE, FailureKind.DAMAGED, FailureKind.WORKER, FailureKind.LEDGER, FailureKind.QUALITY}
    | {FailureKind.INTERRUPTED, FailureKind.KILLED, FailureKind.LOST}
)
"""Failures that say nothing of the candidate: they stop the study, which can be resumed."""


PATIENCE, PATIENCE_MIN_S = 3.0, 60.0
"""A start may take so many times as long as the first start and block of stock, and at least so many seconds."""


@dataclass(kw_only=True)
class Tuner(StoredTune):
    """A tune that this process measures."""

    on_cluster: ClassVar[bool] = False
    session: StudySession
    pool: EnginePool
    _context: RunContext | None = field(default=None, init=False)
    _running: tuple[str, int] | None = field(default=None, init=False)
    """The candidate and the number of the start whose engine runs."""

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
            self.race.next_step()
            self._say_leaving(left)
        self._release_unless(None)
        tried = any(name != self.race.stock for name in self.race.measured)
        return 0 if self.race.winner is not None and tried else 1

    def stop(self) -> None:
        """Stop the engine, whatever has ended the race."""
        self.pool.stop()
        self.pool.clean_logs()

    def _say_leaving(self, before: int) -> None:
        for name, left in list(self.race.left.items())[before:]:
            if left.reason in ("slower", "slo", "requests failed", "start failed", "answers"):
                self.session.events(Said(f"{self._label(name)}: {left_text(left)}"))

    def _label(self, name: str) -> str:
        return self.candidate(name).candidate.name

    def _propose(self, step: Step) -> bool:
        """Once stock is measured, add what the finding of limits proposes; return whether the race is a new one."""
        stocks = tuple(one for one in self.state.candidates if not one.candidate.settings)
        if self.state.proposed or step.candidate in [one.run for one in stocks]:
            return False
        spaces = stored_spaces(self.state, self.registry)
        found: list[StoredCandidate] = []
        for stock in () if self.state.question.only else stocks:
            job = self.job(stock)
            option = stock.candidate.engine
            space = spaces.get(option, TuneSpace(engine=option, file=""))
            found += proposed_candidates(
                *((*self.state.candidates, *found), self._proposals(stock), job, self.registry),
                space=space,
                guarded=bool(self.state.quality),
                here=not self.session.state.launcher,
            )
        others = self.state.candidates[len(stocks) :]
        self.state = replace(self.state, proposed=True, candidates=(*stocks, *found, *others))
        write_tune(self.folder, self.state, self.session.state)
        for one in found:
            self.session.events(CandidateProposed(self._stock_name(stocks, one), one.candidate.note))
        self.race = self.new_race()
        return True

    def _stock_name(self, stocks: Sequence[StoredCandidate], proposed: StoredCandidate) -> str:
        """What the stock settings of a proposal's engine are called."""
        return next(one.candidate.name for one in stocks if one.candidate.engine == proposed.candidate.engine)

    def _proposals(self, stock: StoredCandidate) -> list[tuple[str, str]]:
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

    def _measure(self, step: Step) -> tuple[Result | None, int]:
        """Measure a step. Returns its result, or None and the exit code if the study stops. Raises KeyboardInterrupt."""
        candidate = self.candidate(step.candidate)
        job = self._with_patience(self.job(candidate), step)
        began = time.monotonic()
        if step.quality:
            job, turn = self._with_quality(job), Turn(range(0), first=False, last=True)
        else:
            level = self.point(step).level
            fresh = not self.known(step.candidate).points
            turn = Turn(
                range(step.repeat, step.repeat + 1),
                first=fresh,
                last=False,
                start=step.start,
                levels=frozenset({level}),
            )
        task = RunTask(candidate.run, job, without_void(self.known(step.candidate), turn), turn)
        what = "answers" if step.quality else f"{step.phase}, start {step.start % FIRST_OF_PHASE['finals'] + 1}"
        outcome = self._run(task, f"[{what}: {candidate.candidate.name}] ")
        self._running = (step.candidate, step.start)
        if outcome.status == "interrupted":
            return None, outcome.exit_code
        self.progress[step.candidate] = self.known(step.candidate).after(outcome)
        seconds = time.monotonic() - began
        if step.quality and (outcome.status == "finished" or outcome.failure is FailureKind.QUALITY):
            return self._note(step, self._answers(step, seconds)), 0
        row = None if step.quality or outcome.status != "finished" else self.row(step)
        if row is not None:
            result = self.stored_result(step)
            if result is None:
                self.session.events(PointVoid(candidate.candidate.name, Void.AGAIN))
                return self._measure(step)
            return result, 0
        if self._stops(step.candidate, outcome):
            return None, outcome.exit_code
        cost = 1.0 if self.state.question.trials is not None else seconds
        reason = (outcome.error or "it measured nothing").splitlines()[0]
        return self._note(step, NotedResult(failure=reason, cost=cost)), 0

    def _stops(self, name: str, outcome: RunOutcome) -> bool:
        """Return whether a failure stops the study: it says nothing of the candidate, or all others are compared with this one.
        It is not noted, so that `resume` measures the step again."""
        stock_failed = name == self.race.stock and outcome.status == "failed"
        if outcome.failure not in NOT_THE_ENGINE and not stock_failed:
            return False
        self.session.events(TuneStopped(self._label(name)))
        return True

    def _run(self, task: RunTask, label: str) -> RunOutcome:
        """Execute a part of a run; its engine keeps running."""
        self._list_runs([task.name])
        remember_config(task.job.resolved)
        return run_task(self._open_context(task.job), task, task.job.settings, label)

    def _list_runs(self, names: Sequence[str]) -> None:
        """Add runs to those of the study, before they are executed."""
        state = self.session.state
        if new := [name for name in names if name not in state.runs]:
            self.session.state = replace(state, runs=(*state.runs, *new))
            write_study(self.folder, self.session.state)

    def _open_context(self, job: Job) -> RunContext:
        if self._context is None:
            context = open_context(self.session, [job], self.registry, self.pool)
            self._context = replace(context, prompts=self.folder.prompts)
        return self._context

    def _note(self, step: Step, noted: NotedResult) -> Result:
        self.state = self.state.with_noted(step_key(step), noted)
        write_tune(self.folder, self.state, self.session.state)
        result = self.stored_result(step)
        assert result is not None
        return result

    def _with_patience(self, job: Job, step: Step) -> Job:
        """Return the job of a step with less time to become ready, by how long stock takes: settings with which an engine hangs
        must not use up the budget."""
        known = [result.cost for one, result in self.race.results(self.race.stock) if result.value is not None]
        if step.candidate == self.race.stock or not known or self.state.question.trials is not None:
            return job
        patience = min(job.settings.engine.ready_timeout_s, max(PATIENCE_MIN_S, PATIENCE * known[0]))
        engine = replace(job.settings.engine, ready_timeout_s=patience)
        return replace(job, settings=replace(job.settings, engine=engine))

    def _with_quality(self, job: Job) -> Job:
        config = {**job.resolved, "quality": dict(self.state.quality)}
        return replace(job, settings=settings_from_dict(config, self.registry), resolved=config)

    def _answers(self, step: Step, seconds: float) -> NotedResult:
        """Compare the answers of a candidate with those of stock."""
        cost = 1.0 if self.state.question.trials is not None else seconds
        reference = self.race.entrants[step.candidate].reference or self.race.stock
        if step.candidate == reference:
            return NotedResult(same_answers=True, cost=cost)
        stock, own = (read_quality(self.folder.run(name)) for name in (reference, step.candidate))
        found = parities(stock, own)
        if found:
            bad = [one for one in found if one.finding in ("more than itself", "too small to tell")]
            note = parity_text((bad or found)[0])
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
        self.pool.clean_logs()
        if stopped is None:
            return
        if stopped.leftover:
            self.session.events(LeftBehind(stopped.leftover))
        path = self.folder.run(name).manifest
        manifest, origin = read_signed_manifest(path)
        write_manifest(path, {**manifest, **stop_facts(stopped)}, own=origin.own)

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
        events = self.session.events
        events(ResultsStored(self.folder.path))
        self.session.tracker.say_where()
        if whole or self.race.measured:
            try:
                answer = write_answer(self.folder, self.race, self.state, self.planned, self.registry, finished=whole)
                events(TuneAnswered(answer))
            except (ServebenchError, OSError) as error:
                events(StepFailed(StudyStep.TUNE_ANSWER, str(error)))
        if not whole:
            here = bool(self.session.state.launcher) and not self.on_cluster
            events(TuneUnfinished(self.folder.name, here))
        return code

    def _close(self) -> None:
        """Mark the runs as finished that have all that the race wanted of them."""
        self.session.events(RaceEnded())
        for name in self.session.state.runs:
            run = self.folder.run(name)
            if not run.state.exists() or (state := read_run(run)).status in ("finished", "failed"):
                continue
            if self.session.state.launcher:
                # the facts in its manifest are those of another machine
                write_run(run, replace(state, status="finished", error=None, failure=None, ended_s=time.time()))
                continue
            job = self.job(self.candidate(name))
            task = RunTask(name, job, self.known(name), Turn(range(0), first=False, last=True))
            run_task(self._open_context(job), task, None)
