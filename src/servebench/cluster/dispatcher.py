"""A study's runs done by a cluster: ordered, watched, gathered. What was lost with its machine is ordered again."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from servebench.cluster.agent import execute_order, unpack
from servebench.cluster.heartbeat import SILENT_S, at_work, beating
from servebench.config import Job
from servebench.contracts.cluster import (
    Cluster,
    ClusterSettings,
    JobEnd,
    RaySettings,
    RunOrder,
    RunReply,
    SubmititSettings,
)
from servebench.contracts.engine import Launcher
from servebench.contracts.results import RunOutcome
from servebench.registry.registry import Registry
from servebench.report.terminal.console import Display
from servebench.run.names import title_of
from servebench.run.prior import stored_points
from servebench.run.recovery import recover_one
from servebench.run.task import RunTask
from servebench.store import RunFolder, RunState, StudyFolder, StudyState, read_run, redact_text, write_run
from servebench.util.errors import ServebenchError
from servebench.util.redaction import redact

POLL_S = 0.5
STOPPING_S = 90.0
"""How long jobs that were asked to end may take: to stop an engine and to store what was measured."""
SMALL_FILE_BYTES = 256 << 20


def cluster_faults(settings: ClusterSettings) -> list[str]:
    """What makes this launcher impossible here."""
    if isinstance(settings, RaySettings):
        from servebench.cluster.ray_tasks import faults as ray_faults

        return ray_faults()
    from servebench.cluster.submitit_jobs import faults

    assert isinstance(settings, SubmititSettings)
    return faults(settings)


def open_cluster(settings: ClusterSettings, folder: StudyFolder) -> Cluster:
    """The cluster that is asked for. Raises PreflightError when it does not answer."""
    if isinstance(settings, RaySettings):
        from servebench.cluster.ray_tasks import RayCluster

        return RayCluster(settings, execute_order)
    from servebench.cluster.submitit_jobs import SubmititCluster

    assert isinstance(settings, SubmititSettings)
    return SubmititCluster(settings, Path(settings.submitit_folder or folder.path / "jobs"), execute_order)


@dataclass
class Dispatcher:
    """A study while a cluster does its runs."""

    folder: StudyFolder
    state: StudyState
    settings: ClusterSettings
    display: Display
    cluster: Cluster
    registry: Registry
    finished: Callable[[str, RunOutcome, Job], None]
    """Told of each run that is over, with everything on disk."""
    working: dict[str, RunTask] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    tries: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False

    def run(self, tasks: Sequence[RunTask]) -> None:
        """Have all done. Ends when each is over; on KeyboardInterrupt when those at work have stopped.

        Raises PreflightError when the cluster takes no order.
        """
        waiting = deque(tasks)
        with beating(self.folder.path, {"job": None}):
            try:
                while waiting or self.working:
                    self._order(waiting)
                    self._look(waiting)
                    time.sleep(POLL_S)
            except KeyboardInterrupt:
                self.interrupted = True
                self._stop()
            finally:
                self.cluster.close()

    def _order(self, waiting: deque[RunTask]) -> None:
        room = self.cluster.room()
        tasks = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        if not tasks:
            return
        orders = [order_for(self.folder, self.state, task, self.settings, self._launcher(task)) for task in tasks]
        for task, job in zip(tasks, self.cluster.submit(orders), strict=True):
            self.working[job] = task
            self.display.say(f"{task.name}: ordered as job {job}")

    def _launcher(self, task: RunTask) -> Launcher:
        return self.registry.launcher(task.job.settings.launch.name)

    def _look(self, waiting: deque[RunTask]) -> None:
        for job in list(self.working):
            if job not in self.told and (where := self.cluster.running_on(job)) is not None:
                self.told.add(job)
                self.display.say(f"{self.working[job].name}: at work on {where}")
            ended = self.cluster.poll(job)
            if ended is not None:
                task = self.working.pop(job)
                self._ended(task, ended, waiting)
        left = len(waiting) + len(self.working)
        self.display.status(f"{len(self.told & set(self.working))} runs at work, {left} to do")

    def _ended(self, task: RunTask, ended: JobEnd, waiting: deque[RunTask]) -> None:
        if ended.answer is not None and ended.answer.outcome is not None:
            self._gather(task, ended.answer, ended.answer.outcome)
            return
        reason = ended.lost or (ended.answer.refused if ended.answer is not None else None) or "no answer"
        if self.interrupted:
            reason = "it was asked to end, and left nothing more than what is on disk"
        tries = self.tries[task.name] = self.tries.get(task.name, 0) + 1
        if ended.lost is not None and tries <= self.settings.retries and not self.interrupted:
            self.display.problem(f"{task.name}: {reason}; it is ordered again, and the points that are stored stand")
            self._await_silence(task)
            waiting.append(task)
            return
        self._lost(task, reason)

    def _await_silence(self, task: RunTask) -> None:
        """A machine that cannot be reached may still be at work; two would write into one folder."""
        deadline = time.monotonic() + SILENT_S
        while at_work(self.folder.run(task.name).path) is not None and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _gather(self, task: RunTask, answer: RunReply, outcome: RunOutcome) -> None:
        if answer.files is not None:
            unpack(answer.files, self.folder.create_run(task.name).path)
        host = answer.place.get("host")
        self.display.say(f"{task.name}: {outcome.status} on {host}")
        self.display.finish(outcome, title_of(task.job))
        if outcome.error is not None:
            self.display.problem(f"{task.name}: {redact_text(outcome.error)}")
        self.finished(task.name, outcome, task.job)

    def _lost(self, task: RunTask, reason: str) -> None:
        """Bring what is on disk into tables, and say how the run stands."""
        error = f"{reason}; 'servebench resume {self.folder.name}' does the rest"
        outcome = lost_outcome(self.folder, self.state, task, error)
        self.display.finish(outcome, title_of(task.job))
        self.display.problem(f"{task.name}: {error}")
        self.finished(task.name, outcome, task.job)

    def _stop(self) -> None:
        """After Ctrl-C: what is at work stores what it has; what has not begun never does."""
        self.display.say(f"asking {len(self.working)} jobs to end")
        self.cluster.cancel()
        deadline = time.monotonic() + STOPPING_S
        while self.working and time.monotonic() < deadline:
            self._look(deque())
            time.sleep(POLL_S)


def order_for(
    folder: StudyFolder, state: StudyState, task: RunTask, settings: ClusterSettings, launcher: Launcher
) -> RunOrder:
    """The order for a run: how many GPUs it takes, and the variables that its machine may not have."""
    job = task.job
    own_gpus = launcher.local and not launcher.emulated and job.settings.gpu.name != "none"
    gpus = max(1, job.settings.gpu.count) if own_gpus else 0
    ray = isinstance(settings, RaySettings)
    return RunOrder(
        study=str(folder.path),
        run=task.name,
        title=title_of(job),
        ticket=state.ticket,
        gpus=gpus,
        runs_per_machine=settings.runs_per_machine,
        cluster_gives_gpus=settings.name != "submitit_local",
        visible_gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
        environ=named_variables(job, os.environ),
        files=study_files(folder, task.name) if ray else {},
    )


def named_variables(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that the config names: the key of an endpoint, and values that are secrets and so not in the plan."""
    found = {}
    key = getattr(job.settings.launch, "api_key_env", None)
    if key and key in environ:
        found[key] = environ[key]
    asked = dict(job.settings.engine.env)
    hidden = redact({"engine": {"env": asked}})["engine"]["env"]
    found.update({name: value for name, value in asked.items() if hidden.get(name) != value})
    return found


def study_files(folder: StudyFolder, run: str) -> dict[str, bytes]:
    """What a machine that does not see the study needs of it: the plan, and what earlier attempts at the run left."""
    paths = [folder.plan, folder.state]
    own = folder.run(run).path
    paths += [path for path in sorted(own.rglob("*")) if path.is_file() and path.stat().st_size <= SMALL_FILE_BYTES]
    return {str(path.relative_to(folder.path)): path.read_bytes() for path in paths}


def lost_outcome(folder: StudyFolder, state: StudyState, task: RunTask, error: str) -> RunOutcome:
    """How a run stands whose job is gone: its spools become records, its state says that it was interrupted."""
    run: RunFolder = folder.create_run(task.name)
    run_id = f"{folder.name}/{task.name}"
    try:
        recover_one(folder, state, task.name)
        points = tuple(stored_points(run))
    except ServebenchError as problem:
        error, points = f"{error} ({problem})", ()
    before = read_run(run) if run.state.exists() else None
    write_run(
        run,
        RunState(
            run_id=run_id,
            title=title_of(task.job),
            overrides=task.job.overrides,
            status="interrupted",
            error=error,
            failure="lost",
            started_s=before.started_s if before is not None else time.time(),
            ended_s=time.time(),
        ),
    )
    return RunOutcome(run_id=run_id, status="interrupted", error=error, failure="lost", points=points, search=None)
