"""A run of a study in this process: prepare its folder, execute it, write its manifest and state."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from servebench import __version__
from servebench.config import Job, settings_from_dict
from servebench.contracts.engine import GPUS_VARIABLE, RunningEngine, StopReport
from servebench.contracts.events import Doing, Events, Notice, RunFinished, TurnStarted
from servebench.contracts.exchange import ClientFloor
from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import RunSettings
from servebench.contracts.turns import Turn
from servebench.engine.pool import EngineLease
from servebench.engine.weights import weights_facts
from servebench.load.selfcheck.check import client_floor
from servebench.registry.registry import Registry
from servebench.run.lifecycle import run_steps
from servebench.run.scorers import select_scorers
from servebench.run.session import RunContext, RunRequest, RunTask
from servebench.run.steps import Steps, alone
from servebench.store.layout import RunFolder, StudyFolder
from servebench.store.manifest import build_manifest, read_manifest, write_manifest
from servebench.store.sealed import TUNE_WORD
from servebench.store.state import RunState, StudyState, write_run
from servebench.util.cache import cache_folder
from servebench.util.errors import FailureKind, LoadError, StoreError
from servebench.util.redaction import redact_text, remember_config
from servebench.util.units import NS_PER_S

OF_ENGINE = (
    "field_names",
    *("weights", "engine_version", "endpoint", "served_model", "image", "command", "engine_log", "resolved_settings"),
    *("cold_start", "stop", "telemetry"),
)
"""The facts in a manifest that come from the engine and its telemetry."""
OF_MACHINE = ("machine", "packages", "git", "place", "self_check")
"""The facts in a manifest that come from the machine on which the run was measured."""
BETWEEN_TURNS = "the other repeats of this run follow in turns with those of other runs"


def shared_prompts(folder: StudyFolder, state: StudyState) -> Path | None:
    """Return where the runs of a study keep the prompts that they share; null if there is one run. A tune gets more runs."""
    return folder.prompts if len(state.runs) > 1 or state.words[:1] == (TUNE_WORD,) else None


def in_real_time(job: Job, registry: Registry) -> bool:
    """Return whether a run takes place in real time: a simulated one has a clock of its own."""
    return not registry.launcher(job.settings.launch.name).simulated


def measured_floor(jobs: Sequence[Job], registry: Registry, events: Events) -> ClientFloor | None:
    """Return the precision of the client on this machine, measured now unless known; null if the jobs do not want it.

    A simulated run has no client whose precision matters.
    """
    modes = {job.settings.load.self_check for job in jobs if in_real_time(job, registry)}
    mode: Literal["auto", "always", "never"] = next((m for m in ("always", "auto") if m in modes), "never")
    if mode != "never":
        events(Doing("self_check"))
    try:
        return client_floor(mode, cache_folder())
    except LoadError as error:
        events(Notice("self_check_failed", note=str(error)))
        return None


def job_of_turn(job: Job, turn: Turn, registry: Registry) -> Job:
    """Return the job of a run as a turn of it wants it. Raises ConfigError."""
    if turn.quality is not None:
        config = {**job.resolved, "quality": dict(turn.quality)}
        job = replace(job, settings=settings_from_dict(config, registry), resolved=config)
    engine = job.settings.engine
    if turn.ready_timeout_s is not None:
        engine = replace(engine, ready_timeout_s=turn.ready_timeout_s)
    if turn.gpus:
        # the driver numbers GPUs by their bus, and CUDA only does so with this variable
        env = {GPUS_VARIABLE: ",".join(turn.gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        engine = replace(engine, env={**engine.env, **env})
    return replace(job, settings=replace(job.settings, engine=engine))


def needs_engine(job: Job, turn: Turn) -> bool:
    """Return whether a turn may start an engine."""
    return turn.measures or job.settings.quality.name != "none"


def run_task(context: RunContext, task: RunTask, turn: Turn, next_settings: RunSettings | None) -> RunOutcome:
    """Execute a run, or a turn of it, without other runs, and store it, see `task_steps`."""
    return alone(task_steps(context, task, turn, next_settings))


def task_steps(context: RunContext, task: RunTask, turn: Turn, next_settings: RunSettings | None) -> Steps[RunOutcome]:
    """Execute a run, or a turn of it, and store it.

    `next_settings` are those of the run that follows: if it needs the same engine, the engine keeps running.
    """
    job, events = task.job, context.events
    remember_config(job.resolved)
    folder = context.study.create_run(task.name)
    state = RunState(run_id=f"{context.study.name}/{task.name}", title=job.title, overrides=job.overrides)
    write_run(folder, state)
    before = _stored_facts(folder)
    # what was measured may be from another machine
    kept = {} if needs_engine(job, turn) else {name: before[name] for name in OF_MACHINE if name in before}
    # a run that is killed has its config and machine on disk, too
    _write_manifest(context, task, {**starting_facts(state), "ledger": before.get("ledger") or []}, kept)
    events(TurnStarted(task.name, turn.label + job.title))
    scorers = select_scorers(job.settings, context.registry, cache_folder())
    for reason in scorers.left_out:
        events(Notice("scorer_left_out", note=reason))
    floor = context.floor if job.settings.load.self_check != "never" and not kept else None
    shared = {**vars(context), "floor": floor}
    result = yield from run_steps(RunRequest(**shared, task=task, turn=turn, quality=scorers))
    outcome = result.outcome
    stopped = context.pool.release(None if outcome.status == "interrupted" else next_settings)
    if stopped is not None and stopped.leftover:
        events(Notice("left_behind", note="; ".join(stopped.leftover)))
    # a turn that needed no engine says nothing about it
    known = {name: before[name] for name in OF_ENGINE if name in before}
    facts = {
        **run_facts(state, outcome, ended_s=time.time()),
        **(known if result.lease is None else engine_facts(result.lease)),
        **(stop_facts(stopped) if stopped is not None else {}),
        "ledger": [*(before.get("ledger") or []), *result.ledger],
        **({"telemetry": result.telemetry} if result.telemetry is not None else {}),
        **({"self_check": asdict(floor)} if floor is not None else {}),
        **({"quality_left_out": list(scorers.left_out)} if scorers.left_out else {}),
    }
    _write_manifest(context, task, facts, kept)
    status, error, failure = outcome.status, redact_text(outcome.error) if outcome.error else None, outcome.failure
    over = turn.last or status != "finished"
    if not over:
        # if the study ends here, a resume continues the run
        status, error, failure = "interrupted", BETWEEN_TURNS, FailureKind.INTERRUPTED
    write_run(folder, replace(state, ended_s=time.time(), status=status, error=error, failure=failure))
    if over:
        events(RunFinished(outcome=outcome, settings=job.settings, folder=folder.path))
    # last, because a log may be long and a user impatient
    context.pool.clean_logs()
    return outcome


def _stored_facts(folder: RunFolder) -> dict[str, Any]:
    """Return the manifest of earlier turns of the run and attempts at it; empty without one."""
    with suppress(StoreError):
        if folder.manifest.exists():
            return read_manifest(folder.manifest)
    return {}


def _write_manifest(context: RunContext, task: RunTask, more: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    facts = {
        "study_id": context.study.name,
        "words": list(context.words),
        "servebench_version": __version__,
        "overrides": list(task.job.overrides),
        **context.facts,
        **more,
    }
    manifest = build_manifest(config=task.job.resolved, facts=facts, machine=context.machine)
    write_manifest(context.study.run(task.name).manifest, {**manifest, **kept})


def starting_facts(state: RunState) -> dict[str, object]:
    """Return the facts of a run that starts now."""
    return {"run_id": state.run_id, "title": state.title, "status": "running", "started_s": state.started_s}


def run_facts(state: RunState, outcome: RunOutcome, *, ended_s: float) -> dict[str, object]:
    """Return the facts of a run that has ended. Times are in seconds since the epoch."""
    return {
        **starting_facts(state),
        "status": outcome.status,
        "error": outcome.error,
        "ended_s": ended_s,
        "interval_priors": list(dict.fromkeys(one.row.interval_prior for one in outcome.points)),
        **({"search": outcome.search} if outcome.search is not None else {}),
        **({"quality": [asdict(one) for one in outcome.quality]} if outcome.quality else {}),
    }


def engine_facts(lease: EngineLease) -> dict[str, object]:
    """Return the facts of the engine: version, weights, endpoint, command, cold start by phase, path of its log in the study."""
    running = lease.running
    command = running.command
    emulated = lease.launcher.emulated
    argv = command.argv if command is not None else None
    return {
        **({} if emulated else {"weights": weights_facts(lease.context.model, argv)}),
        "engine_version": running.version,
        "endpoint": running.base_url,
        **({"field_names": dict(running.names)} if running.names else {}),
        "served_model": running.model,
        "image": getattr(running, "image", None),
        "command": {"argv": list(command.argv), "env": dict(command.env)} if command else None,
        "engine_log": f"{lease.owner_log.parent.name}/{lease.owner_log.name}",
        "resolved_settings": lease.resolved,
        "cold_start": _start(running, lease),
    }


def _start(start: RunningEngine, lease: EngineLease) -> dict[str, object] | None:
    """Return the phases of a start, in seconds from its command; null for an engine already running. `shared`: an earlier run of
    the study started the engine, so its cold start must not be counted twice."""
    if not start.phases:
        return None
    phases = [
        {"name": phase.name, "ended_ns": phase.ended_ns, "seconds": (phase.ended_ns - start.started_ns) / NS_PER_S}
        for phase in start.phases
    ]
    return {
        "started_ns": start.started_ns,
        "seconds": phases[-1]["seconds"],
        "phases": phases,
        "shared": lease.uses > 0,
    }


def stop_facts(stopped: StopReport) -> dict[str, object]:
    """Return how the engine stopped and what it left behind."""
    facts = asdict(stopped)
    del facts["stopped"]
    return {"stop": facts}
