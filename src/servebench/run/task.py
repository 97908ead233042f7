"""One run of a study in this process: an engine is got, points are measured, the run's folder is written.

`study` has runs done here one after another; a cluster's job does one of them on its machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from servebench import __version__
from servebench.analysis.repeats import summarize_repeats
from servebench.config import Job
from servebench.contracts.engine import StopReport
from servebench.contracts.exchange import ClientFloor
from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import RunSettings
from servebench.contracts.turn import Turn
from servebench.engine.pool import EnginePool
from servebench.load.selfcheck.floor import client_floor
from servebench.registry.registry import Registry
from servebench.report.terminal.display import Display
from servebench.run.execute import RunRequest, execute
from servebench.run.manifest import engine_facts, run_facts, starting_facts, stop_facts
from servebench.run.names import title_of
from servebench.run.prior import PriorProgress
from servebench.run.scorers import select_scorers
from servebench.store import (
    RunFolder,
    RunState,
    StudyFolder,
    build_manifest,
    read_manifest,
    redact_text,
    write_manifest,
    write_run,
)
from servebench.util.cache import cache_folder
from servebench.util.errors import FailureKind, LoadError, StoreError
from servebench.util.redaction import remember_config

BETWEEN_TURNS = "its other repeats come in turns with those of other runs"


@dataclass(frozen=True)
class RunTask:
    """A run to do, and what earlier attempts at it left."""

    name: str
    job: Job
    earlier: PriorProgress = field(default_factory=PriorProgress)
    turn: Turn = field(default_factory=Turn)


@dataclass
class RunContext:
    """What all runs that are done in one process share. `facts` go into each manifest."""

    folder: StudyFolder
    words: Sequence[str]
    display: Display
    keeper: EnginePool
    registry: Registry
    machine: dict[str, Any]
    floor: ClientFloor | None
    facts: dict[str, Any]


def floor_of(jobs: Sequence[Job], display: Display) -> ClientFloor | None:
    """How exact this machine's client is, measured where it is asked for and not known. It is never a reason to stop."""
    modes = {job.settings.load.self_check for job in jobs}
    mode: Literal["auto", "always", "never"] = next((m for m in ("always", "auto") if m in modes), "never")
    if mode != "never":
        display.status("self-check of the client")
    try:
        return client_floor(mode, cache_folder())
    except LoadError as error:
        display.problem(f"no self-check: {error}; the points have no error of the client beside them")
        return None


def run_task(place: RunContext, task: RunTask, following: RunSettings | None, prefix: str = "") -> RunOutcome:
    """Do a run, or a turn of it, and store it. `following` are the settings of the run after it, which may want the same
    engine."""
    job, name = task.job, task.name
    remember_config(job.resolved)
    title = title_of(job)
    folder = place.folder.create_run(name)
    state = RunState(run_id=f"{place.folder.name}/{name}", title=title, overrides=job.overrides)
    write_run(folder, state)
    so_far = _ledger_so_far(folder)
    # a run that is killed has its config and machine on disk all the same
    _write_manifest(place, job, folder, {**starting_facts(state), "ledger": so_far})
    place.display.begin(prefix + title)
    scorers = select_scorers(job.settings, place.registry, cache_folder())
    for reason in scorers.left_out:
        place.display.say(f"quality: left out: {reason}")
    asked = RunRequest(
        job=job,
        run_id=state.run_id,
        title=title,
        folder=folder,
        registry=place.registry,
        display=place.display,
        keeper=place.keeper,
        done=task.earlier.points,
        attempts=task.earlier.attempts,
        gpus=tuple(str(gpu["name"]) for gpu in place.machine["gpus"]),
        quality=scorers,
        turn=task.turn,
        floor=place.floor if job.settings.load.self_check != "never" else None,
    )
    done = execute(asked)
    outcome, lease = done.outcome, done.lease
    stopped = place.keeper.release(None if outcome.status == "interrupted" else following)
    _tell_leftover(place.display, stopped)
    more = {
        **run_facts(state, outcome, ended_s=time.time()),
        **({"self_check": asdict(asked.floor)} if asked.floor is not None else {}),
        **(engine_facts(lease) if lease is not None else {}),
        **(stop_facts(stopped) if stopped is not None else {}),
        "ledger": [*so_far, *done.ledger],
        **({"quality_left_out": list(scorers.left_out)} if scorers.left_out else {}),
        **({"telemetry": done.telemetry} if done.telemetry is not None else {}),
    }
    _write_manifest(place, job, folder, more)
    error = redact_text(outcome.error) if outcome.error else None
    if outcome.status == "finished" and not task.turn.last:
        # should the study end here, a resume goes on with the run
        write_run(folder, replace(state, status="interrupted", error=BETWEEN_TURNS, failure=FailureKind.INTERRUPTED))
        return outcome
    write_run(folder, replace(state, status=outcome.status, error=error, failure=outcome.failure, ended_s=time.time()))
    repeats = summarize_repeats([point.judged_row for point in outcome.points])
    place.display.finish(outcome, prefix + title, repeats)
    if error is not None:
        place.display.problem(error)
    return outcome


def _ledger_so_far(folder: RunFolder) -> list[dict[str, Any]]:
    """What earlier turns of a run, or attempts at it, entered in its ledger."""
    if not folder.manifest.exists():
        return []
    with suppress(StoreError):
        entries = read_manifest(folder.manifest).get("ledger")
        return entries if isinstance(entries, list) else []
    return []


def _write_manifest(place: RunContext, job: Job, folder: RunFolder, more: dict[str, Any]) -> None:
    facts = {
        "study_id": place.folder.name,
        "words": list(place.words),
        "servebench_version": __version__,
        "overrides": list(job.overrides),
        **place.facts,
        **more,
    }
    write_manifest(folder.manifest, build_manifest(config=job.resolved, facts=facts, machine=place.machine))


def _tell_leftover(display: Display, stopped: StopReport | None) -> None:
    if stopped is not None and stopped.leftover:
        display.problem(f"the engine left something behind: {'; '.join(stopped.leftover)}")
