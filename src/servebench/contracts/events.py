"""What happens while a study runs, as values. Packages that run something emit events; the terminal and plugins listen.

An event may hold secrets: a listener redacts what it shows or stores. The conclusions of a study are events in
`analysis.events`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, dataclass_transform

from servebench.contracts.results import Point, QualitySummary, RunOutcome
from servebench.contracts.settings import RunSettings


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Event:
    """Something that has happened, or that is done from now on. Each kind of event is a frozen dataclass."""

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        """Make the subclass a dataclass."""
        dataclass(frozen=True, kw_only=kw_only)(cls)


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


@dataclass(frozen=True)
class UnequalRuns:
    """Two runs whose difference is likely at most, by label, with the settings that differ and what to do about these."""

    baseline: str
    candidate: str
    settings: str


@dataclass(frozen=True, kw_only=True)
class StartsChosen:
    """What `study.starts=auto` has chosen: starts until there is a verdict, for at most `budget_s` of engine time or at most
    `most` of each; else one of each, because two exceed the `limit`, or another one does not pay.

    `each_s` is how long one start of each takes (None: unknown). `alone`: the time suffices for points one after another only,
    not for slices. The `engine` has a start of minutes (`start_s`, with `load_s` of load), which was weighed against longer
    points: it `pays` or not."""

    budget_s: float | None = None
    most: int | None = None
    each_s: float | None = None
    limit: str = ""
    alone: bool = False
    engine: str = ""
    start_s: float = 0.0
    load_s: float | None = None
    pays: bool = True


@dataclass(frozen=True, kw_only=True)
class StudyTime:
    """How long a study takes: each run has so many `starts`, which take `start_s` and have `levels` (0: a search) in `load_s`
    (None: unknown), in seconds and as means over the runs. `earlier`: as earlier runs took."""

    starts: int
    start_s: float
    load_s: float | None
    levels: float
    earlier: bool


class PlanReady(Event):
    """What a study will do: the labels of its runs by name, its number of points (None: not known before), how long that takes at
    most, in seconds (None: not known before), and of what that time consists (`each`; None: of a part of a study). What runs
    differ by that are `unequal` is likely at most. `starts` is what was chosen where the number of starts was left open.
    `by_machine`: what was left to the machine and what it chose, as overrides, by the names of its `gpus`. `notes` are further
    lines. `cost_usd` is what the GPUs cost in that time, where each has a price. `imitated` engines are emulated or simulated,
    the latter in virtual time."""

    labels: Mapping[str, str] = field(default_factory=dict)
    points: int | None = None
    seconds: float | None = None
    each: StudyTime | None = None
    unequal: Sequence[UnequalRuns] = ()
    starts: StartsChosen | None = None
    gpus: Sequence[str] = ()
    by_machine: Sequence[str] = ()
    cost_usd: float | None = None
    notes: Sequence[str] = ()
    imitated: str = ""


class TurnStarted(Event):
    """A run, or a turn of it, starts; `run` is its name in the plan."""

    run: str
    title: str


class RunStarted(Event, kw_only=True):
    """A run is about to start its engine. `folder` is for its files."""

    run_id: str
    settings: RunSettings
    folder: Path


class PointFinished(Event, kw_only=True):
    """A point was measured and stored."""

    run_id: str
    point: Point
    folder: Path


class RunFinished(Event, kw_only=True):
    """A run is over, its engine stopped or kept for the next run, its files written."""

    outcome: RunOutcome
    settings: RunSettings
    folder: Path


Activity = Literal[
    "asking_server", "cleaning_log", "emptying_cache", "finding_server", "first_token", "grading",
    "loading_prompts", "making_prompts", "point", "preparing_engine", "quality", "self_check", "spans",
    "stopping_engine", "summary", "timings", "tracking",
    "waiting_quiet",
]  # fmt: skip
"""What a study does now, or waits for."""


class Doing(Event):
    """An activity begins; it lasts until the next event of this kind, or progress. `of` is its engine, file or scorer."""

    activity: Activity
    of: str = ""
    count: int = 0
    note: str = ""


class PhaseProgress(Event, kw_only=True):
    """The progress of a phase of load, some ten times a second. `rate` is stream reads per second, close to tokens per second;
    `silent_s` is how long the engine has sent nothing although requests are in flight; `stalled` is how many load workers do
    nothing at present; `ttft_ms` is the median of the requests so far; `run` is the name of the run in the plan."""

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
    run: str = ""


class ErrorSaid(Event):
    """An error, in the words of what raised it; `run` is the name of the run that it belongs to, if there are several."""

    text: str
    run: str = ""


class Said(Event):
    """What an engine, a launcher or a decision says in its own words; a `detail` may be left out where progress is watched."""

    text: str
    detail: bool = False


NoticeKind = Literal[
    "answers_kept", "budget_spent", "candidate_proposed", "comparison_failed", "engine_reused", "engine_time",
    "flag_rejected", "gpus_awaited", "job_ended", "job_lost", "job_running", "job_submitted", "jobs_stopping", "left_behind",
    "others_take_cpu", "minutes_spent", "noise_learned", "noise_left", "nothing_to_grade", "place_awaited", "point_again",
    "point_left", "point_replaced", "point_void", "port_awaited", "port_taken", "quiet_awaited", "scorer_left_out",
    "secrets_left", "self_check_failed", "summary_failed", "timings_failed", "tracking_failed", "tune_answer_failed",
    "tune_stopped", "tune_unfinished",
]  # fmt: skip
"""What is shown in one line and changes nothing else."""


class Notice(Event):
    """Something that is only shown: `of` what (an engine, run, candidate, scorer or file), a `note` on it, such as the reason,
    and `at` which machine, port, workload or time."""

    kind: NoticeKind
    of: str = ""
    note: str = ""
    at: str = ""


class Graded(Event):
    """A benchmark was graded."""

    summary: QualitySummary


class RunCollected(Event):
    """A run, or a part of it, that a cluster executed is over and on disk here."""

    outcome: RunOutcome
    title: str


class JobsLeft(Event):
    """How many runs machines of a cluster execute now, and how many have not ended."""

    running: int
    unfinished: int


class RaceEnded(Event):
    """The race of a tune is over. The runs that end from now on are only closed; the answer follows."""


class ResultsStored(Event):
    """A study has ended, and its results are in this folder."""

    folder: Path


class Tracked(Event):
    """The results of a study are in an MLflow experiment."""

    uri: str
    experiment: str


class EngineReady(Event):
    """An engine has generated its first token: the phases of its start, each with the seconds at which it ended."""

    engine: str
    phases: Sequence[tuple[str, float]]


class AtOnce(Event):
    """The engines of these runs, by label, are alive at once, and the load goes from one to the other slice by slice."""

    runs: Sequence[str] = ()


class OneAtATime(Event):
    """Engines that were to be alive at once are measured one after another, or in smaller groups, for a reason; at so many
    `users` only, if they are given."""

    reason: str
    users: int | None = None


class TunePlanned(Event):
    """What a verdict of a tune takes at least, as predicted: `starts` of an engine, and the seconds of a start and of its block
    of load (None where only requests end it). `budget_s` is None for a budget of starts; `cost_usd` is what the GPUs cost in it,
    where they have a price."""

    starts: int
    start_s: float
    load_s: float | None
    budget_s: float | None
    cost_usd: float | None = None

    @property
    def least_s(self) -> float:
        """The engine time, without the load where that is unknown."""
        return self.starts * (self.start_s + (self.load_s or 0.0))
