"""Types for runs on other machines: cluster settings, the order for one run, and its reply."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from annotated_types import Ge

from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import CountOrZero, PositiveInt, StrictSettings
from servebench.contracts.turns import Turn


@dataclass(frozen=True, kw_only=True)
class ClusterSettings(StrictSettings):
    """Settings that all clusters share. A machine executes at most `runs_per_machine` runs at once (null: the cluster
    decides); a run whose machine is lost is submitted again up to `retries` times."""

    name: str
    runs_per_machine: PositiveInt | None = 1
    retries: CountOrZero = 1


@dataclass(frozen=True, kw_only=True)
class SubmititSettings(ClusterSettings):
    """`submitit_slurm` and `submitit_local`: those keys of Hydra's submitit launcher that apply to a run.

    `timeout_min` limits one run. Slurm decides keys that are null. `additional_parameters` are sbatch options, `setup` are
    shell lines before the run. `submitit_folder` must be on a disk that all machines share (null: the study's folder).
    """

    name: Literal["submitit_slurm", "submitit_local"]
    timeout_min: PositiveInt = 240
    cpus_per_task: PositiveInt | None = None
    gpus_per_node: PositiveInt | None = None
    mem_gb: Annotated[float, Ge(0)] | None = None
    partition: str | None = None
    qos: str | None = None
    account: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    gres: str | None = None
    comment: str | None = None
    array_parallelism: PositiveInt = 256
    additional_parameters: Mapping[str, str | int | bool] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    submitit_folder: str | None = None


@dataclass(frozen=True, kw_only=True)
class RayInit(StrictSettings):
    """Address of the Ray cluster; `auto` uses RAY_ADDRESS, else the cluster on this machine."""

    address: str = "auto"


@dataclass(frozen=True, kw_only=True)
class RayRemote(StrictSettings):
    """Ray resources that one run needs."""

    num_cpus: Annotated[float, Ge(0)] = 1.0
    num_gpus: Annotated[float, Ge(0)] | None = None
    resources: Mapping[str, Annotated[float, Ge(0)]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RayWords(StrictSettings):
    """Those keys of Hydra's Ray launcher that apply to a run."""

    init: RayInit = RayInit()
    remote: RayRemote = RayRemote()


@dataclass(frozen=True, kw_only=True)
class RaySettings(ClusterSettings):
    """`ray`: each run is a task on a node of a Ray cluster. A null `ray.remote.num_gpus` means the run's `gpu.count`."""

    name: Literal["ray"]
    ray: RayWords = RayWords()


LAUNCHERS: Mapping[str, type[ClusterSettings]] = {
    "submitit_slurm": SubmititSettings,
    "submitit_local": SubmititSettings,
    "ray": RaySettings,
}
"""Settings by the value of `hydra/launcher`. Hydra's `basic` runs in this process, one run after another."""


@dataclass(frozen=True, kw_only=True)
class RunOrder:
    """An order to execute `turns` of one run of a stored study on some machine; without any, the whole run.

    `overrides` and `config` are those of its job, without secrets as in a plan: what its sender has checked, and not what
    lies in the study's folder by then. `ticket` identifies the command that gave the order: orders of earlier commands are
    refused. `environ` holds variables that the config refers to and the machine may lack. `gpus` is the number of GPUs that
    the run needs: assigned by the cluster if `cluster_gives_gpus`, else leased from `visible_gpus` (format of
    CUDA_VISIBLE_DEVICES; null: all).
    `files` are files of the study (path in its folder, content) for a machine that does not share its disk.
    """

    study: str
    run: str
    title: str
    ticket: str
    overrides: tuple[str, ...]
    config: Mapping[str, Any]
    gpus: int
    runs_per_machine: int | None
    cluster_gives_gpus: bool
    visible_gpus: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunReply:
    """Reply to an order. `outcome` is null if it was `refused` for that reason. `files` is a tar archive of the
    run's folder if the machine does not share the study's disk, `prompts` the study's prompts that the run has sized."""

    outcome: RunOutcome | None
    place: Mapping[str, Any]
    refused: str | None = None
    files: bytes | None = None
    prompts: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """The end of a job: its reply, or in `lost` one line that says why there is none."""

    reply: RunReply | None = None
    lost: str | None = None


OrderRunner = Callable[[RunOrder], RunReply]
"""Executes an order on the machine on which it is called."""


class Cluster(Protocol):
    """Executes orders as jobs on other machines."""

    def room(self) -> int:
        """Return how many more orders can be submitted now."""

    def submit(self, orders: Sequence[RunOrder]) -> Sequence[str]:
        """Submit orders and return the job name of each. Raises PreflightError."""

    def running_on(self, job: str) -> str | None:
        """Return the machine that executes a job; null while it waits, or if unknown."""

    def poll(self, job: str) -> JobEnd | None:
        """Return how a job ended; null while it has not. A job must not be polled again after its end."""

    def cancel(self) -> None:
        """Ask all jobs to stop. They may need time; `poll` returns their end."""

    def close(self) -> None:
        """Disconnect from the cluster."""
