"""Execution of orders as submitit jobs: on Slurm, or as local processes."""

import contextlib
import importlib.util
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from servebench.contracts.cluster import JobEnd, OrderRunner, RunOrder, SubmititSettings
from servebench.engine.supervisor.logs import last_lines
from servebench.util.children import SCHEDULER_SECRETS, child_environment, find_program, job_environment
from servebench.util.errors import PreflightError

NEEDED = "hydra/launcher={name} needs submitit: pip install 'servebench-suite[slurm]'"
ALIVE = (
    "PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING", "REQUEUED", "REQUEUE_HOLD", "STAGE_OUT",
    "SIGNALING", "STOPPED", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD",
)  # fmt: skip
"""Job states of squeue in which a job may still end by itself."""
SQUEUE_INTERVAL_S = 3.0
SETTLE_S = 15.0
LINE_MAX = 300


def squeue(jobs: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return state and node of jobs by name (`12` or `12_3`), as squeue prints them; empty when squeue fails.

    sacct is not used, because it needs an accounting database.
    """
    numbers = sorted({job.split("_")[0] for job in jobs})
    if not numbers:
        return {}
    command = ["squeue", "--noheader", "--states=all", "--array", "--format=%i|%T|%N", f"--jobs={','.join(numbers)}"]
    try:
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30, env=_environment())
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_squeue(answer.stdout)


def parse_squeue(text: str) -> dict[str, tuple[str, str]]:
    """Return state and node by job from lines such as `12_3|RUNNING|node1`."""
    lines = (line.strip().split("|") for line in text.splitlines())
    return {fields[0]: (fields[1], fields[2]) for fields in lines if len(fields) == 3}


def faults(settings: SubmititSettings) -> list[str]:
    """Return why this launcher cannot be used from here, one line each."""
    found = []
    if importlib.util.find_spec("submitit") is None:
        found.append(NEEDED.format(name=settings.name))
    if settings.name == "submitit_slurm" and find_program("sbatch") is None:
        found.append("hydra/launcher=submitit_slurm needs sbatch, which is not on PATH; run servebench on a login node")
    return found


def _environment() -> dict[str, str]:
    return child_environment(None, "SQUEUE_", "SCANCEL_", *SCHEDULER_SECRETS)


@contextlib.contextmanager
def _replaced_environ(environ: Mapping[str, str]) -> Iterator[None]:
    """Let what starts meanwhile inherit another environment: submitit has no argument for it."""
    before = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(environ)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class SubmititCluster:
    """Jobs that submitit runs, on Slurm or as local processes."""

    def __init__(self, settings: SubmititSettings, folder: Path, execute: OrderRunner) -> None:
        """Jobs call `execute`; submitit stores orders and the output of jobs in `folder`."""
        import submitit

        self._execute = execute
        self._local = settings.name == "submitit_local"
        self._at_once = settings.runs_per_machine if self._local else None
        self._jobs: dict[str, Any] = {}
        self._known: Mapping[str, tuple[str, str]] = {}
        self._missing: dict[str, float] = {}
        self._queried_s = -SQUEUE_INTERVAL_S
        # results are pickles: those that lie here already, in a study from elsewhere, must never be taken for those of a job
        folder = folder / secrets.token_hex(8)
        folder.mkdir(parents=True)
        self._executor = submitit.AutoExecutor(folder=folder, cluster="local" if self._local else "slurm")
        self._executor.update_parameters(**parameters(settings))

    def room(self) -> int:
        """Return how many more orders can be submitted; Slurm has no limit."""
        return 1_000_000 if self._at_once is None else self._at_once - len(self._jobs)

    def submit(self, orders: Sequence[RunOrder]) -> Sequence[str]:
        """Submit one job for each order; several at once form an array. Raises PreflightError with the scheduler's message."""
        # jobs inherit the environment, so that no secrets are in the files that submitit writes
        inherited = job_environment({name: value for order in orders for name, value in order.environ.items()})
        bare = [replace(order, environ={}) for order in orders]
        try:
            with _replaced_environ(inherited):
                if len(bare) == 1:
                    jobs = [self._executor.submit(self._execute, bare[0])]
                else:
                    jobs = self._executor.map_array(self._execute, bare)
        except Exception as error:
            reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
            raise PreflightError(f"the scheduler rejected the study: {reason.strip()}") from error
        for job in jobs:
            self._jobs[str(job.job_id)] = job
        return [str(job.job_id) for job in jobs]

    def running_on(self, job: str) -> str | None:
        """Return the node of a running Slurm job."""
        state, node = self._states().get(job, ("", ""))
        return node if state == "RUNNING" else None

    def poll(self, job: str) -> JobEnd | None:
        """Return how a job ended; null while it has not. A job that ended without a result is lost."""
        submitted = self._jobs[job]
        path: Path = submitted.paths.result_pickle
        if not path.exists():
            gone = self._gone(job)
            if gone is None:
                return None
            if not path.exists():
                del self._jobs[job]
                lines = [*last_lines(submitted.paths.stderr, 1), *last_lines(submitted.paths.stdout, 1)]
                said = f": {lines[0].strip()[:LINE_MAX]}" if lines else ""
                return JobEnd(lost=f"job {job} {gone}{said}")
        del self._jobs[job]
        try:
            return JobEnd(reply=submitted.result())
        except Exception as error:  # noqa: BLE001 - whatever the job raised, it becomes one line
            lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("---")]
            line = next((line for line in lines if "Error:" in line), lines[-1] if lines else type(error).__name__)
            return JobEnd(lost=f"job {job} failed: {line.strip()[:LINE_MAX]}")

    def _gone(self, job: str) -> str | None:
        """Return how a job without a result ended; null while a result may still arrive."""
        if self._local:
            return "ended without a result" if self._jobs[job].done() else None
        state, node = self._states().get(job, ("", ""))
        if state in ALIVE:
            self._missing.pop(job, None)
            return None
        # the result may arrive late over the network, and a new job may not be listed yet
        since = self._missing.setdefault(job, time.monotonic())
        if time.monotonic() - since < SETTLE_S:
            return None
        return f"ended as {state.lower()} on {node}" if state else "is no longer known to Slurm"

    def _states(self) -> Mapping[str, tuple[str, str]]:
        """Return the jobs' states; squeue runs at most every few seconds."""
        if not self._local and time.monotonic() - self._queried_s > SQUEUE_INTERVAL_S:
            self._queried_s = time.monotonic()
            self._known = {**self._known, **squeue(self._jobs)}
        return self._known

    def cancel(self) -> None:
        """Send SIGTERM to all jobs, which makes them stop cleanly."""
        for job in self._jobs:
            if self._local:
                with contextlib.suppress(ProcessLookupError, ValueError):
                    # submitit's own cancel would kill the process a second later
                    os.kill(int(job), signal.SIGTERM)
            else:
                subprocess.run(["scancel", job], check=False, capture_output=True, env=_environment())

    def close(self) -> None:
        """Do nothing: there is no connection."""


def parameters(settings: SubmititSettings) -> dict[str, Any]:
    """Return the parameters for submitit: common names unchanged, Slurm's with the prefix `slurm_`."""
    shared: dict[str, Any] = {
        "name": "servebench",
        "nodes": 1,
        "tasks_per_node": 1,
        "timeout_min": settings.timeout_min,
    }
    shared |= _chosen(settings, "cpus_per_task", "gpus_per_node", "mem_gb")
    if settings.name == "submitit_local":
        return shared
    slurm: dict[str, Any] = {"array_parallelism": settings.array_parallelism, "stderr_to_stdout": True}
    slurm |= _chosen(settings, "partition", "qos", "account", "constraint", "exclude", "gres", "comment")
    if settings.additional_parameters:
        slurm["additional_parameters"] = dict(settings.additional_parameters)
    if settings.setup:
        slurm["setup"] = list(settings.setup)
    return shared | {f"slurm_{name}": value for name, value in slurm.items()}


def _chosen(settings: SubmititSettings, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(settings, name)) is not None}
