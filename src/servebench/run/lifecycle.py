"""The life of one run: prepare its folder, start or reuse an engine, measure points, grade answers, write its manifest."""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from servebench import __version__
from servebench.analysis.warnings.catalog import is_usable
from servebench.config import Job, settings_from_dict
from servebench.contracts.age import FRESH
from servebench.contracts.engine import GPUS_VARIABLE, RunningEngine, StopReport
from servebench.contracts.events import Doing, Events, Notice, PointFinished, RunFinished, RunStarted, TurnStarted
from servebench.contracts.exchange import ClientFloor
from servebench.contracts.results import Point, RunOutcome
from servebench.contracts.turns import Turn
from servebench.engine.pool import EngineLease
from servebench.engine.weights import weights_facts
from servebench.load.plan.source import LevelSource, level_source
from servebench.load.selfcheck.check import client_floor
from servebench.registry.registry import Registry
from servebench.run.grading import grade_load, grade_questions, select_scorers, stored_summaries, unasked_questions
from servebench.run.live import awaited_death
from servebench.run.noise import learn_noise
from servebench.run.outcome import (
    Ending,
    Entry,
    ending_of_error,
    ending_of_points,
    ledger_faults,
    no_success_error,
    stop_error,
    with_ledger_faults,
)
from servebench.run.quiet import measure_undisturbed
from servebench.run.session import RunRequest, RunSession, open_session, open_telemetry
from servebench.run.steps import Steps
from servebench.store.layout import RunFolder, StudyFolder
from servebench.store.manifest import build_manifest, read_manifest, write_manifest
from servebench.store.sealed import TUNE_WORD
from servebench.store.state import RunState, StudyState, write_run
from servebench.store.tables import RecordWriter, add_sessions, stored_counts, write_points
from servebench.telemetry.sampler import Telemetry
from servebench.util.cache import cache_folder
from servebench.util.errors import EngineError, FailureKind, LoadError, ServebenchError, StoreError
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


def task_steps(request: RunRequest) -> Steps[RunOutcome]:
    """Select the scorers of a run, or a turn of it, execute and store it."""
    task, job, turn, events = request.task, request.task.job, request.turn, request.events
    remember_config(job.resolved)
    folder = request.study.create_run(task.name)
    state = RunState(run_id=request.run_id, title=job.title, overrides=job.overrides)
    write_run(folder, state)
    before = _stored_facts(folder)
    # what was measured may be from another machine
    kept = {} if needs_engine(job, turn) else {name: before[name] for name in OF_MACHINE if name in before}
    # a run that is killed has its config and machine on disk, too
    running = {"run_id": state.run_id, "title": state.title, "status": "running", "started_s": state.started_s}
    _write_manifest(request, {**running, "ledger": before.get("ledger") or []}, kept)
    events(TurnStarted(task.name, turn.label + job.title))
    scorers = select_scorers(job.settings, request.registry, cache_folder())
    for reason in scorers.left_out:
        events(Notice("scorer_left_out", note=reason))
    floor = request.floor if job.settings.load.self_check != "never" and not kept else None
    result = yield from run_steps(replace(request, floor=floor, quality=scorers))
    outcome = result.outcome
    stopped = request.pool.release(None if outcome.status == "interrupted" else request.following)
    if stopped is not None and stopped.leftover:
        events(Notice("left_behind", note="; ".join(stopped.leftover)))
    # a turn that needed no engine says nothing about it
    known = {name: before[name] for name in OF_ENGINE if name in before}
    facts = {
        **running,
        "status": outcome.status,
        "error": outcome.error,
        "ended_s": time.time(),
        "interval_priors": list(dict.fromkeys(one.row.interval_prior for one in outcome.points)),
        **({"search": outcome.search} if outcome.search is not None else {}),
        **({"quality": [asdict(one) for one in outcome.quality]} if outcome.quality else {}),
        **(known if result.lease is None else engine_facts(result.lease)),
        **(stop_facts(stopped) if stopped is not None else {}),
        "ledger": [*(before.get("ledger") or []), *result.ledger],
        **({"telemetry": result.telemetry.facts()} if result.telemetry is not None else {}),
        **({"self_check": asdict(floor)} if floor is not None else {}),
        **({"quality_left_out": list(scorers.left_out)} if scorers.left_out else {}),
    }
    _write_manifest(request, facts, kept)
    status, error, failure = outcome.status, redact_text(outcome.error) if outcome.error else None, outcome.failure
    over = turn.last or status != "finished"
    if not over:
        # if the study ends here, a resume continues the run
        status, error, failure = "interrupted", BETWEEN_TURNS, FailureKind.INTERRUPTED
    write_run(folder, replace(state, ended_s=time.time(), status=status, error=error, failure=failure))
    if over:
        events(RunFinished(outcome=outcome, settings=job.settings, folder=folder.path))
    # last, because a log may be long and a user impatient
    request.pool.clean_logs()
    return outcome


def _stored_facts(folder: RunFolder) -> dict[str, Any]:
    """Return the manifest of earlier turns of the run and attempts at it; empty without one."""
    with suppress(StoreError):
        if folder.manifest.exists():
            return read_manifest(folder.manifest)
    return {}


def _write_manifest(request: RunRequest, more: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    job = request.task.job
    facts = {
        "study_id": request.study.name,
        "words": list(request.words),
        "servebench_version": __version__,
        "overrides": list(job.overrides),
        **request.facts,
        **more,
    }
    manifest = build_manifest(config=job.resolved, facts=facts, machine=request.machine)
    write_manifest(request.folder.manifest, {**manifest, **kept})


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
        "seconds": start.start_s,
        "phases": phases,
        "shared": lease.uses > 0,
    }


def stop_facts(stopped: StopReport) -> dict[str, object]:
    """Return how the engine stopped and what it left behind."""
    return {"stop": {name: value for name, value in asdict(stopped).items() if name != "stopped"}}


@dataclass
class RunResult:
    """What a run has so far and, at its end, how it ended, and the `ledger` of its manifest; whatever ends it reports this."""

    writer: RecordWriter
    points: list[Point] = field(default_factory=list)
    lease: EngineLease | None = None
    telemetry: Telemetry | None = None
    entries: list[Entry] = field(default_factory=list)
    outcome: RunOutcome = field(init=False)
    ledger: Sequence[Mapping[str, object]] = ()


def run_steps(request: RunRequest) -> Steps[RunResult]:
    """Execute a run, or a turn of it, and return how it ended. User errors, a dead engine, Ctrl-C and defects are outcomes.

    The engine stays with the pool, so that the next run can reuse it. Raises StoreError when the disk fails at the end.
    """
    settings, turn = request.settings, request.turn
    progress = RunResult(RecordWriter(request.folder))
    levels: LevelSource | None = None
    ending = Ending()
    try:
        levels = level_source(settings.load, settings.slo, settings.workload.seed, settings.study.listed_starts)
        if turn.first:
            request.events(RunStarted(run_id=request.run_id, settings=settings, folder=request.folder.path))
        yield from _measure_levels(request, levels, progress)
        if (error := no_success_error(progress.points, settings)) is not None:
            raise error
        if turn.last or turn.quality is not None:
            _grade(request, progress)
        if turn.last:
            ending = ending_of_points(progress.points)
    except (KeyboardInterrupt, ServebenchError) as error:
        attached = not request.registry.launcher(settings.launch.name).local
        ending = ending_of_error(_cause(error, progress, attached=attached))
    except Exception as error:  # noqa: BLE001 - a plugin's, or a defect here: it must not cost the other runs of a study
        sys.excepthook(*sys.exc_info())
        ending = Ending("failed", f"internal error: {type(error).__name__}: {error}", FailureKind.INTERNAL)
    finally:
        if progress.telemetry is not None:
            progress.telemetry.close()
        progress.writer.close()
    stored = stored_counts(request.folder)
    ending = with_ledger_faults(ending, ledger_faults(progress.entries, stored))
    search = levels.answer(interrupted=ending.status != "finished") if levels is not None else None
    progress.outcome = RunOutcome(
        run_id=request.run_id,
        **vars(ending),
        points=tuple(progress.points),
        search=asdict(search) if search is not None else None,
        quality=stored_summaries(request.folder),
    )
    progress.ledger = [one.as_dict(stored.get((one.point, one.warmup), 0)) for one in progress.entries]
    return progress


def _cause(
    error: KeyboardInterrupt | ServebenchError, progress: RunResult, *, attached: bool
) -> KeyboardInterrupt | ServebenchError:
    """Return the death of the engine where that is behind an error of talking to it, else the error. An error of a server that
    is `attached` passes when its operator has mended it."""
    if isinstance(error, EngineError) and error.kind is not FailureKind.DIED:
        if attached:
            return EngineError(f"{error}; 'servebench resume' goes on when it answers", kind=FailureKind.ENDPOINT)
        death = awaited_death(progress.lease.running) if progress.lease is not None else None
        return error if death is None else EngineError(death, kind=FailureKind.DIED)
    return error


def _measure_levels(request: RunRequest, levels: LevelSource, progress: RunResult) -> Steps[None]:
    """Measure level after level. The engine is started for the first level that has no stored point.

    Raises ServebenchError when the run cannot go on, KeyboardInterrupt and Interrupted when it is stopped.
    """
    session: RunSession | None = None
    while (level := levels.next_level()) is not None:
        if (stored := request.task.earlier.points.get(level.id)) is not None:
            progress.points.append(stored)
            levels.add_point(level, stored, usable=is_usable(stored.codes))
            continue
        if not request.turn.includes(level.id):
            continue
        if session is None or request.settings.engine.age == FRESH:
            if progress.telemetry is not None:
                progress.telemetry.close()
            lease = progress.lease = request.pool.acquire(request.settings, log_path=request.folder.engine_log)
            telemetry = progress.telemetry = open_telemetry(request, lease)
            session = open_session(request, lease, writer=progress.writer, ledger=progress.entries, telemetry=telemetry)
        attempt = replace(level, id=level.id.with_attempt(request.task.earlier.attempts.get(level.id, 0)))
        point, evidence = yield from measure_undisturbed(session, attempt)
        if evidence.report.stopped is None:
            grade_load(request, session.lease, evidence.level, evidence.requests, evidence.records)
        progress.points.append(point)
        levels.add_point(level, point, usable=is_usable(point.codes))
        names = {point.row.point for point in progress.points}
        # the table holds the stored points that the run has not reached yet, too
        later = [point for point in request.task.earlier.points.values() if point.row.point not in names]
        write_points(request.folder, [*progress.points, *later])
        add_sessions(request.folder, point)
        if evidence.report.stopped is None:
            learn_noise(session, evidence.level, point, evidence)
        request.events(PointFinished(run_id=request.run_id, point=point, folder=request.folder.path))
        error = stop_error(
            *(evidence.report.stopped, session.lease.running.died()),
            timeout_s=session.settings.load.timeout_s,
            said=evidence.report.error,
            attached=not session.lease.launcher.local,
        )
        if error is not None:
            raise error


def _grade(request: RunRequest, progress: RunResult) -> None:
    """Ask the engine the quality questions that have no stored answer; start the engine if only they are left.

    Raises ServebenchError, KeyboardInterrupt.
    """
    if not unasked_questions(request):
        return
    if progress.lease is None:
        progress.lease = request.pool.acquire(request.settings, log_path=request.folder.engine_log)
    grade_questions(request, progress.lease)
