"""The words of events: what the terminal prints of what happens while a study runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from servebench.contracts import events as e
from servebench.contracts import notices as n
from servebench.util.figures import duration, number, seconds
from servebench.util.short_id import short_id

WAITING = {
    e.Activity.ASKING_SERVER: "requests failed: asking the server whether it still answers",
    e.Activity.CLEANING_LOG: "removing keys from {of}",
    e.Activity.EMPTYING_CACHE: "emptying the prefix cache of {of}",
    e.Activity.FINDING_SERVER: "waiting for the running server to answer a first request",
    e.Activity.FIRST_TOKEN: "waiting for {of} to generate a first token",
    e.Activity.GRADING: "grading {count} answers of {of}",
    e.Activity.LOADING_PROMPTS: "preparing prompts",
    e.Activity.MAKING_PROMPTS: "preparing {count} prompts",
    e.Activity.POINT: "preparing the point",
    e.Activity.PREPARING_ENGINE: "preparing {of}",
    e.Activity.QUALITY: "quality {of} at concurrency {count}",
    e.Activity.SELF_CHECK: "self-check of the client",
    e.Activity.SPANS: "waiting for spans",
    e.Activity.STOPPING_ENGINE: "stopping {of}",
    e.Activity.STOPPING_FIRST_START: "stopping {of} for its warm restart",
    e.Activity.SUMMARY: "writing the summary",
    e.Activity.TIMINGS: "reading request timings of {of}",
    e.Activity.TRACKING: "logging to MLflow",
    e.Activity.WARM_RESTART: "waiting for the warm restart of {of}",
}

FAILED = {
    n.StudyStep.COMPARISON: "the results cannot be compared: {error}",
    n.StudyStep.SELF_CHECK: "no self-check: {error}; the points have no figures of the client's error",
    n.StudyStep.SUMMARY: "no summary of the study for MLflow: {error}",
    n.StudyStep.TIMINGS: "no request timings after the load: {error}",
    n.StudyStep.TUNE_ANSWER: "the answer cannot be written: {error}",
}

VOID = {
    n.Void.AGAIN: "the point is void and is measured again",
    n.Void.ANOTHER_START: "a point is void; another start replaces it",
    n.Void.NO_BUDGET: "a point is void; the budget has no room for another start",
}

JOBS = {n.JobStage.SUBMITTED: "submitted as job {at}", n.JobStage.RUNNING: "running on {at}"}

AWAITED = {
    n.Resource.PLACE: "waiting for another run on this machine to end",
    n.Resource.GPUS: "waiting for {number} of {there_are} GPUs",
    n.Resource.PORT: "waiting for port {number}, which another run uses",
}

ONCE = (n.ScorerLeftOut,)
"""The events that several runs of a study emit alike: their line is printed once."""
DETAILS = (n.EngineReused, n.EngineReady)
"""The events of which the live area shows as much."""
PROBLEMS = (n.JobLost, n.LeftBehind, e.ErrorSaid, n.TrackingFailed)
"""The events that are printed as errors."""


UNEQUAL_SHOWN = 3


def _plan(event: e.PlanReady) -> str:
    runs, points = len(event.labels), event.points
    parts = [f"{runs} run{'s' * (runs != 1)}"]
    parts += [f"{points} point{'s' * (points > 1)}"] if points else []
    takes = f"up to about {duration(event.seconds)}" if event.seconds else "the time is known after the first point"
    lines = [", ".join([*parts, takes])]
    lines += [
        f"no verdict between {one.baseline} and {one.candidate}: unequal settings ({one.settings})"
        for one in event.unequal[:UNEQUAL_SHOWN]
    ]
    more = len(event.unequal) - UNEQUAL_SHOWN
    lines += [f"nor between {more} more pairs of runs"] if more > 0 else []
    return "\n".join(lines)


def _doing(event: e.Doing) -> str:
    return WAITING[event.activity].format_map(vars(event)) + (f" · {event.note}" if event.note else "")


def _ready(event: n.EngineReady) -> str:
    steps = ", ".join(f"{name.replace('_', ' ')} {ended_s:.2f}" for name, ended_s in event.phases)
    what = "warm restart" if event.restarted else "start"
    return f"{event.engine}: {what} took {event.phases[-1][1]:.1f} s ({steps})"


def _kept(event: n.AnswersKept) -> str:
    of = f" of {event.items}" if event.items is not None else ""
    return f"quality {event.scorer} at concurrency {event.concurrency}: {event.answers}{of} answers are already stored"


def _budget(event: n.BudgetSpent) -> str:
    if event.minutes is None:
        return f"study.budget={event.setting}: another round would not fit into it"
    return f"the budget of {round(event.minutes, 1):,g} engine minutes: another round would not fit into it"


def _failed_tracking(event: n.TrackingFailed) -> str:
    return f"{event.error}; no results are lost: 'servebench sync {short_id(event.study)}' sends them later"


def _time(event: n.EngineTime) -> str:
    return f"engines have run for {seconds(event.engines_s)} in all; this command took {seconds(event.command_s)}"


def _progress(event: e.PhaseProgress) -> str:
    left = f" · {seconds(event.left_s)} left" if event.left_s is not None else ""
    wrong = f" · {event.failed} failed" if event.failed else ""
    ttft = f" · TTFT {number(event.ttft_ms)} ms" if event.ttft_ms is not None else ""
    done = f"{event.label} · {event.done}/{event.planned} · {event.in_flight} in flight"
    return f"{done} · {number(event.rate)} tok/s{ttft}{wrong}{left}"


WORDS: Mapping[type[e.Event], str | Callable[[Any], str]] = {
    n.AnswersKept: _kept,
    n.BudgetSpent: _budget,
    n.CandidateProposed: "from what limits {stock}: {note}",
    e.Doing: _doing,
    n.EngineReady: _ready,
    n.EngineReused: "reusing the running {engine} from the previous run",
    n.EngineTime: _time,
    n.FlagRejected: "{engine} rejected its flags: starting it again without {flag}",
    n.JobEnded: "{run}: {status} on {host}",
    n.JobLost: "{run}: {reason}; it is submitted again, and its stored points are kept",
    n.JobChanged: lambda event: f"{event.run}: {JOBS[event.state].format_map(vars(event))}",
    e.JobsLeft: "{running} runs running, {unfinished} not finished",
    n.JobsStopping: "stopping {jobs} jobs",
    n.LeftBehind: lambda event: f"the engine left something behind: {'; '.join(event.what)}",
    n.MachineBusy: "{by}; what they disturb is left out of the results or named in a warning",
    n.NothingToGrade: "quality: {scorer} has nothing to grade in workload={workload}",
    e.PhaseProgress: _progress,
    e.PlanReady: _plan,
    n.PointVoid: lambda event: f"{event.run}: {VOID[event.replaced]}",
    n.PortTaken: "another process took port {taken}: starting {engine} again at port {port}",
    e.ErrorSaid: lambda event: f"{event.run}: {event.text}" if event.run else event.text,
    n.ResourceAwaited: lambda event: AWAITED[event.resource].format_map(vars(event)),
    n.ResultsStored: "results: {folder}",
    e.Said: "{text}",
    n.ScorerLeftOut: "quality: left out: {reason}",
    n.SecretsLeft: "{path} may still hold keys ({reason}); to remove them: servebench recover",
    n.StepFailed: lambda event: FAILED[event.step].format_map(vars(event)),
    n.Tracked: lambda event: (
        f"MLflow experiment '{event.experiment}': mlflow ui --backend-store-uri {redacted_uri(event.uri)}"
    ),
    n.TrackingFailed: _failed_tracking,
    n.TuneStopped: "the tune stops, since {candidate} was not measured",
    n.TuneUnfinished: lambda event: (
        f"to continue:\nservebench resume {short_id(event.study)}{' --here' if event.here else ''}"
    ),
    e.TurnStarted: "{title}",
}
"""The line of each kind of event that has one: a template of its values, or what makes it."""


def line_of(event: e.Event) -> str:
    """Return an event in one line."""
    words = WORDS[type(event)]
    return words.format_map(vars(event)) if isinstance(words, str) else words(event)


def is_problem(event: e.Event) -> bool:
    """Return whether an event is printed as an error."""
    return isinstance(event, PROBLEMS) or (isinstance(event, n.StepFailed) and event.step is not n.StudyStep.TIMINGS)


def is_detail(event: e.Event) -> bool:
    """Return whether the live area shows as much as the line of this event."""
    return isinstance(event, DETAILS) or (isinstance(event, e.Said) and event.detail)


def redacted_uri(uri: str) -> str:
    """Return a tracking URI without user name and password."""
    return re.sub(r"(?<=://)[^/@]+@", "", uri)
