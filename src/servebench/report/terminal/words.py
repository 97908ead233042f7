"""The words of events: what the terminal prints of what happens while a study runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from servebench.contracts import events as e
from servebench.contracts.level import Level
from servebench.report.wording.budget import least_text, time_lines
from servebench.store.files import from_here
from servebench.util.figures import number, seconds

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

NOTICES = {
    "answers_kept": "quality {of} at concurrency {at}: {note} answers are already stored",
    "budget_spent": "study.budget={note}: another round would not fit into it",
    "candidate_proposed": "from what limits {of}: {note}",
    "comparison_failed": "the results cannot be compared: {note}",
    "engine_reused": "reusing the running {of} from the previous run",
    "engine_time": "engines have run for {note} in all; this command took {at}",
    "flag_rejected": "{of} rejected its flags: starting it again without {note}",
    "gpus_awaited": "waiting for {note} of {at} GPUs",
    "job_ended": "{of}: {note} on {at}",
    "job_lost": "{of}: {note}; it is submitted again, and its stored points are kept",
    "job_running": "{of}: running on {at}",
    "job_submitted": "{of}: submitted as job {at}",
    "jobs_stopping": "stopping {note} jobs",
    "left_behind": "the engine left something behind: {note}",
    "others_take_cpu": "this machine is busy: others take {note}; what they disturb is left out of the results or named in a "
    "warning",
    "minutes_spent": "the budget of {note} engine minutes: another round would not fit into it",
    "noise_learned": "{of}: intervals of this engine on this machine now rest on how much it wandered in this point",
    "noise_left": "{of}: later intervals do not rest on this long point: {note}",
    "nothing_to_grade": "quality: {of} has nothing to grade in workload={at}",
    "place_awaited": "waiting for another run on this machine to end",
    "point_again": "{of}: {note}: the point is void and is measured again",
    "point_left": "{of}: a point is void; the budget has no room for another start",
    "point_replaced": "{of}: a point is void; another start replaces it",
    "point_void": "{of}: the point is void and is measured again",
    "port_awaited": "waiting for port {at}, which another run uses",
    "port_taken": "another process took port {note}: starting {of} again at port {at}",
    "quiet_awaited": "waiting up to {at} for a quiet machine: others take {note}",
    "scorer_left_out": "quality: left out: {note}",
    "secrets_left": "{of} may still hold keys ({note}); to remove them: servebench recover",
    "self_check_failed": "no self-check: {note}; the points have no figures of the client's error",
    "summary_failed": "no summary of the study for MLflow: {note}",
    "timings_failed": "no request timings after the load: {note}",
    "tracking_failed": "{note}; no results are lost: 'servebench sync {of}' sends them later",
    "tune_answer_failed": "the answer cannot be written: {note}",
    "tune_stopped": "the tune stops, since {of} was not measured",
    "tune_unfinished": "to continue:\nservebench resume {of}",
}

PROBLEMS = (
    *("comparison_failed", "job_lost", "left_behind", "self_check_failed", "summary_failed", "tracking_failed"),
    "tune_answer_failed",
)
"""The notices that are printed as errors."""
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


def _progress(event: e.PhaseProgress) -> str:
    left = f" · {seconds(event.left_s)} left" if event.left_s is not None else ""
    wrong = f" · {event.failed} failed" if event.failed else ""
    ttft = f" · TTFT {number(event.ttft_ms)} ms" if event.ttft_ms is not None else ""
    done = f"{event.label} · {event.done}/{event.planned} · {event.in_flight} in flight"
    return f"{done} · {number(event.rate)} tok/s{ttft}{wrong}{left}"


WORDS: Mapping[type[e.Event], str | Callable[[Any], str]] = {
    e.AtOnce: lambda event: (
        f"{' and '.join(event.runs)} run at the same time where the machine allows it; the load goes from one to the other every "
        "few seconds (study.slices)"
    ),
    e.Doing: _doing,
    e.EngineReady: _ready,
    e.JobsLeft: "{running} runs running, {unfinished} not finished",
    e.Notice: lambda event: NOTICES[event.kind].format_map(vars(event)),
    e.OneAtATime: lambda event: (
        "the engines do not all run at the same time"
        f"{'' if event.users is None else f' at {Level(event.users).words}'}: {event.reason}"
    ),
    e.PhaseProgress: _progress,
    e.PlanReady: _plan,
    e.ErrorSaid: lambda event: f"{event.run}: {event.text}" if event.run else event.text,
    e.ResultsStored: lambda event: f"results: {from_here(str(event.folder))}",
    e.Said: "{text}",
    e.Tracked: lambda event: (
        f"MLflow experiment '{event.experiment}': mlflow ui --backend-store-uri {from_here(redacted_uri(event.uri))}"
    ),
    e.TunePlanned: least_text,
    e.TurnStarted: "{title}",
}
"""The line of each kind of event that has one: a template of its values, or what makes it."""


def line_of(event: e.Event) -> str:
    """Return an event in one line."""
    words = WORDS[type(event)]
    return words.format_map(vars(event)) if isinstance(words, str) else words(event)


def is_problem(event: e.Event) -> bool:
    """Return whether an event is printed as an error."""
    return isinstance(event, e.ErrorSaid) or (isinstance(event, e.Notice) and event.kind in PROBLEMS)


def once(event: e.Event, text: str) -> str:
    """Return the key of a line that is printed once in a study, however often its event is emitted; empty: each time."""
    # what an idle engine uses differs by some hundredths of a core in each round
    if isinstance(event, e.OneAtATime):
        return f"at_once {event.users}"
    return text if isinstance(event, e.Notice) and event.kind == "scorer_left_out" else ""


def is_detail(event: e.Event) -> bool:
    """Return whether the live area shows as much as the line of this event."""
    reused = isinstance(event, e.Notice) and event.kind == "engine_reused"
    return reused or isinstance(event, e.EngineReady) or (isinstance(event, e.Said) and event.detail)


def redacted_uri(uri: str) -> str:
    """Return a tracking URI without user name and password."""
    return re.sub(r"(?<=://)[^/@]+@", "", uri)
