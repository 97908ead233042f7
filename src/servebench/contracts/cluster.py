"""What it takes to do a study's runs on other machines: the launchers' settings, an order for one run, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol

from annotated_types import Ge

from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import STRICT, CountOrZero, PositiveInt


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """What all launchers have. At most `runs_per_machine` runs at once on a machine (null: as the cluster places them);
    a run whose machine was lost is started again up to `retries` times."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT
    name: str
    runs_per_machine: PositiveInt | None = 1
    retries: CountOrZero = 1


@dataclass(frozen=True, kw_only=True)
class SubmititSettings(ClusterSettings):
    """`submitit_slurm` and `submitit_local`: the keys of Hydra's own submitit launcher that a run can use.

    `timeout_min` bounds one run. A null is left to Slurm. `additional_parameters` are words of sbatch, `setup` are shell
    lines before the run. `submitit_folder` must be on a disk that all machines share (null: in the study's folder).
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
class RayInit:
    """Where the cluster is: `auto` is RAY_ADDRESS, else the cluster of this machine."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT
    address: str = "auto"


@dataclass(frozen=True, kw_only=True)
class RayRemote:
    """What one run needs of Ray's resources."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT
    num_cpus: Annotated[float, Ge(0)] = 1.0
    num_gpus: Annotated[float, Ge(0)] | None = None
    resources: Mapping[str, Annotated[float, Ge(0)]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RayWords:
    """The keys of Hydra's own Ray launcher that a run can use."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT
    init: RayInit = RayInit()
    remote: RayRemote = RayRemote()


@dataclass(frozen=True, kw_only=True)
class RaySettings(ClusterSettings):
    """`ray`: each run is a task on a node of a Ray cluster. A null `ray.remote.num_gpus` is `gpu.count` of the run."""

    name: Literal["ray"]
    ray: RayWords = RayWords()


LAUNCHERS: Mapping[str, type[ClusterSettings]] = {
    "submitit_slurm": SubmititSettings,
    "submitit_local": SubmititSettings,
    "ray": RaySettings,
}
"""Settings by the option of `hydra/launcher`. Hydra's own `basic` is this process, one run after another."""


@dataclass(frozen=True, kw_only=True)
class RunOrder:
    """One run of a stored study, to be done on some machine.

    `ticket` is that of the command that ordered it: an order of an older command is not carried out. `environ` holds the
    variables that the config names and that the machine may not have. `gpus` is how many the run needs, of those that
    `cluster_gives_gpus` or else of `visible_gpus` (as CUDA_VISIBLE_DEVICES; null: all).
    `files` are the study's (path in its folder, content), for a machine that does not see them.
    """

    study: str
    run: str
    title: str
    ticket: str
    gpus: int
    runs_per_machine: int | None
    cluster_gives_gpus: bool
    visible_gpus: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunReply:
    """What came of an order. `outcome` is null when it was `refused`; `files` are the run's as a tar archive, when the
    machine does not share the study's folder."""

    outcome: RunOutcome | None
    place: Mapping[str, Any]
    refused: str | None = None
    files: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """A job is over: with an answer, or `lost` with one line that says how."""

    answer: RunReply | None = None
    lost: str | None = None


OrderRunner = Callable[[RunOrder], RunReply]
"""Carries an order out, on whichever machine it is called."""


class Cluster(Protocol):
    """Where orders are carried out."""

    def room(self) -> int:
        """How many more orders can be taken now."""

    def submit(self, orders: Sequence[RunOrder]) -> Sequence[str]:
        """Take orders; the name of the job of each. Raises PreflightError."""

    def running_on(self, job: str) -> str | None:
        """Where a job is at work, once it is; null while it waits or where that cannot be told."""

    def poll(self, job: str) -> JobEnd | None:
        """How a job ended; null while it has not. Told once."""

    def cancel(self) -> None:
        """Ask all jobs to end. They may take a while; `poll` tells when they have."""

    def close(self) -> None:
        """Let the cluster go."""
