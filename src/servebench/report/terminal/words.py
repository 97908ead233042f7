"""The words of events: what the terminal prints of what happens while a study runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from servebench.contracts import events as e
from servebench.contracts.level import Level
from servebench.report.files import from_here
from servebench.report.wording.budget import least_text, time_lines
from servebench.util.figures import number, seconds
from servebench.util.short_id import short_id

WAITING = {
    "asking_server": "requests failed: asking the server whether it still answers",
    "cleaning_log": "removing keys from {of}",
    "emptying_cache": "emptying the prefix cache of {of}",
    "finding_server": "waiting for the running server to answer a first request",
    "first_token": "waiting for {of} to generate a first token",
    "grading": "grading {count} answers of {of}",
    "loading_prompts": "preparing prompts",
    "making_prompts": "preparing {count} prompts",
    "point": "preparing the point",
    "preparing_engine": "preparing {of}",
    "quality": "quality {of} at concurrency {count}",
    "self_check": "self-check of the client",
    "spans": "waiting for spans",
    "stopping_engine": "stopping {of}",
    "summary": "writing the summary",
    "timings": "reading request timings of {of}",
    "tracking": "logging to MLflow",
    "waiting_quiet": "waiting for a quiet machine",
}

FAILED = {
    "comparison": "the results cannot be compared: {error}",
    "self_check": "no self-check: {error}; the points have no figures of the client's error",
    "summary": "no summary of the study for MLflow: {error}",
    "timings": "no request timings after the load: {error}",
    "tune_answer": "the answer cannot be written: {error}",
}

VOID = {
    "again": "the point is void and is measured again",
    "another_start": "a point is void; another start replaces it",
    "no_budget": "a point is void; the budget has no room for another start",
}

JOBS = {"submitted": "submitted as job {at}", "running": "running on {at}"}

AWAITED = {
    "place": "waiting for another run on this machine to end",
    "gpus": "waiting for {number} of {there_are} GPUs",
    "port": "waiting for port {number}, which another run uses",
}

DETAILS = (e.EngineReused, e.EngineReady)
"""The events of which the live area shows as much."""
PROBLEMS = (e.JobLost, e.LeftBehind, e.ErrorSaid, e.TrackingFailed)
"""The events that are printed as errors."""


UNEQUAL_SHOWN = 3


def _plan(event: e.PlanReady) -> str:
    lines = [f"{' and '.join(event.gpus) or 'for a GPU'}: {' '.join(event.by_machine)}"] if event.by_machine else []
    lines += time_lines(event)
    lines += event.notes
    lines += [
        f"what {one.candidate} and {one.baseline} differ by: {one.settings}" for one in event.unequal[:UNEQUAL_SHOWN]
    ]
    more = len(event.unequal) - UNEQUAL_SHOWN
    lines += [f"likely at most: {more} more pairs of runs"] if more > 0 else []
    return "\n".join(lines)


def _doing(event: e.Doing) -> str:
    return WAITING[event.activity].format_map(vars(event)) + (f" · {event.note}" if event.note else "")


def _ready(event: e.EngineReady) -> str:
    steps = ", ".join(f"{name.replace('_', ' ')} {ended_s:.2f}" for name, ended_s in event.phases)
    return f"{event.engine}: start took {event.phases[-1][1]:.1f} s ({steps})"


def _kept(event: e.AnswersKept) -> str:
    of = f" of {event.items}" if event.items is not None else ""
    return f"quality {event.scorer} at concurrency {event.concurrency}: {event.answers}{of} answers are already stored"


def _budget(event: e.BudgetSpent) -> str:
    if event.minutes is None:
        return f"study.budget={event.setting}: another round would not fit into it"
    return f"the budget of {round(event.minutes, 1):,g} engine minutes: another round would not fit into it"


def _progress(event: e.PhaseProgress) -> str:
    left = f" · {seconds(event.left_s)} left" if event.left_s is not None else ""
    wrong = f" · {event.failed} failed" if event.failed else ""
    ttft = f" · TTFT {number(event.ttft_ms)} ms" if event.ttft_ms is not None else ""
    done = f"{event.label} · {event.done}/{event.planned} · {event.in_flight} in flight"
    return f"{done} · {number(event.rate)} tok/s{ttft}{wrong}{left}"


WORDS: Mapping[type[e.Event], str | Callable[[Any], str]] = {
    e.AnswersKept: _kept,
    e.AtOnce: lambda event: (
        f"{' and '.join(event.runs)} run at the same time where the machine allows it; the load goes from one to the other every "
        "few seconds (study.slices)"
    ),
    e.BudgetSpent: _budget,
    e.CandidateProposed: "from what limits {stock}: {note}",
    e.Doing: _doing,
    e.EngineReady: _ready,
    e.EngineReused: "reusing the running {engine} from the previous run",
    e.EngineTime: lambda event: (
        f"engines have run for {seconds(event.engines_s)} in all; this command took {seconds(event.command_s)}"
    ),
    e.FlagRejected: "{engine} rejected its flags: starting it again without {flag}",
    e.JobEnded: "{run}: {status} on {host}",
    e.JobLost: "{run}: {reason}; it is submitted again, and its stored points are kept",
    e.JobChanged: lambda event: f"{event.run}: {JOBS[event.state].format_map(vars(event))}",
    e.JobsLeft: "{running} runs running, {unfinished} not finished",
    e.JobsStopping: "stopping {jobs} jobs",
    e.LeftBehind: lambda event: f"the engine left something behind: {'; '.join(event.what)}",
    e.MachineBusy: "{by}; what they disturb is left out of the results or named in a warning",
    e.OneAtATime: lambda event: (
        "the engines do not all run at the same time"
        f"{'' if event.users is None else f' at {Level(event.users).words}'}: {event.reason}"
    ),
    e.NothingToGrade: "quality: {scorer} has nothing to grade in workload={workload}",
    e.PhaseProgress: _progress,
    e.PlanReady: _plan,
    e.PointVoid: lambda event: f"{event.run}: {f'{event.note}: ' * bool(event.note)}{VOID[event.replaced]}",
    e.PortTaken: "another process took port {taken}: starting {engine} again at port {port}",
    e.ErrorSaid: lambda event: f"{event.run}: {event.text}" if event.run else event.text,
    e.ResourceAwaited: lambda event: AWAITED[event.resource].format_map(vars(event)),
    e.ResultsStored: lambda event: f"results: {from_here(str(event.folder))}",
    e.Said: "{text}",
    e.ScorerLeftOut: "quality: left out: {reason}",
    e.SecretsLeft: "{path} may still hold keys ({reason}); to remove them: servebench recover",
    e.StepFailed: lambda event: FAILED[event.step].format_map(vars(event)),
    e.Tracked: lambda event: (
        f"MLflow experiment '{event.experiment}': mlflow ui --backend-store-uri {from_here(redacted_uri(event.uri))}"
    ),
    e.TrackingFailed: lambda event: (
        f"{event.error}; no results are lost: 'servebench sync {short_id(event.study)}' sends them later"
    ),
    e.TunePlanned: least_text,
    e.TuneStopped: "the tune stops, since {candidate} was not measured",
    e.TuneUnfinished: lambda event: (
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
    return isinstance(event, PROBLEMS) or (isinstance(event, e.StepFailed) and event.step != "timings")


def once(event: e.Event, text: str) -> str:
    """Return the key of a line that is printed once in a study, however often its event is emitted; empty: each time."""
    # what an idle engine uses differs by some hundredths of a core in each round
    if isinstance(event, e.OneAtATime):
        return f"at_once {event.users}"
    return text if isinstance(event, e.ScorerLeftOut) else ""


def is_detail(event: e.Event) -> bool:
    """Return whether the live area shows as much as the line of this event."""
    return isinstance(event, DETAILS) or (isinstance(event, e.Said) and event.detail)


def redacted_uri(uri: str) -> str:
    """Return a tracking URI without user name and password."""
    return re.sub(r"(?<=://)[^/@]+@", "", uri)
