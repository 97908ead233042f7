"""Dispatch of a study's runs to a cluster: submit, watch, collect, and submit again what was lost with its machine."""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, get_args

from servebench.cluster import ray_tasks, submitit_jobs
from servebench.cluster.agent import execute_order, store_end
from servebench.cluster.heartbeat import SILENT_S, active_process, heartbeat
from servebench.cluster.orders import keep_prompt_files, order_for, unpack_run
from servebench.contracts.cluster import Cluster, ClusterSettings, JobEnd, RaySettings, RunReply, SubmititSettings
from servebench.contracts.events import ErrorSaid, Events, JobsLeft, Notice, RunCollected
from servebench.contracts.results import Point, RunOutcome, RunStatus
from servebench.contracts.turns import Turn
from servebench.engine.pool import EnginePool
from servebench.registry.registry import Registry
from servebench.run.lifecycle import job_of_turn, needs_engine, task_steps
from servebench.run.prior import stored_points
from servebench.run.recovery import recover_run
from servebench.run.session import RunRequest, RunTask
from servebench.run.steps import alone
from servebench.run.turns import Policy
from servebench.store.layout import JOBS, StudyFolder
from servebench.store.manifest import adopt_manifest
from servebench.store.prompts import adopt_prompts
from servebench.store.state import StudyState, read_run
from servebench.util.cache import cache_folder
from servebench.util.errors import FailureKind, ServebenchError, StoreError
from servebench.util.redaction import redact_text, remember_config

POLL_S = 0.5
STOPPING_S = 90.0
"""Time that cancelled jobs have to stop their engine and to store what they measured."""


def cluster_faults(settings: ClusterSettings) -> list[str]:
    """Return why this cluster cannot be used from here, one line each."""
    return submitit_jobs.faults(settings) if isinstance(settings, SubmititSettings) else ray_tasks.faults()


def open_cluster(settings: ClusterSettings, folder: StudyFolder, ticket: str) -> Cluster:
    """Connect to the cluster of these settings. Raises PreflightError when it cannot be reached.

    `ticket` names the folder of the jobs' files: submitit unpickles the results in it, so it must be new.
    """
    if isinstance(settings, SubmititSettings):
        place = Path(settings.submitit_folder or folder.path / JOBS) / ticket
        return submitit_jobs.SubmititCluster(settings, place, execute_order)
    assert isinstance(settings, RaySettings)
    return ray_tasks.RayCluster(settings, execute_order)


class _Work(NamedTuple):
    task: RunTask
    turns: Sequence[Turn]


@dataclass(kw_only=True)
class Dispatcher:
    """Executes turns on a cluster: those of one run are one job, and the jobs of several runs run at once."""

    folder: StudyFolder
    state: StudyState
    settings: ClusterSettings
    events: Events
    registry: Registry
    cluster: Cluster
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    waiting: deque[_Work] = field(default_factory=deque, init=False)
    jobs: dict[str, _Work] = field(default_factory=dict, init=False)
    running: set[str] = field(default_factory=set, init=False)
    """Jobs that a machine executes."""
    losses: Counter[str] = field(default_factory=Counter, init=False)
    """How often the job of a run was lost, by the run's name."""
    interrupted: bool = field(default=False, init=False)
    _policy: Policy = field(init=False)

    def close(self) -> None:
        """Disconnect from the cluster."""
        self.cluster.close()

    def execute(self, turns: Sequence[Turn], policy: Policy) -> bool:
        """Execute turns. Returns when all jobs have ended, or after Ctrl-C when they have stopped, and whether it was that.

        Raises PreflightError when the cluster rejects an order.
        """
        self._policy = policy
        for name in dict.fromkeys(turn.run for turn in turns):
            own, task = [turn for turn in turns if turn.run == name], policy.task(name)
            task = replace(task, job=job_of_turn(task.job, own[0], self.registry))
            remember_config(task.job.resolved)
            if any(needs_engine(task.job, turn) for turn in own):
                self.waiting.append(_Work(task, own))
            else:
                # nothing is left to measure: that needs no engine, and no job
                pool = EnginePool(self.registry, self.events, cache_folder())
                of = self.folder, self.state.words, self.events, pool, self.registry, {"gpus": ()}
                policy.add(own, alone(task_steps(RunRequest(*of, task=task, turn=own[-1]))))
        self.losses.clear()
        with heartbeat(self.folder.path):
            try:
                while self.waiting or self.jobs:
                    self._submit()
                    self._poll()
                    self.sleep(POLL_S)
            except KeyboardInterrupt:
                self.interrupted = True
                self._stop()
            except ServebenchError:
                # no job goes on without a command that collects it
                self._stop()
                raise
            finally:
                # machines with other keys have signed those that they sized; a damaged one is reported where it is used
                with suppress(StoreError):
                    adopt_prompts(self.folder.prompts)
        return self.interrupted

    def _submit(self) -> None:
        due = [self.waiting.popleft() for _ in range(min(self.cluster.room(), len(self.waiting)))]
        if not due:
            return
        orders = [
            order_for(self.folder, self.state, *work, settings=self.settings, registry=self.registry) for work in due
        ]
        for work, job in zip(due, self.cluster.submit(orders), strict=True):
            self.jobs[job] = work
            self.events(Notice("job_submitted", work.task.name, at=job))

    def _poll(self) -> None:
        for job in list(self.jobs):
            if job not in self.running and (machine := self.cluster.running_on(job)) is not None:
                self.running.add(job)
                self.events(Notice("job_running", self.jobs[job].task.name, at=machine))
            end = self.cluster.poll(job)
            if end is not None:
                self.running.discard(job)
                self._handle_end(self.jobs.pop(job), end)
        self.events(JobsLeft(len(self.running), len(self.waiting) + len(self.jobs)))

    def _handle_end(self, work: _Work, end: JobEnd) -> None:
        task = work.task
        fault = None if end.reply is None else reply_fault(end.reply, f"{self.folder.name}/{task.name}")
        if fault is not None:
            self._give_up(work, fault)
            return
        if end.reply is not None and end.reply.outcome is not None:
            try:
                self._collect(work, end.reply, end.reply.outcome)
            except ServebenchError as error:
                self._give_up(work, str(error))
            return
        self.losses[task.name] += end.lost is not None
        if end.lost is not None and not self.interrupted and self.losses[task.name] <= self.settings.retries:
            self.events(Notice("job_lost", task.name, end.lost))
            # a machine that cannot be reached may still be writing into the run's folder
            deadline = self.now() + SILENT_S
            while active_process(self.folder.run(task.name).path) is not None and self.now() < deadline:
                self.sleep(POLL_S)
            self.waiting.append(work)
            return
        reason = end.lost or (end.reply.refused if end.reply is not None else None) or "the job sent no reply"
        self._give_up(work, "the job was cancelled; only its files on disk are left" if self.interrupted else reason)

    def _collect(self, work: _Work, reply: RunReply, outcome: RunOutcome) -> None:
        task = work.task
        if reply.files is not None:
            unpack_run(reply.files, self.folder.create_run(task.name).path)
        adopt_manifest(self.folder.run(task.name).manifest, task.job.resolved)
        keep_prompt_files(self.folder, reply.prompts)
        self.events(Notice("job_ended", task.name, outcome.status, str(reply.place.get("host"))))
        error = None if outcome.error is None else redact_text(outcome.error)
        self._report_end(work, outcome, error)

    def _give_up(self, work: _Work, reason: str) -> None:
        error = f"{reason}; 'servebench resume {self.folder.name}' continues the run"
        self._report_end(work, lost_outcome(self.folder, work.task, error), error)

    def _report_end(self, work: _Work, outcome: RunOutcome, error: str | None) -> None:
        if work.turns[-1].last or outcome.status != "finished":
            self.events(RunCollected(outcome, work.task.job.title))
        if error is not None:
            self.events(ErrorSaid(error, run=work.task.name))
        self._policy.add(work.turns, outcome)

    def _stop(self) -> None:
        """After Ctrl-C: running jobs store what they have; waiting runs do not start."""
        self.waiting.clear()
        self.events(Notice("jobs_stopping", note=str(len(self.jobs))))
        self.cluster.cancel()
        deadline = self.now() + STOPPING_S
        while self.jobs and self.now() < deadline:
            self._poll()
            self.sleep(POLL_S)


def reply_fault(reply: object, run_id: str) -> str | None:
    """Return what is wrong with a job's reply; None for a usable one. A broken job, or one of another version, sends anything."""
    usable = (
        isinstance(reply, RunReply)
        and isinstance(reply.place, Mapping)
        and isinstance(reply.refused, str | None)
        and isinstance(reply.files, bytes | None)
        and isinstance(reply.prompts, Mapping)
        and all(isinstance(name, str) and isinstance(data, bytes) for name, data in reply.prompts.items())
    )
    if not usable:
        return f"the job sent {type(reply).__name__} instead of a usable reply"
    assert isinstance(reply, RunReply)
    outcome = reply.outcome
    if outcome is None:
        return None
    if not isinstance(outcome, RunOutcome) or outcome.status not in get_args(RunStatus):
        return "the job sent a reply without a usable outcome"
    if outcome.run_id != run_id:
        return f"the job sent the outcome of another run ({str(outcome.run_id)[:100]!r})"
    points = outcome.points if isinstance(outcome.points, tuple) else (None,)
    whole = isinstance(outcome.error, str | None) and all(isinstance(point, Point) for point in points)
    return None if whole else "the job sent an outcome whose error or points are unusable"


def lost_outcome(folder: StudyFolder, task: RunTask, error: str) -> RunOutcome:
    """Recover a run whose job is gone: its spools become records, its state becomes `interrupted`."""
    run = folder.create_run(task.name)
    try:
        recover_run(folder, task.name)
        points = tuple(stored_points(run))
    except ServebenchError as problem:
        error, points = f"{error} ({problem})", ()
    outcome = RunOutcome(
        run_id=f"{folder.name}/{task.name}", status="interrupted", error=error, failure=FailureKind.LOST, points=points
    )
    started_s = time.time()
    with suppress(ServebenchError):
        started_s = read_run(run).started_s
    store_end(run, outcome, title=task.job.title, overrides=task.job.overrides, started_s=started_s)
    return outcome
