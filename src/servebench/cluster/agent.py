"""Execution of an order on the machine that the cluster chose: leases, the run, and the reply."""

import contextlib
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from servebench.cluster.heartbeat import SILENT_S, active_process, heartbeat
from servebench.cluster.leases import Leases, lease_folder
from servebench.cluster.orders import pack_run, prompt_files, visible_gpus
from servebench.contracts.cluster import RunOrder, RunReply
from servebench.contracts.engine import GPUS_VARIABLE
from servebench.contracts.events import ErrorSaid, Events, Notice
from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import RunSettings
from servebench.engine.pool import EnginePool
from servebench.engine.supervisor.ports import free_port, port_problem
from servebench.registry.registry import registry
from servebench.report.terminal.display import listeners
from servebench.run.lifecycle import job_of_turn, measured_floor, shared_prompts
from servebench.run.preflight import check_jobs, planned_job
from servebench.run.prior import prior_progress, stored_points
from servebench.run.recovery import recover_run
from servebench.run.session import RunContext, RunTask
from servebench.run.turns import FixedOrder, LocalExecutor, follow, turns_in_order
from servebench.store.layout import RunFolder, StudyFolder
from servebench.store.manifest import capture_machine
from servebench.store.plan import PlannedRun
from servebench.store.state import RunState, StudyState, read_run, read_study, write_run
from servebench.util.cache import cache_folder
from servebench.util.errors import FailureKind, ServebenchError
from servebench.util.process_privacy import make_private
from servebench.util.redaction import redact_text
from servebench.util.signals import interrupts

LOG = "node.log"
PORT_RELEASE_S = 30.0
"""Time that the previous run's engine has to release its port after its lease has ended."""


def execute_order(order: RunOrder) -> RunReply:
    """Execute an order on this machine. User errors, a dead engine and signals are outcomes; an outdated or duplicate
    order is refused. Raises StoreError when the study cannot be read or written.
    """
    os.environ.update(order.environ)
    make_private()
    if not order.cluster_gives_gpus:
        # submitit hides all GPUs from a local job; here they are leased
        os.environ.pop(GPUS_VARIABLE, None)
        if order.visible_gpus is not None:
            os.environ[GPUS_VARIABLE] = order.visible_gpus
    with _study_folder(order) as (folder, shared):
        state = read_study(folder)
        refused = refusal(folder, state, order)
        if refused is not None:
            return RunReply(outcome=None, place=_place(()), refused=refused)
        run = folder.create_run(order.run)
        with (
            (run.path / LOG).open("a", encoding="utf-8") as log,
            contextlib.redirect_stderr(log),
            contextlib.redirect_stdout(log),
            heartbeat(run.path, job=_job_name()),
        ):
            outcome, place = _execute_run(folder, state, order)
        files = None if shared else pack_run(run.path)
        prompts = {} if shared else prompt_files(folder)
    sized = {name: content for name, content in prompts.items() if name not in order.files}
    return RunReply(outcome=outcome, place=place, files=files, prompts=sized)


@contextmanager
def _study_folder(order: RunOrder) -> Iterator[tuple[StudyFolder, bool]]:
    """Open the study's folder, and say whether it is on a disk that is shared with the sender of the order."""
    folder = StudyFolder(Path(order.study))
    if not order.files or (folder.state.is_file() and read_study(folder).ticket == order.ticket):
        yield folder, True
        return
    with TemporaryDirectory(prefix="servebench-") as copy:
        folder = StudyFolder(Path(copy) / folder.name)
        for name, content in order.files.items():
            path = folder.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield folder, False


def refusal(
    folder: StudyFolder,
    state: StudyState,
    order: RunOrder,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Return why an order must not be executed; null if it may. Waits for a process that seems to work on the run."""
    if state.ticket != order.ticket:
        return f"the command that ordered {order.run} has ended, and a later command has ordered it again"
    run = folder.run(order.run)
    if (not order.turns or order.turns[-1].last) and run.state.exists() and read_run(run).status == "finished":
        return f"{order.run} is already finished"
    # a job that its scheduler restarts may start before the death of its first process can be seen
    deadline = now() + SILENT_S
    while (process := active_process(run.path)) is not None:
        if now() > deadline:
            return f"{order.run} is already running on {process}"
        sleep(1.0)
    return None


def _job_name() -> str | None:
    environ = os.environ
    if "SLURM_ARRAY_JOB_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ.get('SLURM_ARRAY_TASK_ID', '')}"
    return environ.get("SLURM_JOB_ID") or environ.get("SUBMITIT_LOCAL_JOB_ID")


def _place(leases: Sequence[str]) -> dict[str, Any]:
    host = os.environ.get("SLURMD_NODENAME") or platform.node()
    return {"host": host, "job": _job_name(), "leases": list(leases), "gpus": os.environ.get(GPUS_VARIABLE)}


def _execute_run(folder: StudyFolder, state: StudyState, order: RunOrder) -> tuple[RunOutcome, Mapping[str, Any]]:
    """Lease what the run needs, check and execute it, and return its outcome and place."""
    known = registry()
    started_s = time.time()
    leases = Leases(lease_folder())
    with interrupts(also=(signal.SIGUSR2,)), listeners(known)() as events:
        try:
            job = planned_job(PlannedRun(name=order.run, overrides=order.overrides, config=order.config), known)
            job = job_of_turn(job, order.turns[0], known) if order.turns else job
            machine = capture_machine()
            _lease_resources(leases, order, machine, events)
            lease_ports(leases, job.settings, events, local=known.launcher(job.settings.launch.name).local)
            check_jobs([job], known)
            recover_run(folder, order.run)
            facts = {"place": _place(leases.names)}

            def port_of(host: str) -> int:
                # fails for a host that is not this machine's
                free_port(host)
                port = leases.free_port(lambda port: port_problem(host, port) is None)
                facts["place"] = _place(leases.names)
                return port

            pool = EnginePool(known, events, cache_folder(), port_of)
            prompts = shared_prompts(folder, state)
            floor = measured_floor([job], known, events)
            context = RunContext(folder, state.words, events, pool, known, machine, floor, facts, prompts)
            outcome = _execute_turns(context, RunTask(order.run, job, prior_progress(folder.run(order.run))), order)
        except (KeyboardInterrupt, ServebenchError) as problem:
            outcome = _early_end(folder, order, problem, started_s)
            events(ErrorSaid(outcome.error or ""))
        place = _place(leases.names)
        leases.release()
    return outcome, place


def _execute_turns(context: RunContext, task: RunTask, order: RunOrder) -> RunOutcome:
    policy = FixedOrder([task], order.turns or turns_in_order([task]), lambda *_: None)
    follow(policy, LocalExecutor(lambda: context))
    if policy.latest is not None:
        return policy.latest
    # a job before this one measured all of it
    points = tuple(stored_points(context.study.run(task.name)))
    return RunOutcome(run_id=f"{context.study.name}/{task.name}", status="finished", points=points)


def _lease_resources(leases: Leases, order: RunOrder, machine: Mapping[str, Any], events: Events) -> None:
    """Wait for a place on this machine and for GPUs. Raises PreflightError."""
    if order.runs_per_machine is not None:
        slots = [f"run-{number}" for number in range(order.runs_per_machine)]
        leases.wait_for(slots, 1, lambda: events(Notice("place_awaited")))
    gpus = visible_gpus(machine, os.environ.get(GPUS_VARIABLE))
    if order.gpus and gpus and not order.cluster_gives_gpus:
        names = [f"gpu-{gpu}" for gpu in gpus]
        awaited = Notice("gpus_awaited", note=str(order.gpus), at=str(len(gpus)))
        leased = leases.wait_for(names, order.gpus, lambda: events(awaited))
        os.environ[GPUS_VARIABLE] = ",".join(name.removeprefix("gpu-") for name in leased)


def lease_ports(leases: Leases, settings: RunSettings, events: Events, *, local: bool) -> None:
    """Wait for the ports that the config names: that of an engine which is started here (`local`), and that at which spans are
    received. Raises PreflightError."""
    engine = settings.engine
    named = [(engine.host, engine.port)] if local else []
    named += [engine.spans_listener] if engine.request_timings == "spans" else []
    for host, port in named:
        if not port or f"port-{port}" in leases.names:
            continue
        leases.wait_for([f"port-{port}"], 1, partial(events, Notice("port_awaited", at=str(port))))
        deadline = time.monotonic() + PORT_RELEASE_S
        while port_problem(host, port) is not None and time.monotonic() < deadline:
            time.sleep(0.25)


def _early_end(
    folder: StudyFolder, order: RunOrder, problem: KeyboardInterrupt | ServebenchError, started_s: float
) -> RunOutcome:
    interrupted = isinstance(problem, KeyboardInterrupt)
    outcome = RunOutcome(
        run_id=f"{folder.name}/{order.run}",
        status="interrupted" if interrupted else "failed",
        error="interrupted before it started" if interrupted else redact_text(str(problem)),
        failure=FailureKind.INTERRUPTED if isinstance(problem, KeyboardInterrupt) else problem.kind,
    )
    store_end(folder.run(order.run), outcome, title=order.title, started_s=started_s)
    return outcome


def store_end(
    run: RunFolder, outcome: RunOutcome, *, title: str, overrides: tuple[str, ...] = (), started_s: float
) -> None:
    """Store how a run ended that could not do so itself. `started_s` is in seconds since the epoch. Raises StoreError."""
    ended = {name: getattr(outcome, name) for name in ("run_id", "status", "error", "failure")}
    write_run(run, RunState(title=title, overrides=overrides, started_s=started_s, ended_s=time.time(), **ended))
