"""Orders as jobs of submitit: on Slurm, or as processes of this machine with the same machinery."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from servebench.contracts.cluster import JobEnd, OrderRunner, RunOrder, SubmititSettings
from servebench.util.errors import PreflightError

NEEDED = "hydra/launcher={name} needs submitit: pip install 'servebench-suite[slurm]'"
ALIVE = frozenset(
    {
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "COMPLETING",
        "CONFIGURING",
        "RESIZING",
        "REQUEUED",
        "REQUEUE_HOLD",
        "STAGE_OUT",
    }
    | {"SIGNALING", "STOPPED", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
"""States of squeue (its JOB STATE CODES) from which a job may still come to an end of its own."""
ASK_S = 3.0
SETTLE_S = 15.0


@dataclass(frozen=True)
class JobState:
    """What Slurm says of a job: its state in full, and its node."""

    name: str
    node: str


def squeue(jobs: Iterable[str]) -> dict[str, JobState]:
    """What squeue says of jobs, by their names (`12` or `12_3`); empty when it does not answer.

    Not sacct, which only clusters with an accounting database have.
    """
    numbers = sorted({job.split("_")[0] for job in jobs})
    if not numbers:
        return {}
    command = ["squeue", "--noheader", "--states=all", "--array", "--format=%i|%T|%N", f"--jobs={','.join(numbers)}"]
    try:
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_squeue(answer.stdout)


def parse_squeue(text: str) -> dict[str, JobState]:
    """States by job, of lines such as `12_3|RUNNING|node1`."""
    found = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) == 3:
            found[fields[0]] = JobState(fields[1], fields[2])
    return found


def _last_line(*logs: Path) -> str:
    """What a job printed last, for a message."""
    for log in logs:
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
            if lines:
                return f": {lines[-1][:300]}"
    return ""


def faults(settings: SubmititSettings) -> list[str]:
    """What makes this launcher impossible here."""
    found = []
    if importlib.util.find_spec("submitit") is None:
        found.append(NEEDED.format(name=settings.name))
    if settings.name == "submitit_slurm" and shutil.which("sbatch") is None:
        found.append("hydra/launcher=submitit_slurm needs sbatch, and there is none on PATH: call from a login node")
    return found


class SubmititCluster:
    """Jobs of submitit."""

    def __init__(self, settings: SubmititSettings, folder: Path, carry: OrderRunner) -> None:
        """`folder` is where submitit keeps what it sends and what the jobs print; `carry` is done in the job."""
        import submitit

        self._carry = carry
        self._local = settings.name == "submitit_local"
        self._at_once = settings.runs_per_machine if self._local else None
        self._jobs: dict[str, Any] = {}
        self._known: Mapping[str, JobState] = {}
        self._missing: dict[str, float] = {}
        self._asked = -ASK_S
        folder.mkdir(parents=True, exist_ok=True)
        self._executor = submitit.AutoExecutor(folder=folder, cluster="local" if self._local else "slurm")
        self._executor.update_parameters(**parameters(settings))

    def room(self) -> int:
        """How many more orders can be taken: of Slurm, any number."""
        return 1_000_000 if self._at_once is None else self._at_once - len(self._jobs)

    def submit(self, orders: Sequence[RunOrder]) -> Sequence[str]:
        """One job an order; several at once are one array. Raises PreflightError with what the scheduler says."""
        for order in orders:
            # a job inherits the environment; what submitit writes to the disk holds no secrets then
            os.environ.update(order.environ)
        bare = [replace(order, environ={}) for order in orders]
        try:
            if len(bare) == 1:
                jobs = [self._executor.submit(self._carry, bare[0])]
            else:
                jobs = self._executor.map_array(self._carry, bare)
        except Exception as error:
            reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
            raise PreflightError(f"the scheduler does not take the study: {reason.strip()}") from error
        for job in jobs:
            self._jobs[str(job.job_id)] = job
        return [str(job.job_id) for job in jobs]

    def running_on(self, job: str) -> str | None:
        """The node, where Slurm tells."""
        state = self._states().get(job)
        return state.node if state is not None and state.name == "RUNNING" else None

    def poll(self, job: str) -> JobEnd | None:
        """Whether it ended. A job of which the scheduler says so and that left no result was lost."""
        found = self._jobs[job]
        path: Path = found.paths.result_pickle
        if not path.exists():
            gone = self._gone(job)
            if gone is None:
                return None
            if not path.exists():
                del self._jobs[job]
                return JobEnd(lost=f"job {job} {gone}{_last_line(found.paths.stderr, found.paths.stdout)}")
        del self._jobs[job]
        try:
            return JobEnd(answer=found.result())
        except Exception as error:  # noqa: BLE001 - whatever was raised in the job, it is told in one line
            told = [line for line in str(error).splitlines() if line.strip() and not line.startswith("---")]
            return JobEnd(
                lost=f"job {job} failed: {next((line for line in told if 'Error:' in line), told[-1]).strip()}"
            )

    def _gone(self, job: str) -> str | None:
        """How a job ended that left no result; null while it may still leave one."""
        if self._local:
            return "ended without a result" if self._jobs[job].done() else None
        state = self._states().get(job)
        if state is not None and state.name in ALIVE:
            self._missing.pop(job, None)
            return None
        # the file may come late over the network, and a job that was just ordered may not be listed yet
        since = self._missing.setdefault(job, time.monotonic())
        if time.monotonic() - since < SETTLE_S:
            return None
        return (
            f"ended as {state.name.lower()} on {state.node}" if state is not None else "is not known to Slurm any more"
        )

    def _states(self) -> Mapping[str, JobState]:
        """What squeue says of our jobs: fresh, but asked for at most every few seconds."""
        if not self._local and time.monotonic() - self._asked > ASK_S:
            self._asked = time.monotonic()
            self._known = {**self._known, **squeue(self._jobs)}
        return self._known

    def cancel(self) -> None:
        """Ask all to end with SIGTERM, which they take as a wish to stop in order."""
        for job in self._jobs:
            if self._local:
                with contextlib.suppress(ProcessLookupError, ValueError):
                    # submitit would kill it a second later
                    os.kill(int(job), signal.SIGTERM)
            else:
                subprocess.run(["scancel", job], check=False, capture_output=True)

    def close(self) -> None:
        """Nothing is held."""


def parameters(settings: SubmititSettings) -> dict[str, Any]:
    """What submitit is told: shared names as they are, Slurm's own with its prefix."""
    shared: dict[str, Any] = {
        "name": "servebench",
        "nodes": 1,
        "tasks_per_node": 1,
        "timeout_min": settings.timeout_min,
    }
    for name in ("cpus_per_task", "gpus_per_node", "mem_gb"):
        if (value := getattr(settings, name)) is not None:
            shared[name] = value
    if settings.name == "submitit_local":
        return shared
    slurm: dict[str, Any] = {"array_parallelism": settings.array_parallelism, "stderr_to_stdout": True}
    for name in ("partition", "qos", "account", "constraint", "exclude", "gres", "comment"):
        if (value := getattr(settings, name)) is not None:
            slurm[name] = value
    if settings.additional_parameters:
        slurm["additional_parameters"] = dict(settings.additional_parameters)
    if settings.setup:
        slurm["setup"] = list(settings.setup)
    return shared | {f"slurm_{name}": value for name, value in slurm.items()}
