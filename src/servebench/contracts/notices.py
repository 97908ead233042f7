"""Events of which a listener prints one line. `contracts.events` has those that mean more to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from servebench.contracts.events import Event

# a study and its results


@dataclass(frozen=True)
class MachineBusy(Event):
    """Other processes use the machine on which points are measured."""

    by: str


@dataclass(frozen=True)
class ResultsStored(Event):
    """A study has ended, and its results are in this folder."""

    folder: Path


@dataclass(frozen=True)
class Tracked(Event):
    """The results of a study are in an MLflow experiment."""

    uri: str
    experiment: str


@dataclass(frozen=True)
class TrackingFailed(Event):
    """The tracking server does not take the results of a study."""

    study: str
    error: str


class StudyStep(Enum):
    """A step of a study that may fail without ending it."""

    COMPARISON = auto()
    SELF_CHECK = auto()
    SUMMARY = auto()
    TIMINGS = auto()
    TUNE_ANSWER = auto()


@dataclass(frozen=True)
class StepFailed(Event):
    """A step has failed, and the study goes on without its result."""

    step: StudyStep
    error: str


# engines


@dataclass(frozen=True)
class EngineReused(Event):
    """A run uses the engine of the run before it."""

    engine: str


@dataclass(frozen=True)
class EngineReady(Event):
    """An engine has generated its first token: the phases of its start, each with the seconds at which it ended."""

    engine: str
    phases: Sequence[tuple[str, float]]
    restarted: bool = False


@dataclass(frozen=True)
class FlagRejected(Event):
    """An engine has rejected its flags and starts again without this one."""

    engine: str
    flag: str


@dataclass(frozen=True)
class PortTaken(Event):
    """Another process has taken the port of an engine, which starts again at another one."""

    engine: str
    taken: int
    port: int


@dataclass(frozen=True)
class LeftBehind(Event):
    """What a stopped engine has left: processes, files or ports."""

    what: Sequence[str]


@dataclass(frozen=True)
class SecretsLeft(Event):
    """A log may still hold secrets, and why."""

    path: Path
    reason: str


# quality


@dataclass(frozen=True)
class ScorerLeftOut(Event):
    """A run has no answers of a scorer, and why."""

    reason: str


@dataclass(frozen=True)
class NothingToGrade(Event):
    """A workload has no answers that this scorer can grade."""

    scorer: str
    workload: str


@dataclass(frozen=True)
class AnswersKept(Event):
    """Answers of an earlier attempt are stored already; `items` is how many questions there are, if that is known."""

    scorer: str
    concurrency: int
    answers: int
    items: int | None = None


# a cluster


class JobState(Enum):
    """What becomes of the job of a run on a cluster."""

    SUBMITTED = auto()
    RUNNING = auto()


@dataclass(frozen=True)
class JobChanged(Event):
    """The job of a run has another state. `at` is the job's name when it was submitted, then its machine."""

    run: str
    state: JobState
    at: str


@dataclass(frozen=True)
class JobLost(Event):
    """The job of a run was lost with its machine and is submitted again."""

    run: str
    reason: str


@dataclass(frozen=True)
class JobEnded(Event):
    """The results of a run have arrived from a machine of the cluster."""

    run: str
    status: str
    host: str


@dataclass(frozen=True)
class JobsStopping(Event):
    """The jobs of a study are being cancelled."""

    jobs: int


class Resource(Enum):
    """What the runs of a machine share."""

    PLACE = auto()
    GPUS = auto()
    PORT = auto()


@dataclass(frozen=True)
class ResourceAwaited(Event):
    """A job waits until another run on its machine ends: for a place, so many GPUs of those that there are, or this port."""

    resource: Resource
    number: int = 0
    there_are: int = 0


# rounds of starts, and tunes


class Void(Enum):
    """What replaces a void point."""

    AGAIN = auto()
    ANOTHER_START = auto()
    NO_BUDGET = auto()


@dataclass(frozen=True)
class PointVoid(Event):
    """A point counts for nothing."""

    run: str
    replaced: Void


@dataclass(frozen=True)
class BudgetSpent(Event):
    """Another round of starts would not fit into the budget: that of the study's settings, or of these engine minutes."""

    setting: str | None = None
    minutes: float | None = None


@dataclass(frozen=True)
class CandidateProposed(Event):
    """What limits the stock settings of an engine has proposed a candidate."""

    stock: str
    note: str


@dataclass(frozen=True)
class TuneStopped(Event):
    """A tune cannot go on without this candidate, which was not measured."""

    candidate: str


@dataclass(frozen=True)
class EngineTime(Event):
    """How long the engines of a tune have run on a cluster in all, and how long the command took, in seconds."""

    engines_s: float
    command_s: float


@dataclass(frozen=True)
class TuneUnfinished(Event):
    """A tune has ended before its race; `here`: its measurements were those of this machine instead of its cluster."""

    study: str
    here: bool
