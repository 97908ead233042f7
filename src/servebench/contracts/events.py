"""What happens while a study runs, as values. Packages that run something emit events; the terminal and plugins listen.

An event may hold secrets: a listener redacts what it shows or stores. Events that are only a line for the user are in
`contracts.notices`, the conclusions of a study in `analysis.events`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from servebench.contracts.results import Point, QualitySummary, RunOutcome
from servebench.contracts.settings import RunSettings


class Event:
    """Something that has happened, or that is done from now on."""


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Events:
    """Emits events to all listeners, in their order."""

    listeners: tuple[Listener, ...] = ()
    live: bool = False
    """Whether progress is watched as it happens. Only then is it worth reading requests during the load."""

    def __call__(self, event: Event) -> None:
        """Emit an event."""
        for listener in self.listeners:
            listener(event)


Listen = Callable[[], AbstractContextManager[Events]]
"""Opens the listeners of a study, until it ends."""


def unheard() -> AbstractContextManager[Events]:
    """Open no listeners."""
    return nullcontext(Events())


# a study and its runs


@dataclass(frozen=True)
class UnequalRuns:
    """Two runs that cannot be compared, by label, and the settings that differ."""

    baseline: str
    candidate: str
    settings: str


@dataclass(frozen=True)
class PlanReady(Event):
    """What a study will do: the labels of its runs by name, its number of points (None: not known before), and how long that
    takes at most, in seconds (None: not known before). Runs that are `unequal` get no verdict."""

    labels: Mapping[str, str] = field(default_factory=dict)
    points: int | None = None
    seconds: float | None = None
    unequal: Sequence[UnequalRuns] = ()


@dataclass(frozen=True)
class TurnStarted(Event):
    """A run, or a turn of it, starts; `run` is its name in the plan."""

    run: str
    title: str


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """A run is about to start its engine. `folder` is for its files."""

    run_id: str
    settings: RunSettings
    folder: Path


@dataclass(frozen=True, kw_only=True)
class PointFinished(Event):
    """A point was measured and stored."""

    run_id: str
    point: Point
    folder: Path


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """A run is over, its engine stopped or kept for the next run, its files written."""

    outcome: RunOutcome
    settings: RunSettings
    folder: Path


# what is done now


class Activity(Enum):
    """What a study does now, or waits for."""

    ASKING_SERVER = auto()
    CLEANING_LOG = auto()
    EMPTYING_CACHE = auto()
    FINDING_SERVER = auto()
    FIRST_TOKEN = auto()
    GRADING = auto()
    LOADING_PROMPTS = auto()
    MAKING_PROMPTS = auto()
    POINT = auto()
    PREPARING_ENGINE = auto()
    QUALITY = auto()
    SELF_CHECK = auto()
    SPANS = auto()
    STOPPING_ENGINE = auto()
    STOPPING_FIRST_START = auto()
    SUMMARY = auto()
    TIMINGS = auto()
    TRACKING = auto()
    WARM_RESTART = auto()


@dataclass(frozen=True)
class Doing(Event):
    """An activity begins; it lasts until the next event of this kind, or progress. `of` is its engine, file or scorer."""

    activity: Activity
    of: str = ""
    count: int = 0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PhaseProgress(Event):
    """The progress of a phase of load, some ten times a second. `rate` is stream reads per second, close to tokens per second;
    `silent_s` is how long the engine has sent nothing although requests are in flight; `stalled` is how many load workers do
    nothing at present; `ttft_ms` is the median of the requests so far."""

    label: str
    done: int
    planned: int
    failed: int
    in_flight: int
    rate: float
    left_s: float | None
    silent_s: float = 0.0
    stalled: int = 0
    ttft_ms: float | None = None


@dataclass(frozen=True)
class ErrorSaid(Event):
    """An error, in the words of what raised it; `run` is the name of the run that it belongs to, if there are several."""

    text: str
    run: str = ""


@dataclass(frozen=True)
class Said(Event):
    """What an engine, a launcher or a decision says in its own words; a `detail` may be left out where progress is watched."""

    text: str
    detail: bool = False


@dataclass(frozen=True)
class Graded(Event):
    """A benchmark was graded."""

    summary: QualitySummary


@dataclass(frozen=True)
class RunCollected(Event):
    """A run, or a part of it, that a cluster executed is over and on disk here."""

    outcome: RunOutcome
    title: str


@dataclass(frozen=True)
class JobsLeft(Event):
    """How many runs machines of a cluster execute now, and how many have not ended."""

    running: int
    unfinished: int


@dataclass(frozen=True)
class RaceEnded(Event):
    """The race of a tune is over. The runs that end from now on are only closed; the answer follows."""
