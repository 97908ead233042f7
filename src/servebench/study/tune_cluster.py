"""A tune of which each start of an engine is a job of a cluster: the starts that the race has decided run at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from servebench.analysis.tuning.steps import Result, Step
from servebench.cluster.dispatcher import Dispatcher, open_cluster
from servebench.contracts.cluster import ClusterSettings, RunPart
from servebench.contracts.notices import EngineTime, PointVoid, Void
from servebench.contracts.results import RunOutcome
from servebench.run.task import RunTask
from servebench.store.state import read_run
from servebench.store.tune import NotedResult
from servebench.study.tune_records import step_key
from servebench.study.tuner import Tuner
from servebench.util.errors import FailureKind
from servebench.util.redaction import remember_config


@dataclass(kw_only=True)
class ClusterTuner(Tuner):
    """A tune that jobs of a cluster measure. The race takes its way from what they have stored."""

    on_cluster: ClassVar[bool] = True
    cluster: ClusterSettings
    _dispatcher: Dispatcher | None = field(default=None, init=False)
    _ended: dict[str, RunOutcome] = field(default_factory=dict, init=False)
    _began: float = field(default_factory=time.monotonic, init=False)

    def stop(self) -> None:
        """Disconnect from the cluster."""
        super().stop()
        if self._dispatcher is not None:
            self._dispatcher.cluster.close()

    def finish(self, code: int) -> int:
        """Say what the cluster has saved, and end as any tune does. Returns the exit code."""
        clock = time.monotonic() - self._began
        if self._dispatcher is not None and self.state.question.trials is None:
            self.session.events(EngineTime(self.race.spent, clock))
        return super().finish(code)

    def _measure(self, step: Step) -> tuple[Result | None, int]:
        """Measure a step, and all starts that are decided. Returns its result, or None and the exit code if the study stops.
        Raises PreflightError if the cluster does not take the jobs."""
        starts = self._due(step)
        self._ended.clear()
        tasks = [self._task(steps) for steps in starts]
        self._list_runs([task.name for task in tasks])
        dispatcher = self._connected()
        dispatcher.execute(tasks)
        if dispatcher.interrupted:
            return None, FailureKind.INTERRUPTED.exit_code
        # all are taken: what was measured beside one that stops the study is not lost
        codes = [self._take(steps) for steps in starts]
        if code := next((one for one in codes if one), 0):
            return None, code
        result = self.stored_result(step)
        if result is None:
            self.session.events(PointVoid(self._label(step.candidate), Void.AGAIN))
            return self._measure(step)
        return result, 0

    def _due(self, step: Step) -> list[tuple[Step, ...]]:
        """Return what is to be measured now, by start: a step that has no result, and what the race has decided beside it."""
        stocks = {one.run for one in self.state.candidates if not one.candidate.settings}
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

    def _task(self, steps: Sequence[Step]) -> RunTask:
        """Return the task that measures the steps of one start."""
        step = steps[0]
        candidate = self.candidate(step.candidate)
        job = self._with_patience(self.job(candidate), step)
        if step.quality:
            job = self._with_quality(job)
        remember_config(job.resolved)
        points = [] if step.quality else [(one.repeat, self.point(one).level) for one in steps]
        part = RunPart(
            start=step.start,
            points=tuple(points),
            ready_timeout_s=job.settings.engine.ready_timeout_s,
            enough=(self.race.rules.attainment or 1.0) if self.race.rules.ladder else None,
        )
        return RunTask(candidate.run, job, part=part)

    def _connected(self) -> Dispatcher:
        if self._dispatcher is None:
            state = self.session.state
            self._dispatcher = Dispatcher(
                folder=self.folder,
                state=state,
                settings=self.cluster,
                events=self.session.events,
                registry=self.registry,
                cluster=open_cluster(self.cluster, self.folder, state.ticket),
                on_end=self._ended.__setitem__,
            )
        return self._dispatcher

    def _take(self, steps: Sequence[Step]) -> int:
        """Note what the job of a start has given, as far as no table holds it. Returns the exit code if the study stops."""
        name, outcome = steps[0].candidate, self._ended[steps[0].candidate]
        if outcome.status == "finished":
            self.progress[name] = self.known(name).after(outcome)
        else:
            self.progress.pop(name, None)
        if outcome.status == "interrupted":
            return outcome.exit_code
        if steps[0].quality and (outcome.status == "finished" or outcome.failure is FailureKind.QUALITY):
            self._note(steps[0], self._answers(steps[0], self._seconds(name)))
            return 0
        if self._stops(name, outcome):
            return outcome.exit_code
        missing = self._missing(steps)
        if outcome.status != "finished" or missing:
            cost = 1.0 if self.state.question.trials is not None else self._seconds(name)
            reason = (outcome.error or "it measured nothing").splitlines()[0]
            self._note((*missing, *steps)[0], NotedResult(failure=reason, cost=cost))
        return 0

    def _seconds(self, name: str) -> float:
        """Return for how long the last attempt at a run took on its machine, by the clock of that."""
        state = read_run(self.folder.run(name))
        return max(0.0, (state.ended_s or state.started_s) - state.started_s)
