"""An order carried out on the machine that a cluster chose: leases, the run, and an answer for whoever ordered it."""

from __future__ import annotations

import contextlib
import io
import os
import platform
import signal
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from servebench.cluster.heartbeat import FILE as HEARTBEAT
from servebench.cluster.heartbeat import SILENT_S, at_work, beating
from servebench.cluster.leases import Leases, lease_folder
from servebench.config import Job, settings_from_dict
from servebench.contracts.cluster import RunOrder, RunReply
from servebench.contracts.engine import Launcher
from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import RunSettings
from servebench.engine.pool import EngineKeeper
from servebench.engine.supervisor.ports import free_port, port_fault
from servebench.registry.registry import Registry, registry
from servebench.report.terminal.console import Display
from servebench.run.preflight import check_jobs
from servebench.run.prior import prior_progress
from servebench.run.recovery import recover_one
from servebench.run.task import RunContext, RunTask, floor_of, run_task
from servebench.store import (
    RunState,
    StudyFolder,
    StudyState,
    capture_machine,
    read_plan,
    read_run,
    read_study,
    redact_text,
    with_secrets,
    write_run,
)
from servebench.util.cache import cache_folder
from servebench.util.errors import ServebenchError, StoreError
from servebench.util.signals import interrupts

GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
LOG = "node.log"
PORT_FREED_S = 30.0
"""How long the engine of the run before may take to let go of its port after its lease has ended."""


def execute_order(order: RunOrder) -> RunReply:
    """Do the run that is ordered, on this machine. A user's error, a dead engine and a signal are outcomes; an order
    that must not be carried out is refused. Raises StoreError when the study cannot be read or written.
    """
    os.environ.update(order.environ)
    if not order.cluster_gives_gpus:
        # submitit hides all GPUs from a local job; here they are leased
        os.environ.pop(GPUS_VARIABLE, None)
        if order.visible_gpus is not None:
            os.environ[GPUS_VARIABLE] = order.visible_gpus
    with _study(order) as (folder, shared):
        state = read_study(folder)
        refused = _refused(folder, state, order)
        if refused is not None:
            return RunReply(outcome=None, place=_place(()), refused=refused)
        run = folder.create_run(order.run)
        with (
            (run.path / LOG).open("a", encoding="utf-8") as log,
            contextlib.redirect_stderr(log),
            contextlib.redirect_stdout(log),
            beating(run.path, {"job": _job_name()}),
        ):
            outcome, place = _do(folder, state, order)
        files = None if shared else _packed(run.path)
    return RunReply(outcome=outcome, place=place, files=files)


@contextmanager
def _study(order: RunOrder) -> Iterator[tuple[StudyFolder, bool]]:
    """The study's folder, and whether it is the one of whoever ordered, seen from here."""
    folder = StudyFolder(Path(order.study))
    if not order.files or (folder.state.is_file() and read_study(folder).ticket == order.ticket):
        yield folder, True
        return
    with TemporaryDirectory(prefix="servebench-") as place:
        folder = StudyFolder(Path(place) / folder.name)
        for name, content in order.files.items():
            path = folder.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield folder, False


def _refused(folder: StudyFolder, state: StudyState, order: RunOrder) -> str | None:
    if state.ticket != order.ticket:
        return f"{order.run} was ordered by a command that has ended since; a later one has it done"
    run = folder.run(order.run)
    if run.state.exists() and read_run(run).status == "finished":
        return f"{order.run} is finished already"
    # a job that its scheduler starts again may come before the death of the first is seen
    deadline = time.monotonic() + SILENT_S
    while (other := at_work(run.path)) is not None:
        if time.monotonic() > deadline:
            return f"{order.run} is being done already on {other}"
        time.sleep(1.0)
    return None


def _job_name() -> str | None:
    environ = os.environ
    if "SLURM_ARRAY_JOB_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ.get('SLURM_ARRAY_TASK_ID', '')}"
    return environ.get("SLURM_JOB_ID") or environ.get("SUBMITIT_LOCAL_JOB_ID")


def _place(leases: Sequence[str]) -> dict[str, Any]:
    host = os.environ.get("SLURMD_NODENAME") or platform.node()
    return {"host": host, "job": _job_name(), "leases": list(leases), "gpus": os.environ.get(GPUS_VARIABLE)}


def _do(folder: StudyFolder, state: StudyState, order: RunOrder) -> tuple[RunOutcome, Mapping[str, Any]]:
    known = registry()
    started_s = time.time()
    leases = Leases(lease_folder())
    with interrupts(also=(signal.SIGUSR2,)), Display() as display:
        try:
            job = _planned(folder, order.run, known)
            machine = capture_machine()
            _lease(leases, order, job.settings, machine, display, launcher=known.launcher(job.settings.launch.name))
            check_jobs([job], known)
            recover_one(folder, state, order.run)
            facts = {"place": _place(leases.names)}

            def port_of(host: str) -> int:
                port = _leased_port(leases, host)
                facts["place"] = _place(leases.names)
                return port

            keeper = EngineKeeper(known, display, cache_folder(), port_of)
            place = RunContext(folder, state.words, display, keeper, known, machine, floor_of([job], display), facts)
            task = RunTask(order.run, job, prior_progress(folder.run(order.run)))
            try:
                outcome = run_task(place, task, None)
            finally:
                keeper.stop()
        except (KeyboardInterrupt, ServebenchError) as problem:
            outcome = _ended_early(folder, order, problem, started_s)
            display.problem(outcome.error or "")
        place_facts = _place(leases.names)
        leases.release()
    return outcome, place_facts


def _planned(folder: StudyFolder, name: str, known: Registry) -> Job:
    """A run of the study's own copy of the plan. Raises StoreError, ConfigError."""
    run = next((run for run in read_plan(folder) if run.name == name), None)
    if run is None:
        raise StoreError(f"{folder.plan} has no run {name}")
    config = with_secrets(run.config, os.environ)
    return Job(run.overrides, settings_from_dict(config, known), config)


def _lease(
    leases: Leases,
    order: RunOrder,
    settings: RunSettings,
    machine: Mapping[str, Any],
    display: Display,
    *,
    launcher: Launcher,
) -> None:
    """Wait for the machine's quiet, for GPUs and for the port. Raises PreflightError."""
    if order.runs_per_machine is not None:
        slots = [f"run-{number}" for number in range(order.runs_per_machine)]
        leases.wait_for(slots, 1, lambda: display.say("waiting for another run on this machine to end"))
    gpus = visible_gpus(machine, os.environ.get(GPUS_VARIABLE))
    if order.gpus and gpus and not order.cluster_gives_gpus:
        names = [f"gpu-{gpu}" for gpu in gpus]
        taken = leases.wait_for(names, order.gpus, lambda: display.say(f"waiting for {order.gpus} of {len(gpus)} GPUs"))
        os.environ[GPUS_VARIABLE] = ",".join(name.removeprefix("gpu-") for name in taken)
    port, host = settings.engine.port, settings.engine.host
    if port and launcher.local:
        leases.wait_for([f"port-{port}"], 1, lambda: display.say(f"waiting for port {port}, which another run has"))
        deadline = time.monotonic() + PORT_FREED_S
        while port_fault(host, port) is not None and time.monotonic() < deadline:
            time.sleep(0.25)


def visible_gpus(machine: Mapping[str, Any], asked: str | None) -> list[str]:
    """The GPUs that a process may use: those of the driver, or of them those that CUDA_VISIBLE_DEVICES names."""
    if asked is not None:
        return [name.strip() for name in asked.split(",") if name.strip()]
    return [str(gpu["index"]) for gpu in machine["gpus"]]


def _leased_port(leases: Leases, host: str) -> int:
    """A port that no other run has been promised. Raises EngineError for a host that is not this machine's."""
    free_port(host)
    return leases.free_port(lambda port: port_fault(host, port) is None)


def _ended_early(folder: StudyFolder, order: RunOrder, problem: BaseException, started_s: float) -> RunOutcome:
    """The outcome of a run that came to nothing before it began."""
    interrupted = isinstance(problem, KeyboardInterrupt)
    error = "interrupted before it began" if interrupted else redact_text(str(problem))
    outcome = RunOutcome(
        run_id=f"{folder.name}/{order.run}",
        status="interrupted" if interrupted else "failed",
        error=error,
        failure="interrupted" if interrupted else type(problem).__name__.removesuffix("Error").lower(),
        points=(),
        search=None,
    )
    write_run(
        folder.run(order.run),
        RunState(
            run_id=outcome.run_id,
            title=order.title,
            overrides=(),
            status=outcome.status,
            error=error,
            failure=outcome.failure,
            started_s=started_s,
            ended_s=time.time(),
        ),
    )
    return outcome


def _packed(run: Path) -> bytes:
    """A run's folder as an archive."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz", compresslevel=1) as archive:
        for path in sorted(run.rglob("*")):
            if path.is_file() and path.name != HEARTBEAT:
                archive.add(path, arcname=str(path.relative_to(run)), recursive=False)
    return data.getvalue()


def unpack(files: bytes, run: Path) -> None:
    """Bring a run's files from another machine into its folder. Raises StoreError."""
    try:
        with tarfile.open(fileobj=io.BytesIO(files), mode="r:gz") as archive:
            archive.extractall(run, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise StoreError(f"the files of {run.name} cannot be written to {run}: {error}") from error
